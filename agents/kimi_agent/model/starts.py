"""How long a start took, phase by phase."""

from dataclasses import dataclass

from kimi_agent.model.phases import PHASES
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
