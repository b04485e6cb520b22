"""Rows on their way from the engine's tensors to host memory, without ever waiting in the forward pass.

The engine's outputs are slices of buffers that the next step overwrites. On CUDA they are copied, on the stream that
made them, into one of a few device slots; a side stream adds the rows' moments, copies the slot to pinned memory in one
piece and records an event. The writer thread waits for that event. On a CPU the rows are copied to the same memory.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kimi_capture.arena import PAGE, Arena, Extent
from kimi_capture.format import ALIGNMENT, Array
from kimi_capture.rows import Piece
from kimi_capture.statistics import MOMENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

SLOTS: Final = 2
"""Device memory for so many steps: one is filled while the other is copied, many times as fast, to the host."""
SHORT: Final = 16
"""Pieces of fewer rows are moved to memory of their own: a decode step must not stay until its last request ends."""
REGION: Final = 256 << 20
"""Bytes by which host memory grows beyond what was taken at the start."""
LAYOUTS: Final = 64
"""So many of them are kept; decode steps need few."""
SMALL: Final = 64 << 20
"""Regions this small are not worth splitting."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one request on the host: arrays by the shard's names, first axis the row; bf16 as uint16."""

    arrays: dict[str, Array]
    moments: Array | None = None
    """[rows, K+1, 4] float32; None when they have not been computed yet."""
    extent: Extent | None = None
    """The memory that the arrays lie in, if it is the arena's."""

    def cut(self, length: int) -> "Rows":
        """The first rows."""
        if length == len(self.arrays["positions"]):
            return self
        arrays = {name: array[:length] for name, array in self.arrays.items()}
        return Rows(arrays, None if self.moments is None else self.moments[:length], self.extent)


