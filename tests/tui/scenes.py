"""Real events of runs as an agent journals them, and a source that hands them over from memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from kimi_agent.errors import KimiError
from kimi_agent.model import events as ev
from kimi_agent.wire.rpc import READ_ONLY
from kimi_console.source.base import Control, Link
from kimi_console.source.session import Session
from kimi_console.tui.clock import HostClock

T0 = 1764424800.0
"""14:00:00 of a November day, UTC."""
GIB = 1 << 30
RUN = "run-0412"
RANKS = tuple(f"TP{index}" for index in range(8))
GOOD_START = (
    ("import", 17.0), ("join ranks", 4.0), ("load weights", 149.0), ("after load", 2.0), ("KV cache", 3.0),
    ("graphs", 100.0), ("port", 1.0), ("warm-up", 26.0),
)  # fmt: skip
ARGV = ("/opt/sglang/bin/python", "-m", "sglang.launch_server", "--model-path", "/models/Kimi K2.5", "--tp", "8")


class MemorySource:
    """A `Source` over batches in memory; more can be given while it is read."""

    def __init__(self, batches: Sequence[Sequence[ev.Event]] = (), title: str = "gpu-07", state: str = "live") -> None:
        self.title = title
        self.link = Link(state, since=T0)
        self._queue: asyncio.Queue[Sequence[ev.Event] | None] = asyncio.Queue()
        for batch in batches:
            self._queue.put_nowait(batch)

    def give(self, batch: Sequence[ev.Event]) -> None:
        """Hand over one more batch."""
        self._queue.put_nowait(batch)

    async def batches(self) -> AsyncIterator[Sequence[ev.Event]]:
        """The batches, until closed."""
        while (batch := await self._queue.get()) is not None:
            yield batch

    async def close(self) -> None:
        """End the stream."""
        self._queue.put_nowait(None)


class TableControl:
    """A `Control` that answers from a table of functions and keeps what it was asked."""

    def __init__(self, answers: dict[str, Callable[[dict[str, Any]], Any]], *, read_only: bool = False) -> None:
        self.read_only = read_only
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.redialled = 0
        self._answers = answers

    async def request(self, method: str, **params: Any) -> Any:
        """Answer as an agent would."""
        self.asked.append((method, params))
        if self.read_only and method not in READ_ONLY:
            raise KimiError(f"{method} is not for a read-only connection", "Connect again without --read-only")
        if method not in self._answers:
            raise KimiError(f"the agent knows no {method}", "Update the agent")
        return self._answers[method](params)

    def redial(self) -> None:
        """Count it."""
        self.redialled += 1


class Journal:
    """Numbers events as a journal does."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []

    def add(self, at: float, body: ev.Body) -> "Journal":
        """One more event, `at` seconds after 14:00:00."""
        self.events.append(ev.Event(len(self.events) + 1, T0 + at, body))
        return self

    @property
    def last(self) -> float:
        """Time of the last event."""
        return self.events[-1].time


def launched(run: str = RUN, at: float = 0.0, journal: Journal | None = None) -> Journal:
    """An agent, a run of eight ranks, the ranks joined."""
    journal = journal or Journal().add(
        at, ev.AgentStarted("0.1.0", "gpu-07", 912, "/opt/sglang/bin/python", "0.5.23", "b", 128, 2015 * GIB)
    )
    journal.add(at, ev.RunStarted(
        run, "kimi-k25", "/models/Kimi-K2.5", ARGV, 41200, 8, RANKS, "127.0.0.1", 30000,
        "/root/.local/state/kimi-agent/runs/run-0412/server.log", "/opt/sglang/bin/python", "0.5.23", True, (3, 31, 59),
    ))  # fmt: skip
    journal.add(at, ev.BaselineKnown(run, T0 - 86400, GOOD_START, 348.0))
    journal.add(at, ev.StatusChanged(run, "STARTING", "launched"))
    enter(journal, at + 18, "join ranks", run=run)
    return enter(journal, at + 22, "load weights", run=run)


def enter(journal: Journal, at: float, phase: str, ranks: Sequence[str] = RANKS, run: str = RUN) -> Journal:
    """Ranks enter a phase."""
    for rank in ranks:
        journal.add(at, ev.PhaseEntered(run, rank, phase))
    return journal


def log(journal: Journal, at: float, first: int, lines: Sequence[str]) -> Journal:
    """Lines of the server's log."""
    return journal.add(at, ev.LogLines(RUN, first, tuple(lines)))


