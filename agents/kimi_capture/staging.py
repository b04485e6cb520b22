"""Rows on their way from the engine's tensors to host memory, without ever waiting in the forward pass.

The engine's outputs are slices of buffers that the next step overwrites. On CUDA they are copied, on the stream that
made them, into a slot on the device. Once the engine has taken the step's results (see `kimi_capture.transfer`), a side
stream adds the rows' moments, copies them to pinned memory and records an event, for which the writer thread looks. The
rows of small steps, decode's above all, are gathered in one slot until it is full or one of its requests ends. On a CPU
the rows are copied to the same memory.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from kimi_capture.arena import PAGE, Arena, Extent, Region
from kimi_capture.chunk import Chunk, Layout
from kimi_capture.rows import Piece
from kimi_capture.slots import Ring, Slot
from kimi_capture.statistics import MOMENTS
from kimi_capture.transfer import Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

REGION: Final = 256 << 20
"""Bytes by which host memory grows beyond what was taken at the start."""
LAYOUTS: Final = 64
"""So many of them are kept; decode steps need few."""
BLOCK_ROWS: Final = 1024
BLOCK_BYTES: Final = 64 << 20
"""Rows and bytes of a block at most."""
SMALL: Final = 4
"""A step is small when a block has room for so many of them."""
PARTS: Final = 16
"""Of the states of a small step, copied side by side."""
Tensors = dict[str, "torch.Tensor"]
"""A step's tensors by the shard's names, row first; the RMS as the rows' lengths."""


@dataclass(slots=True)
class Block:
    """The rows of small steps, gathered. One thread."""

    layout: Layout
    extent: Extent
    capacity: int
    views: Tensors
    slot: Slot | None
    """Where `views` lie; None when that is the extent itself."""
    used: int = 0
    pieces: list[Piece] = field(default_factory=list)

    def add(self, source: Tensors, pieces: list[Piece]) -> bool:
        """Start the copy of the rows of `pieces`; False when there is no room for them. Raises ValueError."""
        first, last = span(pieces)
        begin, end = self.used, self.used + last - first
        if end > self.capacity:
            return False
        rows = cut(source, first, last)
        copy_small([self.views[name][begin:end] for name in rows], list(rows.values()))
        for piece in pieces:
            piece.offset += begin - first
        self.pieces += pieces
        self.used = end
        return True


