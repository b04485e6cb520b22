"""Rows on the host: of the steps that a copy brought, and of the requests that they are given to."""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kimi_capture.arena import Extent
from kimi_capture.format import ALIGNMENT, PRE_NORM_RMS, Array
from kimi_capture.rows import Piece
from kimi_capture.transfer import Transfer

if TYPE_CHECKING:
    import torch

SHORT: Final = 16
"""Pieces of fewer rows are moved to memory of their own: a decode step must not stay until its last request ends."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one request on the host: arrays by the shard's names, first axis the row; bf16 as uint16."""

    arrays: dict[str, Array]
    moments: Array | None = None
    """[rows, K+1, 4] float32; None when they have not been computed yet."""
    extent: Extent | None = None
    """The memory that the arrays lie in, if it is the arena's."""

    def cut(self, start: int, end: int) -> "Rows":
        """Rows start to end - 1."""
        if end - start == len(self.arrays["positions"]):
            return self
        arrays = {name: array[start:end] for name, array in self.arrays.items()}
        return Rows(arrays, None if self.moments is None else self.moments[start:end], self.extent)


@dataclass(slots=True)
class Chunk:
    """The rows of one step, or of several gathered ones, on their way to the host, and the pieces that lie in them."""

    layout: "Layout"
    pieces: list[Piece]
    first: int
    """Row of the step at which the chunk begins."""
    extent: Extent | None
    transfer: Transfer | None = None
    """Their way from the device; None when they were on the host before."""
    gathered: bool = False

    @property
    def bytes(self) -> int:
        return self.layout.size

    @property
    def ready(self) -> bool:
        """Whether the rows are on the host."""
        return self.transfer is None or self.transfer.advance()

    def settle(self) -> None:
        """Give every piece its rows, once they are ready.

        Long ones stay where they are. Short and gathered ones move, those of a request to one place.
        """
        assert self.extent is not None
        arrays = self.layout.arrays(self.extent.memory)
        if PRE_NORM_RMS in arrays:  # from the root of a sum of squares to that of their mean
            arrays[PRE_NORM_RMS] /= np.float32(math.sqrt(arrays["last_hidden_state"].shape[1]))
        groups: defaultdict[str, list[Piece]] = defaultdict(list)
        for piece in self.pieces:
            groups[piece.rid].append(piece)
        for own in groups.values():
            if self.gathered or own[0].length < SHORT:
                self._move(own, arrays)
            else:
                (piece,) = own
                rows = slice(piece.offset - self.first, piece.offset - self.first + piece.length)
                cut = {name: array[rows] for name, array in arrays.items()}
                piece.rows = Rows(cut, cut.pop("moments", None), self.extent)
        self.extent = None

    def _move(self, own: list[Piece], arrays: dict[str, Array]) -> None:
        """Give the pieces of one request memory of their own."""
        index = [row - self.first for piece in own for row in range(piece.offset, piece.offset + piece.length)]
        cut = {name: array[index] for name, array in arrays.items()}
        rows, at = Rows(cut, cut.pop("moments", None)), 0
        for piece in own:
            piece.rows, piece.at = rows, at
            at += piece.length


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the tensors of a step lie in one buffer."""

    places: "dict[str, tuple[int, int, torch.dtype, tuple[int, ...]]]"
    """Start and end in bytes, type and shape by name."""
    size: int

    @classmethod
    def of(cls, rows: int, shapes: "dict[str, tuple[torch.dtype, tuple[int, ...]]]") -> "Layout":
        """One tensor after the other, each aligned; `shapes` are those of one row, by name."""
        places: dict[str, tuple[int, int, torch.dtype, tuple[int, ...]]] = {}
        start = 0
        for name, (dtype, shape) in shapes.items():
            size = rows * math.prod(shape) * dtype.itemsize
            places[name] = (start, start + size, dtype, (rows, *shape))
            start += -(-size // ALIGNMENT) * ALIGNMENT
        return cls(places, start)

    def views(self, buffer: "torch.Tensor") -> "dict[str, torch.Tensor]":
        """The tensors in a buffer, [bytes] uint8."""
        return {
            name: buffer[start:end].view(dtype).view(shape) for name, (start, end, dtype, shape) in self.places.items()
        }

    def arrays(self, buffer: "torch.Tensor") -> dict[str, Array]:
        """The same as numpy arrays, of a buffer on the host."""
        return {name: to_numpy(tensor) for name, tensor in self.views(buffer).items()}


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
    spans: list[tuple[Rows, int, int]] = []
    for piece in pieces:
        rows, end = piece.rows, piece.at + piece.length
        if not isinstance(rows, Rows):
            return None
        if spans and spans[-1][0] is rows and spans[-1][2] == piece.at:
            spans[-1] = (rows, spans[-1][1], end)
        else:
            spans.append((rows, piece.at, end))
    parts: list[Rows] = []
    loose: list[Rows] = []
    for rows, start, end in spans:
        if rows.extent is None:
            loose.append(rows.cut(start, end))
        else:
            parts += [*join(loose), rows.cut(start, end)]
            loose = []
    return [*parts, *join(loose)] or None


def join(rows: list[Rows]) -> list[Rows]:
    """The same rows in one piece of memory; none when there are none."""
    if len(rows) < 2:
        return rows
    arrays = {name: np.concatenate([part.arrays[name] for part in rows]) for name in rows[0].arrays}
    moments: list[Any] = [part.moments for part in rows]
    return [Rows(arrays, None if any(part is None for part in moments) else np.concatenate(moments))]
