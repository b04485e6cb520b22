"""How long a start may stand still before that means something: held against good starts, else fixed seconds."""

from typing import Final

from kimi_agent.model.events import BaselineKnown

LEAST_MARGIN: Final = 15.0
MOST_MARGIN: Final = 60.0
"""Seconds granted beyond the longest silence of any good start: half of it again, within these bounds."""
LEAST_SHARE: Final = 2 / 3
"""Of the fixed limit: fast starts do not make the doctor jumpy on a host that is busy today."""


def silence_limit(phase: str, baseline: BaselineKnown | None, fixed: float) -> float:
    """Seconds without progress in `phase` (the earliest that a rank is in) after which a start counts as stuck.

    The longest silence that a good start of the same launch had there, and half of it again, but no less than a share
    of `fixed`, which alone counts where no good start is known.
    """
    longest = dict(baseline.silences).get(phase) if baseline is not None else None
    return fixed if longest is None else max(longest + _margin(longest), LEAST_SHARE * fixed)


def is_late(phase: str, late: float, baseline: BaselineKnown | None) -> bool:
    """Whether a phase that has outlasted the slowest good start by `late` seconds is slow, though it advances."""
    slowest = dict(baseline.slowest or baseline.phases).get(phase) if baseline is not None else None
    return slowest is not None and late > _margin(slowest)


def _margin(usual: float) -> float:
    return min(max(usual / 2, LEAST_MARGIN), MOST_MARGIN)