@dataclass(slots=True)
class Chunk:
    """The rows of one step on their way to the host, and the pieces that lie in them."""

    layout: "Layout"
    pieces: list[Piece]
    first: int
    """Row of the step at which the chunk begins."""
    extent: Extent | None
    ready: "torch.cuda.Event | None" = None

    @property
    def bytes(self) -> int:
        return self.layout.size

    def settle(self) -> None:
        """Wait for the copy and give every piece its rows: long ones stay where they are, short ones move."""
        if self.ready is not None:
            self.ready.synchronize()
        assert self.extent is not None
        arrays = self.layout.arrays(self.extent.memory)
        for piece in self.pieces:
            rows = slice(piece.offset - self.first, piece.offset - self.first + piece.length)
            moved = piece.length < SHORT
            cut = {name: array[rows].copy() if moved else array[rows] for name, array in arrays.items()}
            piece.rows = Rows(cut, cut.pop("moments", None), None if moved else self.extent)
        self.extent = None


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the tensors of a step lie in one buffer."""

    places: "dict[str, tuple[int, int, torch.dtype, tuple[int, ...]]]"
    """Start and end in bytes, type and shape by name."""
    size: int

    @classmethod
    def of(cls, tensors: "dict[str, torch.Tensor]") -> "Layout":
        """One tensor after the other, each aligned."""
        places: dict[str, tuple[int, int, torch.dtype, tuple[int, ...]]] = {}
        start = 0
        for name, tensor in tensors.items():
            places[name] = (start, start + tensor.nbytes, tensor.dtype, tuple(tensor.shape))
            start += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        return cls(places, start)

    def views(self, buffer: "torch.Tensor") -> "dict[str, torch.Tensor]":
        """The tensors in a buffer, [bytes] uint8."""
        return {
            name: buffer[start:end].view(dtype).view(shape) for name, (start, end, dtype, shape) in self.places.items()
        }

    def arrays(self, buffer: "torch.Tensor") -> dict[str, Array]:
        """The same as numpy arrays, of a buffer on the host."""
        return {name: to_numpy(tensor) for name, tensor in self.views(buffer).items()}


class Stager:
    """Copies rows out of the engine's tensors on the current stream. Staging is for one thread."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.device: torch.device | None = None
        """Where the engine's tensors are; known from the first step on."""
        self.problem: str | None = None
        """Why the rows' moments are not computed on the device, if so."""
        self._wanted: tuple[int, int, int, str] | None = None
        self._slots: list[torch.Tensor | None] = [None] * SLOTS
        self._held: list[tuple[Layout, dict[str, torch.Tensor]] | None] = [None] * SLOTS
        self._layouts: dict[int, Layout] = {}
        self._copied: list[torch.cuda.Event | None] = [None] * SLOTS
        self._next = 0
        self._side: torch.cuda.Stream | None = None
        self._moments: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None] | None = None

    def prepare(self, size: int, boundaries: int, hidden: int, dtype: str) -> None:
        """Take `size` bytes of host memory and compile for rows of that shape, before a dump begins. Any thread.

        Where no step has been seen yet, this is done at the first one: nobody knows the device before.
        """
        self._wanted = (size, boundaries, hidden, dtype)
        if self.device is not None:
            self._prepare(*self._wanted)

    def _prepare(self, size: int, boundaries: int, hidden: int, dtype: str) -> None:
        import torch  # noqa: PLC0415 - the format and the writer work without it

        self._wanted = None
        self._layouts.clear()
        if self.device is None or self.device.type != "cuda":
            self.grow(size)
            return
        with torch.cuda.device(self.device):
            self.grow(size)
            if self._side is None:
                self._side = torch.cuda.Stream(self.device)
            with torch.cuda.stream(self._side):
                self._compile(torch.zeros((2, boundaries + 1, hidden), dtype=getattr(torch, dtype), device=self.device))

    def grow(self, size: int) -> None:
        """Make the arena at least `size` bytes large."""
        import torch  # noqa: PLC0415

        pinned = self.device is not None and self.device.type == "cuda"
        while size > self.arena.size:
            room = -(-(size - self.arena.size) // PAGE) * PAGE
            # Pinned memory comes in powers of two, whatever is asked for.
            region = room if room < 2 * SMALL else 1 << room.bit_length() - 1
            self.arena.add(torch.empty(region, dtype=torch.uint8, pin_memory=pinned))

    def size(self, source: "dict[str, torch.Tensor]") -> int:
        """Host bytes that the rows of a step take at most."""
        return self._layout(source).size

    def stage(self, source: "dict[str, torch.Tensor]", pieces: list[Piece]) -> Chunk | None:
        """Start the copy of the rows of `pieces`; None when the arena has no room for it now.

        `source` has the step's tensors by the shard's names, row first. Raises ValueError when they are too short.
        """
        first = min(piece.offset for piece in pieces)
        last = max(piece.offset + piece.length for piece in pieces)
        if short := [name for name, tensor in source.items() if len(tensor) < last]:
            raise ValueError(f"{', '.join(short)} have fewer than the {last} rows of the step")
        if self._wanted is not None:
            self.device = source["last_hidden_state"].device
            self._prepare(*self._wanted)
        cut = {name: tensor[first:last] for name, tensor in source.items()}
        layout = self._layout(cut)
        extent = self.arena.take(layout.size)
        if extent is None:
            return None
        if self._side is not None:
            return Chunk(layout, pieces, first, extent, self._copy(cut, layout, extent.memory))
        host = layout.views(extent.memory)
        for name, tensor in cut.items():
            host[name].copy_(tensor)
        return Chunk(layout, pieces, first, extent)

    def _layout(self, source: "dict[str, torch.Tensor]") -> Layout:
        """How the rows of a step, and their moments if the device computes them, lie in a chunk."""
        import torch  # noqa: PLC0415

        aux = source["aux_hidden_states"]
        found = self._layouts.get(len(aux))
        if found is None:
            tensors = dict(source)
            if self._moments is not None:
                shape = (len(aux), aux.shape[1] + 1, MOMENTS)
                tensors["moments"] = torch.empty(shape, dtype=torch.float32, device="meta")
            if len(self._layouts) >= LAYOUTS:
                self._layouts.clear()
            found = self._layouts[len(aux)] = Layout.of(tensors)
        return found

    def _copy(self, source: "dict[str, torch.Tensor]", layout: Layout, host: "torch.Tensor") -> "torch.cuda.Event":
        """Engine → slot on the current stream, moments and slot → host on the side stream."""
        import torch  # noqa: PLC0415

        assert self._side is not None
        number, self._next = self._next, (self._next + 1) % SLOTS
        current = torch.cuda.current_stream(self.device)
        copied = self._copied[number]
        if copied is not None:
            current.wait_event(copied)
        slot = self._slot(number, layout.size)
        last = self._held[number]
        held = last[1] if last is not None and last[0] is layout else layout.views(slot)
        self._held[number] = (layout, held)
        for name, tensor in source.items():
            held[name].copy_(tensor, non_blocking=True)
        self._side.wait_event(current.record_event())
        with torch.cuda.stream(self._side):
            if self._moments is not None:
                self._moments(held["aux_hidden_states"], held["last_hidden_state"], held["moments"])
            host.copy_(slot[: layout.size], non_blocking=True)
            ready = torch.cuda.Event(blocking=True)
            ready.record(self._side)
        self._copied[number] = ready
        return ready

    def _slot(self, number: int, size: int) -> "torch.Tensor":
        """Device memory, [at least size] bytes; grows to the largest step seen."""
        import torch  # noqa: PLC0415

        slot = self._slots[number]
        if slot is None or len(slot) < size:
            slot = torch.empty(size, dtype=torch.uint8, device=self.device)
            slot.record_stream(self._side)  # a later growth frees it while the side stream may still read it
            self._slots[number], self._held[number] = slot, None
        return slot

    def _compile(self, states: "torch.Tensor") -> None:
        """Run the moments' kernel once on states [rows, K+1, H]; without it they are computed on the host."""
        if self._moments is not None or self.problem is not None:
            return
        import torch  # noqa: PLC0415

        try:
            from kimi_capture.device import write_moments  # noqa: PLC0415 - needs Triton

            aux, last = states[:, :-1].contiguous(), states[:, -1].contiguous()
            write_moments(aux, last, torch.empty((*states.shape[:2], MOMENTS), device=states.device))
        except Exception as error:  # a compiler's errors have no common base; the caller shows this one
            self.problem = f"statistics are computed on the host: {type(error).__name__}: {error}"
        else:
            self._moments = write_moments


def to_numpy(tensor: "torch.Tensor") -> Array:
    """A host tensor's memory as a numpy array; bf16 as uint16."""
    import torch  # noqa: PLC0415

    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy()).view(np.uint16)
    return np.asarray(tensor.numpy())


def assemble(pieces: list[Piece]) -> list[Rows] | None:
    """The rows of a finished request in order of position, or None when some never reached the host.

    Neighbours that lie in memory of their own are joined.
    """
    parts: list[Rows] = []
    loose: list[Rows] = []
    for piece in pieces:
        if not isinstance(piece.rows, Rows):
            return None
        rows = piece.rows.cut(piece.length)
        if rows.extent is None:
            loose.append(rows)
        else:
            parts += [*join(loose), rows]
            loose = []
    return [*parts, *join(loose)] or None


def join(rows: list[Rows]) -> list[Rows]:
    """The same rows in one piece of memory; none when there are none."""
    if len(rows) < 2:
        return rows
    arrays = {name: np.concatenate([part.arrays[name] for part in rows]) for name in rows[0].arrays}
    moments: list[Any] = [part.moments for part in rows]
    return [Rows(arrays, None if any(part is None for part in moments) else np.concatenate(moments))]