def sampled(journal: Journal, at: float, *, gpus: int = 8, cpu: float = 12.0, states: dict[str, str] | None = None,
            compiling: Sequence[str] = ()) -> Journal:  # fmt: skip
    """The host, its GPUs and the ranks' processes."""
    devices = tuple(
        ev.GpuSample(i, "NVIDIA H200", 76 * GIB, 141 * GIB, 0, 121.0 + i, 700.0, 41, 1980, 0, ((41230 + i, 74 * GIB),))
        for i in range(gpus)
    )
    reason = None if gpus else "no NVIDIA driver on this host"
    journal.add(at, ev.HostSampled(2015 * GIB, 412 * GIB, 11.4, 9.0, devices, reason))
    return journal.add(at, ev.RanksSampled(RUN, tuple(
        ev.RankSample(rank, 41230 + i, (states or {}).get(rank, "S"), 100.0 if rank in compiling else cpu, 61 * GIB,
                      0.0, 0.0, None, i if gpus else None, ("nvcc",) if rank in compiling else ())
        for i, rank in enumerate(RANKS)
    )))  # fmt: skip


def slow() -> Journal:
    """Two ranks compile kernels while the others wait."""
    journal = launched()
    log(journal, 24, 0, [f"[2025-11-29 14:00:24 TP{i}] Load weight begin. avail mem=139.{i} GB" for i in range(8)])
    enter(journal, 172, "after load")
    enter(journal, 174, "KV cache", [rank for rank in RANKS if rank not in ("TP3", "TP6")])
    sampled(journal, 192, compiling=("TP3", "TP6"))
    journal.add(193, ev.StatusChanged(RUN, "SLOW", "kernels are compiled"))
    return journal.add(193, ev.VerdictChanged(RUN, ev.Verdict(
        "compiling", "TP3 and TP6 are compiling kernels", None, 0.9,
        ("proc nvcc under both schedulers for 41 s", "nvml GPU 0 %, 124 of 700 W"), ("a hang: CPU time advances",),
        ("Wait: a first start compiles for 1-3 min.",),
    )))  # fmt: skip


def hung() -> Journal:
    """TP1 is stopped in the loading of weights."""
    journal = launched()
    journal.add(120, ev.PhaseProgress(RUN, "TP0", "load weights", 12, 64, "shards"))
    enter(journal, 172, "after load", [rank for rank in RANKS if rank != "TP1"])
    log(journal, 172, 0, [f"[2025-11-29 14:02:52 TP{i}] Load weight end. elapsed=151.2 s" for i in range(8) if i != 1])
    sampled(journal, 420, cpu=0.0, states={"TP1": "T"})
    journal.add(420, ev.StatusChanged(RUN, "HUNG", "TP1 is stopped"))
    return journal.add(421, ev.VerdictChanged(RUN, ev.Verdict(
        "straggler", "TP1 is stopped. All other ranks wait for TP1 in the barrier after loading.", "TP1", 0.95,
        ("proc TP1 pid 41231 state T (stopped) for 4:05", "stack TP0: monitored_barrier ← post_load"),
        ("a crash (8 of 8 ranks alive)", "compilation (no nvcc)"),
        ("resume it: kill -CONT 41231 on gpu-07 — or s to stop the run.",),
    )))  # fmt: skip


def ready(run: str = RUN, at: float = 0.0, journal: Journal | None = None) -> Journal:
    """A start without trouble."""
    journal = launched(run, at, journal)
    for phase, time in (("after load", 172), ("KV cache", 175), ("graphs", 178), ("port", 278), ("warm-up", 279),
                        ("ready", 305)):  # fmt: skip
        enter(journal, at + time, phase, run=run)
    journal.add(at + 306, ev.StatusChanged(run, "READY", "engine heartbeat 0 s old"))
    journal.add(at + 306, ev.VerdictChanged(run, ev.Verdict("none", "ready")))
    return journal.add(at + 306, ev.CaptureReported(
        run, "TP0", 41230, True, "KimiK25ForConditionalGeneration", (3, 31, 59), 7168, "bfloat16", "0.1.0",
    ))  # fmt: skip


def dumping() -> Journal:
    """A ready server that serves and dumps; four polls of its load are missing."""
    journal = ready()
    for second in range(40):
        rate = None if 30 <= second < 34 else 9000.0 + 200 * (second % 5)
        journal.add(310 + second, ev.ThroughputSampled(RUN, rate and rate * 2, rate, 48, 3, 1_200_000, 3_100_000, 0.4,
                                                       "loads"))  # fmt: skip
    sampled(journal, 350, cpu=101.0)
    return journal.add(350, ev.DumpSampled(
        RUN, "nightly", "writing", "/data/dumps/nightly", 41_200_000, 41_190_000, 41_100_000,
        (("aborted", 5100), ("prefix hit", 3312)), 20117, 2311, int(2.2 * 1024 * GIB), 9410.0, 57344,
        int(1.21 * 1024 * GIB), held_back=0.0,
        self_check="logit error 3e-09 ok · non-finite 0 · zero rows 0 · rms 3: 0.81  31: 4.02  59: 17.3  last: 1",
    ))  # fmt: skip


def session(journal: Journal, control: Control | None = None, state: str = "live") -> Session:
    """A session whose source holds all of a journal."""
    return Session(MemorySource([journal.events], state=state), control)


def clock(journal: Journal) -> HostClock:
    """A clock that stands at the journal's last event."""
    return HostClock(lambda: journal.last)
