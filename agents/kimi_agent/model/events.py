"""The events: the only currency between agent, wire, recording, replay, headless mode and tests.

An event is an envelope (`Event`: sequence number, time) around one body. Bodies are frozen dataclasses of plain
values, so that they cross JSON unchanged; `BODIES` maps the wire's kind to the class. Times are Unix seconds, sizes
bytes, rates per second. `None` means "not seen", never zero.
"""

from dataclasses import dataclass, field
from typing import Final

from kimi_agent.model.bisect import BisectChanged


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """An agent took over the journal; a later one in the same journal is a restart."""

    version: str
    host: str
    pid: int
    python: str
    sglang: str | None
    """Version of the SGLang installed beside the agent."""
    boot_id: str
    cpus: int
    memory: int


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A server process was started (or, with `adopted`, found running by a restarted agent)."""

    run: str
    name: str
    model: str
    argv: tuple[str, ...]
    pid: int
    tp: int
    ranks: tuple[str, ...]
    """Every scheduler rank on this host, as SGLang tags them: `TP0`, `DP0 TP1`."""
    host: str
    port: int
    log: str
    """Path of the server's own log on the host."""
    python: str
    sglang: str | None
    capture: bool
    layers: tuple[int, ...] = ()
    """The layer ids given to SGLang, in the flag's own spelling."""
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class BaselineKnown:
    """Good starts of the same model, layout, SGLang and flags, to hold this one against."""

    run: str
    """The run that they are a measure for."""
    time: float
    """When the last of them was launched."""
    phases: tuple[tuple[str, float], ...]
    """(phase, seconds from the first rank that entered it to the last that left it), the median of the starts."""
    total: float
    """Seconds from launch to ready, the median of the starts."""
    starts: int = 1
    """How many good starts these figures are made of."""
    slowest: tuple[tuple[str, float], ...] = ()
    """(phase, seconds) as in `phases`, of the slowest start."""
    silences: tuple[tuple[str, float], ...] = ()
    """(phase, longest seconds without progress while it was the earliest that a rank was in), over all starts."""


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """The run's one status word, with the reason in words."""

    run: str
    status: str
    """STARTING READY SLOW HUNG FAILED STOPPING IDLE"""
    reason: str


@dataclass(frozen=True, slots=True)
class LogLines:
    """Lines of the server's log, stripped of terminal escapes and line ends."""

    run: str
    first: int
    """Number of the first line, from 0."""
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PhaseEntered:
    """A rank entered a phase; all earlier phases are behind it."""

    run: str
    rank: str
    phase: str


@dataclass(frozen=True, slots=True)
class PhaseProgress:
    """A progress bar in the log moved: shards loaded, graphs captured, kernels compiled."""

    run: str
    rank: str
    phase: str
    done: int
    total: int
    what: str


@dataclass(frozen=True, slots=True)
class LogUnmatched:
    """Lines of the start that read like the opening of a phase in words that are not known: a new SGLang's, perhaps."""

    run: str
    lines: int
    seconds: float
    """Seconds from such lines to the next known one, which may belong to another phase than is shown."""
    last: str
    """The last of them."""


@dataclass(frozen=True, slots=True)
class RankSample:
    """One scheduler rank's process as /proc shows it."""

    rank: str
    pid: int
    state: str
    """R S D T Z, or X when it has vanished."""
    cpu: float | None
    """Percent of one core since the last sample."""
    rss: int | None
    major_faults: float | None
    """Per second since the last sample."""
    read_rate: float | None
    """Bytes per second read from storage since the last sample."""
    wchan: str | None
    gpu: int | None
    compiling: tuple[str, ...] = ()
    """Names of compilers running below this rank (nvcc, ninja, cicc, ptxas, …)."""


