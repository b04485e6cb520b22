"""`Evidence`: everything the rules may look at, frozen at one moment.

`None` and empty mean "not looked at" or "not seen": a rule must not read them as a good sign.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from kimi_agent.doctor.facts import Answer, Deep, Kernel
from kimi_agent.doctor.limits import silence_limit
from kimi_agent.engine.failures import Raised
from kimi_agent.engine.phases import PhaseTracker
from kimi_agent.engine.titles import DETOKENIZER, absent_ranks
from kimi_agent.model.events import BaselineKnown, GpuSample, RankSample, RunExited, ThroughputSampled
from kimi_agent.model.phases import GRAPHS, ORDER, PORT, READY
from kimi_agent.model.starts import lateness
from kimi_agent.model.state import Progress, RankState, RunState

GONE: Final = "XZ"
"""States of a process that runs no more."""
Times = tuple[tuple[str, float], ...]
"""(name of a process, Unix seconds)."""
Compiled = tuple[tuple[str, float, tuple[str, ...]], ...]
"""(rank, Unix seconds, compilers) of the last compilers seen below each rank."""
CROWDED: Final = 90.0
"""Percent of all cores above which processes wait for each other."""
PAUSE: Final = 10.0
"""Seconds between two compilers of one build: kernels are built one after the other, with Python in between."""
REST: Final = 5.0
"""Percent of a core below which a process only waits."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds after which silence means something."""

    notice: float = 15.0
    """A harmless cause (compiling, slow storage) is named after this."""
    straggler: float = 30.0
    silent: float = 45.0
    importing: float = 90.0
    """Silence in the import phase, where nothing is logged in a good start either."""
    deadlock: float = 30.0
    """Silence after which two equal looks at every rank's stack are proof enough."""
    warm_up: float = 30.0
    patience: float = 300.0
    """Silence after which even a busy server is called hung."""
    heartbeat: float = 10.0
    """Age of the engine's heartbeat; a healthy one is about a second, busy or idle."""
    plugin: float = 5.0
    """Grace for a plugin's report once its rank should have made it."""
    barrier: float = 480.0
    """SGLang's own barrier after loading: it ends the server when a rank comes later."""


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the log alone says went wrong."""

    exception: Raised | None = None
    failed: str | None = None
    port_line: str | None = None
    memory_line: str | None = None
    memory_rank: str | None = None
    watchdog_rank: str | None = None
    watchdog_line: str | None = None
    warm_up_error: str | None = None
    died: str | None = None
    died_code: int | None = None
    follower: bool = False
    stopping: bool = False
    reached: bool = False
    """Whether an HTTP request has reached the server, its own included."""
    untagged: bool = False
    """Whether the log names no ranks: how many are past a phase is known, which is not."""
    unmatched: int = 0

    @classmethod
    def of(cls, tracker: PhaseTracker) -> "LogFacts":
        """The facts of a log read so far."""
        failures = tracker.failures
        died = None
        if failures.died is not None:
            index = failures.died[0]
            died = tracker.ranks[index] if index < len(tracker.ranks) else f"rank {index}"
        return cls(
            exception=failures.first,
            failed=failures.failed,
            port_line=failures.port_line,
            memory_line=failures.memory_line,
            memory_rank=failures.memory_rank,
            watchdog_rank=failures.watchdog.rank if failures.watchdog else None,
            watchdog_line=failures.watchdog.message if failures.watchdog else None,
            warm_up_error=failures.warm_up_error,
            died=died,
            died_code=failures.died[1] if failures.died else None,
            follower=tracker.follower,
            stopping=tracker.stopping,
            reached=tracker.reached,
            untagged=tracker.untagged,
            unmatched=tracker.unmatched,
        )


UNREAD: Final = Kernel(skipped="not looked at")


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of the host beside the run's own events."""

    gpus: tuple[GpuSample, ...] = ()
    no_gpu: str | None = None
    """Why NVML has nothing to say."""
    host_cpu: float | None = None
    """Percent of all cores busy."""
    kernel: Kernel = UNREAD
    deep: Deep | None = None
    """The last close look; old ones are kept, see `Evidence.fresh`."""
    proxy: tuple[str, str] | None = None
    """(variable, where it leads) when the main process would ask itself through a proxy."""
    port_open: bool | None = None
    plugin_pids: frozenset[int] | None = None
    """Processes in which the plugin was loaded, which it is before the weights; `None` when not looked at."""
    canary: Answer | None = None
    """The last canary's fate; `None` when none was sent."""
    canary_time: float | None = None
    """When that was known, Unix seconds."""
    log_full: str | None = None
    """Where the server's log is, when there is no space left."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One run at one moment."""

    now: float
    ranks: tuple[RankState, ...]
    silent: float | None
    """Seconds since a phase was entered or a bar moved; `None` when there is no clock to tell."""
    facts: LogFacts = field(default_factory=LogFacts)
    live: bool = True
    """Whether the host is looked at too; `False` for a log alone."""
    samples: tuple[RankSample, ...] = ()
    dead: tuple[str, ...] = ()
    """Ranks that have vanished, the first one first."""
    throughput: ThroughputSampled | None = None
    throughput_age: float | None = None
    heartbeat: float | None = None
    """When the engine last moved, as far as was ever heard (Unix seconds)."""
    progress: Progress | None = None
    exited: RunExited | None = None
    capture: bool = False
    heartbeats: frozenset[str] = frozenset()
    """Ranks whose capture plugin has reported what it hooked, which it can once the KV cache stands."""
    seen: Seen = Seen()
    port: int | None = None
    baseline: BaselineKnown | None = None
    late: float = 0.0
    """Seconds by which the present phase has outlasted the slowest good start."""
    absent: tuple[str, ...] = ()
    """Ranks of this server that run on other nodes."""
    stopped_since: Times = ()
    """(name, Unix seconds) of the processes that were seen stopped at every look since."""
    compiling_since: Times = ()
    """The same, for `compiling`."""
    compiled: Compiled = ()
    waiting_since: Times = ()
    """The same, for an uninterruptible wait."""
    held_since: Times = ()
    """The same for a detokenizer that sleeps on something else than its queue, which it never does for long."""
    quiet_since: float | None = None
    """Since when no process of the run computed or read and no GPU worked; `None` while one does."""
    stopping: bool = False
    """Whether an operator asked for the stop."""
    limits: Limits = Limits()

    @property
    def ready(self) -> bool:
        """Whether every rank is past the server's own word that it is ready."""
        return bool(self.ranks) and all(rank.phase == READY for rank in self.ranks)

    @property
    def phase(self) -> str | None:
        """The earliest phase that a rank is still in."""
        return min((rank.phase for rank in self.ranks), key=ORDER.__getitem__, default=None)

    @property
    def gpus(self) -> tuple[GpuSample, ...]:
        """All GPUs of the host, by the last sample."""
        return self.seen.gpus

    @property
    def kernel(self) -> Kernel:
        """What the kernel said since the run began."""
        return self.seen.kernel

    @property
    def deep(self) -> Deep | None:
        """The last close look, however old: for facts that do not change by themselves."""
        return self.seen.deep

    @property
    def fresh(self) -> Deep | None:
        """The last close look, when the run has not moved since: for stacks, locks and downloads."""
        deep = self.seen.deep
        if deep is None:
            return None
        moved = (self.heartbeat or 0.0) if self.ready else self.now - (self.silent or 0.0)
        # While the detokenizer is held up, the scheduler moves on without it.
        moved = min([moved, *(since for _, since in self.held_since)])
        return deep if deep.time >= moved else None

    def limit(self, fixed: float) -> float:
        """Seconds of silence that mean something in the present phase: by good starts, else `fixed`."""
        return silence_limit(self.phase, self.baseline, fixed) if self.phase is not None else fixed

    def sample(self, rank: str) -> RankSample | None:
        """The process of a rank, where it was seen."""
        return next((sample for sample in self.samples if sample.rank == rank), None)

    @property
    def compiling(self) -> dict[str, tuple[float, tuple[str, ...]]]:
        """By rank, when compilers were last seen below it, `PAUSE` seconds ago at most, and which."""
        recent = {rank: (time, tools) for rank, time, tools in self.compiled if self.now - time <= PAUSE}
        return recent | {one.rank: (self.now, one.compiling) for one in self.samples if one.compiling}

    def laggards(self) -> tuple[str, ...]:
        """The ranks in the earliest phase, when others are further; empty when all are level.

        Only the first rank of a group logs that it is done with its graphs, so that is no lead.
        """
        places = {rank.rank: _comparable(rank.phase) for rank in self.ranks}
        last = min(places.values(), default=0)
        behind = tuple(rank for rank, place in places.items() if place == last)
        return behind if len(behind) < len(places) else ()

    @property
    def stale(self) -> float | None:
        """Seconds since the engine was last known to move, at least; `None` when that was never known."""
        return None if self.heartbeat is None else max(self.now - self.heartbeat, 0.0)


