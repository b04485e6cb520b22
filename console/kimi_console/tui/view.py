"""What the panes draw from: one moment of a session."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kimi_agent.model.phases import ORDER, PHASES, READY
from kimi_agent.model.state import RunState, State
from kimi_console.source.base import Link
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Role

GLYPHS: Final[dict[str, tuple[str, Role]]] = {
    "IDLE": ("○", "dim"),
    "STARTING": ("◐", "move"),
    "READY": ("●", "good"),
    "SLOW": ("◐", "warn"),
    "HUNG": ("✖", "bad"),
    "FAILED": ("✖", "bad"),
    "STOPPING": ("◐", "move"),
    "LOST": ("◌", "warn"),
}
STALE_AFTER: Final = 10.0
"""Seconds without a sample after which a value is shown grey with its age."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The last good start of the same model and layout."""

    model: str
    tp: int
    phases: Mapping[str, float]
    """Seconds that each phase took."""
    total: float
    """Seconds from launch to ready."""


@dataclass(frozen=True, slots=True)
class View:
    """A session at one moment; `now` is on the host's clock."""

    title: str
    state: State
    link: Link
    now: float
    baseline: Baseline | None = None
    read_only: bool = False

    @property
    def run(self) -> RunState | None:
        """The latest run."""
        return self.state.run

    @property
    def lost(self) -> bool:
        """Whether what is shown may no longer be so."""
        return self.link.state in ("lost", "connecting") and self.state.time is not None

    @property
    def known(self) -> float:
        """The last moment that is known of: now, or the last event when the link is lost."""
        return self.state.time if self.lost and self.state.time is not None else self.now

    @property
    def replay(self) -> bool:
        """Whether this is a recording."""
        return self.link.state in ("replay", "ended")

    @property
    def status(self) -> tuple[str, float | None]:
        """The one status word, and since when it holds."""
        if self.link.state == "lost":
            return "LOST", self.link.since or None
        if self.run is None:
            return "IDLE", None
        return self.run.status, self.run.status_since

    def good_start(self) -> Baseline | None:
        """The baseline, if it is one of this run's model and layout."""
        run, base = self.run, self.baseline
        if run is None or base is None or (base.model, base.tp) != (run.started.model, run.started.tp):
            return None
        return base

    def stale(self, time: float | None) -> str:
        """The age of a sample, in words, when it is too old to be true now; else nothing."""
        if time is None or not (self.now - time > STALE_AFTER or self.lost):
            return ""
        return fmt.age(self.now - time)


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


def front(run: RunState) -> str:
    """The phase of the slowest rank."""
    return min((rank.phase for rank in run.ranks), key=ORDER.__getitem__, default=READY)


def baseline_of(run: RunState) -> Baseline | None:
    """What a run teaches about a good start; nothing before it was ready."""
    if run.ready_time is None:
        return None
    spans = phase_spans(run)
    phases = {phase: (span.end or run.ready_time) - span.start for phase, span in spans.items()}
    return Baseline(run.started.model, run.started.tp, phases, run.ready_time - run.time)


def short_model(path: str) -> str:
    """A model's name without its directory or organisation."""
    return path.rstrip("/").rsplit("/", 1)[-1] or path


def run_end(run: RunState, now: float) -> float:
    """Now, or when the run ended."""
    return run.exit_time if run.exit_time is not None else now
