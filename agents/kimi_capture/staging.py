"""Rows on their way from the engine's tensors to host memory, without ever waiting in the forward pass.

The engine's outputs are slices of buffers that the next step overwrites. On CUDA they are copied, on the stream that
made them, into one of a few device slots; a side stream copies the slot to pinned memory and records an event. The
writer thread waits for that event. On a CPU the rows are cloned.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kimi_capture.format import ALIGNMENT, Array
from kimi_capture.rows import Piece

if TYPE_CHECKING:
    import torch

SLOTS: Final = 3
NAMES: Final = ("aux_hidden_states", "last_hidden_state", "token_ids", "positions")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one request on the host: arrays by name of `NAMES`, first axis the row; bf16 as uint16."""

    arrays: dict[str, Array]


@dataclass(slots=True)
class Chunk:
    """The rows of one step on their way to the host, and the pieces that lie in them."""

    tensors: "dict[str, torch.Tensor]"
    pieces: list[Piece]
    first: int
    """Row of the step at which the tensors begin."""
    ready: "torch.cuda.Event | None" = None
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = sum(tensor.nbytes for tensor in self.tensors.values())

    def settle(self) -> None:
        """Wait for the copy and give every piece its own rows, so that the chunk's memory can be reused at once."""
        if self.ready is not None:
            self.ready.synchronize()
        arrays = {name: to_numpy(tensor) for name, tensor in self.tensors.items()}
        for piece in self.pieces:
            first = piece.offset - self.first
            last = first + piece.length
            piece.rows = Rows({name: array[first:last].copy() for name, array in arrays.items()})
        self.tensors.clear()


class Slot:
    """Device memory for one step's rows; grows to the largest step seen."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None
        self.free: torch.cuda.Event | None = None
        """Recorded when the last copy out of the slot is done."""

    def take(self, size: int, like: "torch.Tensor", side: "torch.cuda.Stream") -> "torch.Tensor":
        """[size] bytes on the device of `like`."""
        import torch  # noqa: PLC0415

        if self._buffer is None or len(self._buffer) < size:
            self._buffer = like.new_empty(size, dtype=torch.uint8)
            # A later growth frees it while the side stream may still read it.
            self._buffer.record_stream(side)
        return self._buffer[:size]


class Stager:
    """Copies rows out of the engine's tensors on the current stream. One thread only."""

    def __init__(self) -> None:
        self._slots = [Slot() for _ in range(SLOTS)]
        self._next = 0
        self._side: torch.cuda.Stream | None = None

    def stage(self, source: "dict[str, torch.Tensor]", pieces: list[Piece]) -> Chunk:
        """Start the copy of the rows of `pieces`; `source` has the step's tensors by name of `NAMES`, row first."""
        first = min(piece.offset for piece in pieces)
        last = max(piece.offset + piece.length for piece in pieces)
        if short := [name for name, tensor in source.items() if len(tensor) < last]:
            raise ValueError(f"{', '.join(short)} have fewer than the {last} rows of the step")
        cut = {name: tensor[first:last] for name, tensor in source.items()}
        if not cut["last_hidden_state"].is_cuda:
            return Chunk({name: tensor.clone() for name, tensor in cut.items()}, pieces, first)
        return self._stage_cuda(cut, pieces, first)

    def _stage_cuda(self, source: "dict[str, torch.Tensor]", pieces: list[Piece], first: int) -> Chunk:
        import torch  # noqa: PLC0415 - the format and the writer work without it

        device = source["last_hidden_state"].device
        if self._side is None:
            self._side = torch.cuda.Stream(device)
        slot = self._slots[self._next]
        self._next = (self._next + 1) % SLOTS
        current = torch.cuda.current_stream(device)
        if slot.free is not None:
            current.wait_event(slot.free)
        starts, size = layout(source)
        held = slot.take(size, source["last_hidden_state"], self._side)
        for name, tensor in source.items():
            part(held, starts[name], tensor).copy_(tensor, non_blocking=True)
        self._side.wait_event(current.record_event())
        with torch.cuda.stream(self._side):
            host = torch.empty(size, dtype=torch.uint8, pin_memory=True).copy_(held, non_blocking=True)
            ready = torch.cuda.Event(blocking=True)
            ready.record(self._side)
        slot.free = ready
        return Chunk({name: part(host, starts[name], like) for name, like in source.items()}, pieces, first, ready)


def layout(tensors: "dict[str, torch.Tensor]") -> tuple[dict[str, int], int]:
    """Where each tensor begins in one buffer, aligned, and the buffer's size in bytes."""
    starts: dict[str, int] = {}
    size = 0
    for name, tensor in tensors.items():
        starts[name] = size
        size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return starts, size


def part(buffer: "torch.Tensor", start: int, like: "torch.Tensor") -> "torch.Tensor":
    """The piece of a byte buffer that begins at `start`, with the shape and type of `like`."""
    return buffer[start : start + like.nbytes].view(like.dtype).view(like.shape)


def to_numpy(tensor: "torch.Tensor") -> Array:
    """A host tensor's memory as a numpy array; bf16 as uint16."""
    import torch  # noqa: PLC0415

    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy()).view(np.uint16)
    return np.asarray(tensor.numpy())


def assemble(pieces: list[Piece]) -> dict[str, Array] | None:
    """The rows of a finished request in order of position, or None when some never reached the host."""
    parts: list[dict[str, Any]] = []
    for piece in pieces:
        if not isinstance(piece.rows, Rows):
            return None
        parts.append({name: array[: piece.length] for name, array in piece.rows.arrays.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in NAMES} if parts else None
