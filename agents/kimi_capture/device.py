"""Moments of rows on the GPU: one kernel, nothing allocated. Imported only where CUDA is."""

from typing import TYPE_CHECKING, Final

import triton
import triton.language as tl

from kimi_capture.statistics import MOMENTS

if TYPE_CHECKING:
    import torch

BLOCK: Final = 1024
"""Elements that one program looks at at a time."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _clean(pointer, offsets, width):  # type: ignore[no-untyped-def]
    """The elements in float32, non-finite ones as zero, and which of them those were."""
    values = tl.load(pointer + offsets, mask=offsets < width, other=0.0).to(tl.float32)
    finite = tl.abs(values) < float("inf")
    return tl.where(finite, values, 0.0), tl.where(finite, 0.0, 1.0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _moments(aux, last, out, K: tl.constexpr, H: tl.constexpr, size: tl.constexpr, count: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803, PLR0917
    """One program: one boundary of one row. Neighbours share what they read, so that it comes from memory once.

    The order of its sums depends on H alone: equal rows have equal moments.
    """
    row = (tl.program_id(0) // (K + 1)).to(tl.int64)
    column = tl.program_id(0) % (K + 1)
    before = aux + (row * K + tl.maximum(column - 1, 0)) * H
    if column < K:  # noqa: SIM108 - the compiler knows no conditional expression of pointers
        own = aux + (row * K + column) * H
    else:
        own = last + row * H
    squares = tl.zeros([size], tl.float32)
    largest = tl.zeros([size], tl.float32)
    broken = tl.zeros([size], tl.float32)
    product = tl.zeros([size], tl.float32)
    for start in range(0, H, size):
        offsets = start + tl.arange(0, size)
        values, bad = _clean(own, offsets, H)
        others, _ = _clean(before, offsets, H)
        squares += values * values
        largest = tl.maximum(largest, tl.abs(values))
        broken += bad
        product += values * others
    target = out + (row * (K + 1) + column) * count
    tl.store(target, tl.sum(squares, 0))
    tl.store(target + 1, tl.max(largest, 0))
    tl.store(target + 2, tl.sum(broken, 0))
    tl.store(target + 3, tl.where(column > 0, tl.sum(product, 0), 0.0))


def write_moments(aux: "torch.Tensor", last: "torch.Tensor", out: "torch.Tensor") -> None:
    """Moments of aux states [T, K, H] and last states [T, H] into `out` [T, K+1, 4] float32, on the current stream."""
    rows, boundaries, hidden = aux.shape
    _moments[(rows * (boundaries + 1),)](aux, last, out, boundaries, hidden, BLOCK, MOMENTS, num_warps=4)
