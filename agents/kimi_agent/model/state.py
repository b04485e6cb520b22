"""The state of one host as a pure fold of its events; every pane draws from it and from nothing else."""

from dataclasses import dataclass, field

from kimi_agent.model.bisect import BisectChanged
from kimi_agent.model.events import (
    AgentStarted,
    BaselineKnown,
    CaptureReported,
    DumpSampled,
    HostSampled,
    LogUnmatched,
    RankSample,
    RunExited,
    RunStarted,
    ShardCommitted,
    ThroughputSampled,
    Verdict,
)
from kimi_agent.model.phases import IMPORT, ORDER

RING_SIZE = 500
SHARDS_KEPT = 2000
HISTORY_SIZE = 240


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank's place in the start."""

    rank: str
    phase: str = IMPORT
    since: float = 0.0
    """When it entered the phase."""
    entered: tuple[tuple[str, float], ...] = ()
    """(phase, time) of every phase entered, in order."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The last position of a progress bar."""

    phase: str
    done: int
    total: int
    what: str
    time: float


@dataclass(frozen=True, slots=True)
class RingEntry:
    """A change of state or verdict, a note, a commit: what must be readable after the fact."""

    time: float
    level: str
    """info, good, warning or error."""
    text: str


@dataclass(frozen=True, slots=True)
class RunState:
    """All that is known of one run."""

    started: RunStarted
    time: float
    """When it was started."""
    baseline: BaselineKnown | None = None
    status: str = "STARTING"
    status_reason: str = ""
    status_since: float = 0.0
    ranks: tuple[RankState, ...] = ()
    progress: Progress | None = None
    moved: float = 0.0
    """When a rank last entered a phase or a bar moved."""
    silences: tuple[tuple[str, float], ...] = ()
    """(phase, longest seconds without progress while it was the earliest that a rank was in), until ready."""
    stopped: bool = False
    """Whether a process was seen stopped (SIGSTOP, a debugger) before it was ready."""
    unmatched: LogUnmatched | None = None
    samples: tuple[RankSample, ...] = ()
    samples_time: float | None = None
    ready_time: float | None = None
    throughput: ThroughputSampled | None = None
    throughput_time: float | None = None
    prefill_history: tuple[float | None, ...] = ()
    decode_history: tuple[float | None, ...] = ()
    verdict: Verdict | None = None
    verdict_time: float | None = None
    capture: tuple[CaptureReported, ...] = ()
    dump: DumpSampled | None = None
    dump_time: float | None = None
    shards: tuple[ShardCommitted, ...] = ()
    log_lines: int = 0
    exited: RunExited | None = None
    exit_time: float | None = None

    def past(self, phase: str) -> int:
        """How many ranks have left `phase` behind."""
        return sum(1 for rank in self.ranks if ORDER[rank.phase] > ORDER[phase])

    def laggards(self, phase: str) -> tuple[str, ...]:
        """The ranks that have not yet left `phase` behind."""
        return tuple(rank.rank for rank in self.ranks if ORDER[rank.phase] <= ORDER[phase])

    @property
    def front(self) -> str | None:
        """The earliest phase that a rank is in; `None` without ranks."""
        return min((rank.phase for rank in self.ranks), key=ORDER.__getitem__, default=None)

    @property
    def alive(self) -> bool:
        """Whether the run has not ended."""
        return self.exited is None


@dataclass(frozen=True, slots=True)
class State:
    """One host: its agent, its host sample, its latest run, and the ring of changes."""

    agent: AgentStarted | None = None
    run: RunState | None = None
    host: HostSampled | None = None
    host_time: float | None = None
    bisect: BisectChanged | None = None
    """The latest bisection, also one that has ended."""
    ring: tuple[RingEntry, ...] = ()
    gaps: int = 0
    unknown: int = 0
    """Events of kinds that this version does not know."""
    seq: int = 0
    time: float | None = None
    """Time of the last event."""
    run_count: int = field(default=0)