@dataclass(frozen=True, slots=True)
class RanksSampled:
    """All ranks of the run, and its main and detokenizer processes under their own names."""

    run: str
    ranks: tuple[RankSample, ...]


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU as NVML shows it; `None` where NVML has no value."""

    index: int
    name: str
    memory_used: int | None
    memory_total: int | None
    utilisation: int | None
    """Percent."""
    power: float | None
    """Watts."""
    power_limit: float | None
    temperature: int | None
    clock: int | None
    """SM clock, MHz."""
    ecc_errors: int | None
    processes: tuple[tuple[int, int], ...] = ()
    """(pid, bytes) of each compute process."""


@dataclass(frozen=True, slots=True)
class HostSampled:
    """Host memory, load and GPUs."""

    memory_total: int
    memory_used: int
    load: float
    """1-minute load average."""
    cpu: float | None
    """Percent of all cores since the last sample."""
    gpus: tuple[GpuSample, ...] = ()
    no_gpu: str | None = None
    """Why there are no GPU values, in words."""


@dataclass(frozen=True, slots=True)
class ThroughputSampled:
    """The engine's counters; rates are deltas between two polls, `None` where an end is missing."""

    run: str
    prefill_rate: float | None
    decode_rate: float | None
    running: int | None
    waiting: int | None
    tokens_used: int | None
    token_capacity: int | None
    engine_age: float | None
    """Seconds since the scheduler itself last published its load; stands still in a hang."""
    source: str
    """`loads`, `log` or why there is none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the doctor says, with its evidence. `kind` is one of DESIGN.md §4's names."""

    kind: str
    summary: str
    rank: str | None = None
    confidence: float = 0.0
    evidence: tuple[str, ...] = ()
    """Each line begins with where it was read: log, proc, nvml, stack, port, plugin."""
    ruled_out: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VerdictChanged:
    """The doctor changed its mind about a run."""

    run: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class CaptureReported:
    """A rank's plugin reported what it hooked; boundary b is the residual stream after b blocks."""

    run: str
    rank: str
    pid: int
    writer: bool
    model_class: str | None
    boundaries: tuple[int, ...]
    """The physical boundaries, read back from the model's `layers_to_capture`."""
    hidden_size: int | None
    dtype: str | None
    plugin: str
    """Plugin version."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DumpSampled:
    """A dump's state and accounts; all token counts are rows of the model."""

    run: str
    dump: str
    state: str
    """idle, writing, draining, stopped, paused, failed"""
    directory: str
    served: int
    captured: int
    """Rows staged or written, of requests that are complete or still running."""
    committed: int
    """Rows in committed shards."""
    missing: tuple[tuple[str, int], ...]
    """(reason, rows) of rows that a trainer will not find."""
    samples: int
    shards: int
    bytes: int
    rate: float | None
    """Rows per second since the last sample."""
    bytes_per_token: int | None
    free: int | None
    """Bytes free on the dump's file system."""
    errors: tuple[str, ...] = ()
    write_errors: int = 0
    """Writes that failed, every try counted."""
    reason: str | None = None
    """Why it is paused or failed."""
    started: float | None = None
    """Unix time; shards committed before are of an earlier run that this one resumed."""
    self_check: str | None = None
    """What the rows look like: the head's logits against the engine's, broken rows, RMS; None when not known yet."""
    held_back: float | None = None
    """Seconds, over all writers, for which capture held the engine back since the dump began."""


@dataclass(frozen=True, slots=True)
class ShardCommitted:
    """A shard was committed: it is complete, durable and listed."""

    run: str
    dump: str
    path: str
    rows: int
    samples: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RunExited:
    """The server's process is gone and its teardown was checked."""

    run: str
    code: int | None
    """Exit code, negative for a signal; `None` when another agent had started it."""
    asked: bool
    """Whether an operator stopped it."""
    left: tuple[str, ...] = ()
    """What could not be released: processes, ports, /dev/shm segments."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something an operator should read: info, warning or error."""

    level: str
    text: str
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that a client asked for and that no longer exist; made by the reader, never journaled."""

    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state up to this event, with the end of the log, in place of all events before; never journaled."""

    state: object
    """A `kimi_agent.model.state.State`, which is made of these events and so cannot be named here."""
    first: int = 0
    """Number of the first of `lines` in the log of the state's run."""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """A body of a kind that this version does not know, kept as it came."""

    kind: str
    data: dict[str, object] = field(default_factory=dict)


Body = (
    AgentStarted | RunStarted | BaselineKnown | StatusChanged | LogLines | PhaseEntered | PhaseProgress | LogUnmatched
    | RanksSampled
    | HostSampled | ThroughputSampled | VerdictChanged | CaptureReported | DumpSampled | ShardCommitted
    | RunExited | Note | Gap | BisectChanged | Snapshot | Unknown
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """One body at its place in the journal."""

    seq: int
    """Counts from 1 without holes within a journal, over agent restarts too."""
    time: float
    body: Body


BODIES: Final[dict[str, type]] = {
    "agent": AgentStarted,
    "run": RunStarted,
    "baseline": BaselineKnown,
    "status": StatusChanged,
    "log": LogLines,
    "phase": PhaseEntered,
    "progress": PhaseProgress,
    "unmatched": LogUnmatched,
    "ranks": RanksSampled,
    "host": HostSampled,
    "throughput": ThroughputSampled,
    "verdict": VerdictChanged,
    "capture": CaptureReported,
    "dump": DumpSampled,
    "shard": ShardCommitted,
    "exit": RunExited,
    "note": Note,
    "gap": Gap,
    "bisect": BisectChanged,
}

KINDS: Final[dict[type, str]] = {body: kind for kind, body in BODIES.items()}
