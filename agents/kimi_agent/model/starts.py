"""How long a start took, phase by phase."""

from dataclasses import dataclass

from kimi_agent.model.phases import ORDER, PHASES
from kimi_agent.model.state import RunState


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """When the ranks went through one phase."""

    start: float
    end: float | None
    """When the last rank left it; `None` while one is in it."""


def phase_spans(run: RunState) -> dict[str, PhaseSpan]:
    """The phases that were entered: from the first rank that entered to the last that left."""
    spans: dict[str, PhaseSpan] = {}
    for phase in PHASES[:-1]:
        starts, ends, inside = [], [], False
        for rank in run.ranks:
            for index, (name, time) in enumerate(rank.entered):
                if name != phase:
                    continue
                starts.append(time)
                if index + 1 < len(rank.entered):
                    ends.append(rank.entered[index + 1][1])
                else:
                    inside = True
        if starts:
            spans[phase] = PhaseSpan(min(starts), None if inside else max(ends))
    return spans


def phase_seconds(run: RunState) -> dict[str, float]:
    """Seconds that each phase took that is over."""
    return {phase: span.end - span.start for phase, span in phase_spans(run).items() if span.end is not None}


def remaining(run: RunState, now: float) -> float | None:
    """Seconds until a start is expected to be ready, by good starts of the same launch; `None` without such.

    Of the phase that the ranks are in, its own bar tells better than the past once a fifth of it is done. 0 when the
    start is later than expected.
    """
    good, front = run.baseline, run.front
    if good is None or front is None or run.ready_time is not None or run.exited is not None:
        return None
    usual = dict(good.phases)
    # Phases overlap where ranks differ, and the median start is no sum of median phases.
    share = good.total / sum(usual.values()) if sum(usual.values()) > 0 else 1.0
    later = sum(seconds for phase, seconds in usual.items() if ORDER[phase] > ORDER[front])
    spans = phase_spans(run)
    spent = now - spans[front].start if front in spans else 0.0
    return max((later + _rest(run, front, spent, usual.get(front, 0.0))) * share, 0.0)


def _rest(run: RunState, phase: str, spent: float, usual: float) -> float:
    bar = run.progress
    if bar is not None and bar.phase == phase and bar.total > bar.done > bar.total / 5:
        return spent * (bar.total - bar.done) / bar.done
    return max(usual - spent, 0.0)


def lateness(run: RunState, now: float) -> float:
    """Seconds by which the phase that the ranks are in has outlasted the slowest good start; 0 without one."""
    front = run.front
    slowest = dict(run.baseline.slowest or run.baseline.phases).get(front or "") if run.baseline else None
    span = phase_spans(run).get(front or "")
    if slowest is None or span is None or run.ready_time is not None:
        return 0.0
    return max(now - span.start - slowest, 0.0)