def _comparable(phase: str) -> int:
    return ORDER[GRAPHS] if phase == PORT else ORDER[phase]


def evidence_of(
    run: RunState,
    tracker: PhaseTracker,
    now: float,
    *,
    before: Evidence | None = None,
    seen: Seen | None = None,
    limits: Limits | None = None,
) -> Evidence:
    """The evidence about a live run at `now` (Unix seconds).

    `before` is the evidence of the last look: it keeps the order in which ranks vanished, the last heartbeat and since
    when processes have been as they are.
    """
    moves = [run.time, *(rank.since for rank in run.ranks)]
    if run.progress is not None:
        moves.append(run.progress.time)
    names = {rank.rank for rank in run.ranks}
    gone = [sample.rank for sample in run.samples if sample.rank in names and sample.state in GONE]
    known, facts = before.dead if before is not None else (), LogFacts.of(tracker)
    gone.sort(key=lambda rank: rank != facts.died)  # of those that went between two looks the log names the first
    seen = seen or Seen()
    compiled = _compiled(run.samples, before.compiled if before is not None else (), now)
    moves += [time for _, time, _ in compiled if now - time > PAUSE]  # until then it is told as what it is
    found = Evidence(
        now=now,
        ranks=run.ranks,
        silent=max(now - max(moves), 0.0),
        facts=facts,
        samples=run.samples,
        dead=(*known, *(rank for rank in gone if rank not in known)),
        throughput=run.throughput,
        throughput_age=None if run.throughput_time is None else max(now - run.throughput_time, 0.0),
        heartbeat=_heartbeat(run, before, seen),
        progress=run.progress,
        exited=run.exited,
        capture=run.started.capture,
        heartbeats=frozenset(report.rank for report in run.capture),
        compiled=compiled,
        seen=seen,
        port=run.started.port,
        baseline=run.baseline,
        late=lateness(run, now),
        absent=absent_ranks(run.started.tp, run.started.argv, tuple(names)),
        stopping=run.status in ("STOPPING", "IDLE") or (run.exited is not None and run.exited.asked),
        limits=limits or Limits(),
    )
    return _with_durations(found, before)