class Stager:
    """Copies rows out of the engine's tensors on the current stream. Staging is for one thread."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.device: torch.device | None = None
        """Where the engine's tensors are; known from the first step on."""
        self.problem: str | None = None
        """Why the rows' moments are not computed on the device, if so."""
        self._wanted: tuple[int, int, int, str] | None = None
        self._layouts: dict[int, Layout] = {}
        self._steps = Ring()
        self._blocks = Ring()
        self._under_way: deque[tuple[Transfer, Extent]] = deque()
        """Memory that the device may still write to, whoever else has lost interest in it."""
        self._side: torch.cuda.Stream | None = None
        self._moments: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None] | None = None

    def prepare(self, size: int, boundaries: int, hidden: int, dtype: str) -> None:
        """Take `size` bytes of host memory and compile for rows of that shape, before a dump begins. Any thread.

        Where no step has been seen yet, this is done at the first one: nobody knows the device before. Raises OSError
        or RuntimeError when the host cannot give that memory.
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
        """Make the arena at least `size` bytes large. Raises OSError or RuntimeError."""
        import torch  # noqa: PLC0415

        if size <= self.arena.size:
            return
        region = Region(-(-(size - self.arena.size) // PAGE) * PAGE)
        if self.device is not None and self.device.type == "cuda":
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(region.first, len(region.memory), 0))
        self.arena.add(region)

    def size(self, source: Tensors) -> int:
        """Host bytes that the rows of a step take at most."""
        return self._layout(source, len(source["positions"])).size

    def stage(self, source: Tensors, pieces: list[Piece]) -> Chunk | None:
        """Start the copy of the rows of `pieces`; None when the arena has no room for it now.

        Raises ValueError when the step's tensors are too short.
        """
        self._prepare_wanted(source)
        self._let_go()
        first, last = span(pieces)
        rows = cut(source, first, last)
        layout = self._layout(rows, last - first)
        extent = self.arena.take(layout.size)
        if extent is None:
            return None
        slot = None if self._side is None else self._steps.take(layout, self._side)
        views = layout.views(extent.memory) if slot is None else slot.views
        copy(views, rows)
        transfer = None if slot is None else self._transfer(slot, layout, extent, last - first)
        return Chunk(layout, pieces, first, extent, transfer)

    def gather(self, source: Tensors, rows: int) -> Block | None:
        """A block for small steps like this one of so many rows; None when it is not small, or memory is short."""
        self._prepare_wanted(source)
        row_bytes = sum(tensor[:1].nbytes for tensor in source.values())
        capacity = min(BLOCK_ROWS, min(BLOCK_BYTES, self.arena.size // 8) // row_bytes)
        if rows * SMALL > capacity:
            return None
        layout = self._layout(source, capacity)
        extent = self.arena.take(layout.size)
        if extent is None:
            return None
        slot = None if self._side is None else self._blocks.take(layout, self._side)
        views = layout.views(extent.memory) if slot is None else slot.views
        return Block(layout, extent, capacity, views, slot)

    def close(self, block: Block) -> Chunk:
        """Nothing is added to a block any more."""
        slot = block.slot
        transfer = None if slot is None else self._transfer(slot, block.layout, block.extent, block.used)
        return Chunk(block.layout, block.pieces, 0, block.extent, transfer, gathered=True)

    def begin(self, *, everything: bool = False) -> None:
        """Send what waits: the steps that the device is done with, or all if the engine is kept from their results."""
        for transfer, _ in self._under_way:
            if not (everything or transfer.taken):
                break
            transfer.begin()
        self._let_go()

    def _let_go(self) -> None:
        while self._under_way and self._under_way[0][0].done:
            self._under_way.popleft()

    def _prepare_wanted(self, source: Tensors) -> None:
        if self._wanted is not None:
            self.device = source["last_hidden_state"].device
            self._prepare(*self._wanted)

    def _layout(self, source: Tensors, rows: int) -> Layout:
        """How so many rows of a step, and their moments if the device computes them, lie in memory."""
        import torch  # noqa: PLC0415

        found = self._layouts.get(rows)
        if found is None:
            shapes = {name: (tensor.dtype, tensor.shape[1:]) for name, tensor in source.items()}
            if self._moments is not None:
                shapes["moments"] = (torch.float32, (source["aux_hidden_states"].shape[1] + 1, MOMENTS))
            if len(self._layouts) >= LAYOUTS:
                self._layouts.clear()
            found = self._layouts[rows] = Layout.of(rows, shapes)
        return found

    def _transfer(self, slot: Slot, layout: Layout, extent: Extent, rows: int) -> Transfer:
        """The way to the host of the rows that the current stream brings into a slot."""
        import torch  # noqa: PLC0415

        taken = torch.cuda.current_stream(self.device).record_event()
        held = {name: tensor[:rows] for name, tensor in slot.views.items()}
        host = {name: tensor[:rows] for name, tensor in layout.views(extent.memory).items()}
        slot.transfer = transfer = Transfer(taken, partial(self._send, taken, held, host))
        self._under_way.append((transfer, extent))
        return transfer

    def _send(self, taken: "torch.cuda.Event", held: Tensors, host: Tensors) -> "torch.cuda.Event":
        """On the side stream: the moments of the rows that a slot holds, and all to the host."""
        import torch  # noqa: PLC0415

        assert self._side is not None
        self._side.wait_event(taken)
        with torch.cuda.stream(self._side):
            if self._moments is not None:
                self._moments(held["aux_hidden_states"], held["last_hidden_state"], held["moments"])
            copy(host, held)
        return self._side.record_event()

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


def copy(targets: Tensors, source: Tensors) -> None:
    """Copy by name, in one call: each would let go of the interpreter, and others would take it."""
    import torch  # noqa: PLC0415

    torch._foreach_copy_([targets[name] for name in source], list(source.values()), non_blocking=True)


def copy_small(targets: "list[torch.Tensor]", sources: "list[torch.Tensor]") -> None:
    """Copy tensors of a few rows, whatever their types, in one launch.

    A launch takes tensors of one type. Each has a block of threads to itself, which takes a few words a thread in turns
    that all wait for memory: so the words are wide, and states go in several parts.
    """
    import torch  # noqa: PLC0415

    wide = all(tensor.stride(0) * tensor.element_size() % 4 == 0 for tensor in sources)
    word = torch.int32 if wide else torch.int16
    torch._foreach_copy_(parts(targets, word), parts(sources, word), non_blocking=True)


def parts(tensors: "list[torch.Tensor]", word: "torch.dtype") -> "list[torch.Tensor]":
    """The tensors' memory as words, states in at most `PARTS` parts of whole rows."""
    found: list[torch.Tensor] = []
    for tensor in tensors:
        if tensor.dim() == 1:
            found.append(tensor.view(word))
        else:
            found += tensor.view(word).split(-(-len(tensor) // PARTS))
    return found


def span(pieces: list[Piece]) -> tuple[int, int]:
    """The first of a step's rows that pieces need, and the one behind the last."""
    return min(piece.offset for piece in pieces), max(piece.offset + piece.length for piece in pieces)


def cut(source: Tensors, first: int, last: int) -> Tensors:
    """Rows first to last - 1. Raises ValueError when a tensor has fewer."""
    if short := [name for name, tensor in source.items() if len(tensor) < last]:
        raise ValueError(f"{', '.join(short)} have fewer than the {last} rows of the step")
    return {name: tensor[first:last] for name, tensor in source.items()}
