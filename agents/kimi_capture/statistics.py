"""Per-boundary statistics of hidden states, in one pass that stays in the cache."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

BLOCK: Final = 1 << 17
"""Elements worked on at a time."""
SAFE: Final = 1e15
"""Largest magnitude whose square, summed over a block, stays within float32."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of all elements of one boundary, non-finite ones left out of `rms` and `max_abs`."""

    rms: float
    max_abs: float
    non_finite: int
    zero_rows: int
    """Rows that are zero throughout: never a real hidden state."""


def statistics(states: npt.NDArray[Any]) -> Statistics:
    """Statistics of rows [N, H]: float16, float32, or uint16 holding bf16."""
    rows, width = states.shape
    step = max(1, BLOCK // max(width, 1))
    squares, count, largest, non_finite, zero_rows = 0.0, 0, 0.0, 0, 0
    for first in range(0, rows, step):
        block = _float32(states[first : first + step])
        magnitude = np.abs(block)
        top = float(magnitude.max(initial=0.0))
        if not np.isfinite(top):
            finite = np.isfinite(block)
            non_finite += int(block.size - finite.sum())
            block, magnitude = np.where(finite, block, 0), np.where(finite, magnitude, 0)
            count -= int(block.size - finite.sum())
            zero_rows += int((~(magnitude.any(axis=1) | ~finite.all(axis=1))).sum())
            top = float(magnitude.max(initial=0.0))
        else:
            zero_rows += int((~magnitude.any(axis=1)).sum())
        flat = block.ravel() if top < SAFE else block.ravel().astype(np.float64)
        squares += float(np.dot(flat, flat))
        count += block.size
        largest = max(largest, top)
    return Statistics(float(np.sqrt(squares / count)) if count else 0.0, largest, non_finite, zero_rows)


def _float32(block: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if block.dtype == np.uint16:
        return (block.astype(np.uint32) << 16).view(np.float32)
    return block.astype(np.float32)