def _with_durations(evidence: Evidence, before: Evidence | None) -> Evidence:
    """The evidence with since when its processes have been as they are."""
    last, now = before or evidence, evidence.now
    in_state = {state: [one.rank for one in evidence.samples if one.state == state] for state in "TD"}
    held = [one.rank for one in evidence.samples if evidence.ready and one.rank == DETOKENIZER and _held(one)]
    return replace(
        evidence,
        stopped_since=_kept(in_state["T"], last.stopped_since, now),
        waiting_since=_kept(in_state["D"], last.waiting_since, now),
        compiling_since=_kept(list(evidence.compiling), last.compiling_since, now),
        held_since=_kept(held, last.held_since, now),
        quiet_since=_quiet(evidence, last.quiet_since),
    )


def _compiled(samples: tuple[RankSample, ...], before: Compiled, now: float) -> Compiled:
    """`Evidence.compiled` at `now`, by what it was before."""
    found = {rank: (rank, time, tools) for rank, time, tools in before}
    found |= {one.rank: (one.rank, now, one.compiling) for one in samples if one.compiling}
    return tuple(found.values())


def _held(sample: RankSample) -> bool:
    """Whether a process sleeps, and not in a poll, in which all of SGLang's queues are waited for."""
    resting = sample.state in ("S", "D") and (sample.cpu or 0.0) <= REST
    return resting and sample.wchan is not None and "poll" not in sample.wchan


def _kept(names: list[str], before: Times, now: float) -> Times:
    """Those names with the time since when they have been there."""
    known = dict(before)
    return tuple((name, known.get(name, now)) for name in names)


def _quiet(evidence: Evidence, before: float | None) -> float | None:
    samples, seen = evidence.samples, evidence.seen
    working = any(
        (one.cpu is None or one.cpu > REST) or (one.read_rate or 0.0) > 0 or one.state == "D" for one in samples
    )
    # On a crowded host a process that waits for a core looks like one that rests.
    if working or not samples or any(gpu.utilisation for gpu in seen.gpus) or (seen.host_cpu or 0.0) > CROWDED:
        return None
    return before if before is not None else evidence.now


def _heartbeat(run: RunState, before: Evidence | None, seen: Seen) -> float | None:
    """When the engine last moved: by the last sample, by an earlier one when that had no answer, or by a canary."""
    last = before.heartbeat if before is not None else None
    if run.throughput is not None and run.throughput.engine_age is not None and run.throughput_time is not None:
        last = run.throughput_time - run.throughput.engine_age
    if last is not None and seen.canary is not None and seen.canary.status == 200 and seen.canary_time is not None:
        return max(last, seen.canary_time)
    return last
