"""Per-boundary statistics of hidden states: moments of every row, summed up to one entry a boundary.

A row's moments are four numbers that need one pass over it. They are computed where the rows are (on the GPU by
`kimi_capture.device`, else here), so that a shard's statistics cost the host a few numbers a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

BLOCK: Final = 1 << 17
"""Elements worked on at a time, so that they stay in the cache."""
SAFE: Final = 1e15
"""Largest magnitude whose square, summed over a row, stays within float32."""
MOMENTS: Final = 4
"""Numbers a row: sum of squares, largest magnitude, non-finite elements, product with the boundary before.

Non-finite elements count as zero in the other three.
"""
SQUARES, LARGEST, NON_FINITE, PRODUCT = range(MOMENTS)
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of all elements of one boundary, non-finite ones left out of `rms` and `max_abs`."""

    rms: float
    max_abs: float
    non_finite: int
    zero_rows: int
    """Rows that are zero throughout: never a real hidden state."""
    duplicate_rows: int = 0
    """Rows that equal the row before them, element by element."""
    cosine_before: float | None = None
    """Mean cosine of a row with the same row of the boundary before; None for the first one and where unknown."""


def statistics(states: Array, before: Array | None = None) -> Statistics:
    """Statistics of rows [N, H]: float16, float32, or uint16 holding bf16; `before` is the boundary before."""
    own = row_moments(states, before)
    prior = None if before is None else row_moments(before)
    return summarize(own, prior, lambda row: states[row])


def shard_moments(aux: Array, last: Array) -> Array:
    """Moments [N, K+1, 4] of aux states [N, K, H] and last states [N, H], float64."""
    moments = np.empty((len(last), aux.shape[1] + 1, MOMENTS))
    before: Array | None = None
    for column in range(aux.shape[1] + 1):
        states = aux[:, column] if column < aux.shape[1] else last
        moments[:, column] = row_moments(states, before)
        before = states
    return moments


def shard_statistics(moments: Array, names: Sequence[str], row: Callable[[int, int], Array]) -> dict[str, Statistics]:
    """Statistics by name out of moments [N, K+1, 4]; `row(n, column)` gives a row's elements [H] when asked for."""
    return {
        name: summarize(
            moments[:, column], moments[:, column - 1] if column else None, partial(_row_of_column, row, column)
        )
        for column, name in enumerate(names)
    }


def row_moments(states: Array, before: Array | None = None) -> npt.NDArray[np.float64]:
    """Moments [N, 4] of rows [N, H]; the product is 0 without `before`."""
    rows, width = states.shape
    moments = np.zeros((rows, MOMENTS))
    step = max(1, BLOCK // max(width, 1))
    for first in range(0, rows, step):
        part = slice(first, first + step)
        block, bad = _finite(states[part])
        moments[part, NON_FINITE] = bad
        largest = np.maximum(block.max(axis=1, initial=0.0), -block.min(axis=1, initial=0.0))
        moments[part, LARGEST] = largest
        if largest.max(initial=0.0) >= SAFE:
            block = block.astype(np.float64)
        moments[part, SQUARES] = np.einsum("ij,ij->i", block, block)
        if before is not None:
            moments[part, PRODUCT] = np.einsum("ij,ij->i", block, _finite(before[part])[0])
    return moments


def summarize(moments: Array, before: Array | None, row: Callable[[int], Array]) -> Statistics:
    """One boundary's entry out of its moments [N, 4] and those of the boundary before.

    Two equal rows have equal moments, so only such neighbours are fetched by `row` and compared.
    """
    squares = moments[:, SQUARES].astype(np.float64)
    for number in np.flatnonzero(~np.isfinite(squares)).tolist():
        squares[number] = row_moments(row(number)[None])[0, SQUARES]
    non_finite = int(moments[:, NON_FINITE].sum())
    zero = (moments[:, LARGEST] == 0) & (moments[:, NON_FINITE] == 0)
    alike = (moments[1:, :PRODUCT] == moments[:-1, :PRODUCT]).all(axis=1)
    duplicates = sum(_equal(row(n), row(n + 1)) for n in np.flatnonzero(alike).tolist())
    return Statistics(
        rms=_rms(squares, non_finite, row),
        max_abs=float(moments[:, LARGEST].max(initial=0.0)),
        non_finite=non_finite,
        zero_rows=int(zero.sum()),
        duplicate_rows=duplicates,
        cosine_before=None if before is None else _cosine(moments, squares, before),
    )


def _rms(squares: Array, non_finite: int, row: Callable[[int], Array]) -> float:
    count = len(squares) * row(0).size - non_finite if len(squares) else 0
    return float(np.sqrt(squares.sum() / count)) if count else 0.0


def _cosine(moments: Array, squares: Array, before: Array) -> float | None:
    prior = before[:, SQUARES].astype(np.float64)
    usable = (squares > 0) & (prior > 0) & np.isfinite(prior) & np.isfinite(moments[:, PRODUCT])
    usable &= (moments[:, NON_FINITE] == 0) & (before[:, NON_FINITE] == 0)
    if not usable.any():
        return None
    return float((moments[usable, PRODUCT] / np.sqrt(squares[usable]) / np.sqrt(prior[usable])).mean())


def _row_of_column(row: Callable[[int, int], Array], column: int, number: int) -> Array:
    return row(number, column)


def _equal(one: Array, other: Array) -> bool:
    return bool(np.array_equal(one, other))


def _finite(block: Array) -> tuple[Array, Array | int]:
    """The block as float32 with zeros for non-finite elements, and how many those were in each row."""
    values = _float32(block)
    if np.isfinite(values.max(initial=0.0)) and np.isfinite(values.min(initial=0.0)):
        return values, 0
    finite = np.isfinite(values)
    return np.where(finite, values, np.float32(0)), (~finite).sum(axis=1)


def _float32(block: Array) -> npt.NDArray[np.float32]:
    if block.dtype == np.uint16:
        return (block.astype(np.uint32) << 16).view(np.float32)
    return block.astype(np.float32)
