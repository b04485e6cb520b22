"""Which rows of a sample cannot be right, and which stand out: the one place that says so, and by which limit.

Cannot be right, whatever the model: a value that is not finite; a row that is zero throughout; a position out of place;
a row that equals the one before it bit by bit. The last has two exceptions: at boundary 0, the embedding, equal tokens
have equal rows, and a sequence that so far is one token over and over attends to equal values only, whatever their
positions: a real engine's rows of `a a` are equal in every layer.

Stands out: a norm far from those of the same layer in the same sample. Norms of one layer spread by a few tens of
percent, so `FACTOR` alone keeps quiet samples quiet, and `SPREADS` those whose norms vary more. The sample's first
tokens are left out at the high side: attention that no other token wants ends there, which makes their states hundreds
of times larger in the middle layers of most models, by design.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from kimi_agent.shards.content import wrong_positions
from kimi_capture.format import Array, Sample
from kimi_capture.statistics import LARGEST, NON_FINITE, PRODUCT, SQUARES

FACTOR: Final = 4.0
"""A norm that stands out is at least this many times the layer's median, or this part of it."""
SPREADS: Final = 8.0
"""It is also this many standard deviations away, in logarithms, with the deviation taken from their median one."""
LEAST: Final = 16
"""Rows without which nothing can be said to stand out."""
SINKS: Final = 4
"""First positions at which a large norm is what models do."""
BROKEN, ZERO, SAME, PLACE, LARGE, SMALL = (1 << bit for bit in range(6))
BAD: Final = BROKEN | ZERO | SAME | PLACE
OUTLIER: Final = LARGE | SMALL
WORDS: Final = {
    BROKEN: "not finite", ZERO: "all zero", SAME: "equal to the row before",
    LARGE: f"norm over {FACTOR:g} times its median", SMALL: f"norm under 1/{FACTOR:g} of its median",
}  # fmt: skip
Flags = npt.NDArray[np.uint8]


def equal_to_before(states: Array, moments: Array, first: int) -> npt.NDArray[np.bool_]:
    """[n − first] whether rows from `first` on, of [n, H] states, equal the row before bit by bit; row 0 never does.

    Equal rows have equal moments [n, 4], so only such rows are compared.
    """
    found = np.zeros(len(states) - first, bool)
    begin = max(first, 1)
    alike = (moments[begin:, :PRODUCT] == moments[begin - 1 : -1, :PRODUCT]).all(axis=1)
    for row in (np.flatnonzero(alike) + begin).tolist():
        found[row - first] = np.array_equal(states[row].view(np.uint8), states[row - 1].view(np.uint8))
    return found


def row_flags(
    moments: Array, equal: Array, *, tokens: Array, positions: Array, sample: Sample, names: tuple[str, ...]
) -> Flags:  # fmt: skip
    """[n, layers] what is wrong with each row at each layer.

    Args:
        moments: [n, layers, 4], see `kimi_capture.statistics`.
        equal: [n, layers] whether a row equals the one before.
        tokens: [n].
        positions: [n].
        sample: whose first rows these are.
        names: of the layers: boundaries, then `last`.
    """
    flags = np.zeros(equal.shape, np.uint8)
    flags[moments[:, :, NON_FINITE] > 0] |= BROKEN
    flags[(moments[:, :, LARGEST] == 0) & (moments[:, :, NON_FINITE] == 0)] |= ZERO
    flags[equal & ~_may_be_equal(tokens, names)] |= SAME
    flags[wrong_positions(positions, sample)] |= PLACE
    for column in range(len(names)):
        flags[:, column] |= _outliers(moments[:, column, SQUARES], positions, flags[:, column] > 0)
    return flags


def words(flags: Flags, names: tuple[str, ...], position: int) -> str:
    """What is wrong with one row, [layers] of `row_flags`: `not finite at 31, last; position 8 is out of place`."""
    told = []
    for bit, text in WORDS.items():
        layers = [name for name, flag in zip(names, flags.tolist(), strict=True) if flag & bit]
        if layers:
            told.append(f"{text} at {', '.join(layers)}")
    if (flags & PLACE).any():
        told.append(f"position {position} is out of place")
    return "; ".join(told)


def _may_be_equal(tokens: Array, names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """[n, layers] where a row may equal the one before."""
    alike = np.zeros((len(tokens), len(names)), bool)
    if len(tokens):
        alike[:] = np.logical_and.accumulate(tokens == tokens[0])[:, None]
    for column, name in enumerate(names):
        if name == "0":
            alike[1:, column] |= tokens[1:] == tokens[:-1]
    return alike


def _outliers(squares: Array, positions: Array, bad: Array) -> Flags:
    flags = np.zeros(len(squares), np.uint8)
    usable = ~bad & (squares > 0) & np.isfinite(squares)
    if int(usable.sum()) < LEAST:
        return flags
    logs = np.log(squares[usable]) / 2
    away = logs - np.median(logs)
    limit = max(float(np.log(FACTOR)), SPREADS * 1.4826 * float(np.median(np.abs(away))))
    found = np.where(away > limit, LARGE, np.where(away < -limit, SMALL, 0)).astype(np.uint8)
    found[(positions[usable] < SINKS) & (found == LARGE)] = 0
    flags[usable] = found
    return flags
