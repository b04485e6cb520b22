"""`PhaseTracker`: from log lines to each rank's place in the start. Pure: no clock, no files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kimi_agent.engine.failures import FailureReader, Raised
from kimi_agent.engine.loglines import LogLine, bar_position
from kimi_agent.engine.titles import ranks_of_server_args
from kimi_agent.model.phases import (
    AFTER_LOAD,
    GRAPHS,
    IMPORT,
    JOIN,
    KV_CACHE,
    LOAD,
    ORDER,
    PORT,
    READY,
    WARM_UP,
)

_RANK_MARKS: Final = (
    (JOIN, re.compile(r"Init (?:parallel|torch distributed) begin")),
    (LOAD, re.compile(r"Init (?:parallel|torch distributed) ends|Memory baseline taken|Load weight begin")),
    (AFTER_LOAD, re.compile(r"Load weight end\.")),
    (KV_CACHE, re.compile(r"(?:\S+ ){0,3}KV Cache is allocated|KV Cache VA upper bound")),
    (GRAPHS, re.compile(r"Memory pool end|Capture (?:\S+ ){0,4}(?:cuda|CUDA) graph begin|Running FlashInfer autotune")),
    (PORT, re.compile(r"max_total_num_tokens=\d")),
)
_MAIN_MARKS: Final = (
    (PORT, re.compile(r"Engine startup timings|INFO: +Started server process|Dummy health check server started")),
    (WARM_UP, re.compile(r"INFO: +Uvicorn running on ")),
    (READY, re.compile(r"The server is fired up and ready to roll!")),
)
_STOPPING: Final = re.compile(r"SIGTERM received|Gracefully exiting|INFO: +Shutting down")
_MAX_RANKS: Final = 4096


@dataclass(frozen=True, slots=True)
class Entered:
    """A rank entered a phase."""

    rank: str
    phase: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A progress bar moved."""

    rank: str
    phase: str
    done: int
    total: int
    what: str


Change = Entered | Progress


class PhaseTracker:
    """Follows one server's log.

    `ranks` are the expected tags. Where none are given, as for a plain log, they are learned from the log's
    `server_args=` line and from the tags themselves. A rank never goes back.
    """

    def __init__(self, ranks: Sequence[str] = ()) -> None:
        self.phases: dict[str, str] = dict.fromkeys(ranks, IMPORT)
        self.since: dict[str, float] = {}
        """Log time at which a rank entered its phase, where the log has times."""
        self.failures = FailureReader()
        self.lines = 0
        self.headed = 0
        """Lines with SGLang's header before ready, access lines left out."""
        self.unmatched = 0
        """Of those, how many named no phase: a sudden rise means that a new SGLang words them differently."""
        self.first_time: float | None = None
        self.last_time: float | None = None
        self.progress_time: float | None = None
        """Log time of the last phase entered or bar moved."""
        self.stopping = False
        self.follower = False
        """Whether this is the log of a node that serves no HTTP: it never says ready."""
        self._guessed = not ranks
        self._tagged: set[str] = set()
        self._bar: Progress | None = None

    @property
    def ranks(self) -> tuple[str, ...]:
        """The ranks, given or learned."""
        return tuple(self.phases)

    @property
    def ready(self) -> bool:
        """Whether the log says that the server is ready."""
        return bool(self.phases) and all(phase == READY for phase in self.phases.values())

    @property
    def first_exception(self) -> Raised | None:
        """The exception to blame: the earliest that killed its process and is no effect of a peer's death."""
        return self.failures.first

    @property
    def port_in_use(self) -> str | None:
        """The line that says a port was taken."""
        return self.failures.port_line

    @property
    def out_of_memory(self) -> str | None:
        """The line that says memory ran out."""
        return self.failures.memory_line

    def feed(self, line: LogLine) -> list[Change]:
        """Take in one line; what changed by it, in order."""
        self.lines += 1
        self._clock(line)
        if line.kind == "batch":
            self._learn(line.rank)
        if line.kind in ("access", "batch") and not line.before:
            return []
        changes = self._bars(line.before or line.message)
        if line.kind == "message":
            changes += self._message(line)
        self.failures.feed(line, self._owner(line))
        if changes and self.last_time is not None:
            self.progress_time = self.last_time
        return changes

    def _clock(self, line: LogLine) -> None:
        if line.time is None:
            return
        if self.first_time is None:
            self.first_time = self.progress_time = line.time
        # Processes write side by side: a line may be a little older than the one before.
        self.last_time = line.time if self.last_time is None else max(self.last_time, line.time)

    def _message(self, line: LogLine) -> list[Change]:
        if self._guessed and line.rank is None and line.message.startswith("server_args="):
            for rank in ranks_of_server_args(line.message):
                self.phases.setdefault(rank, IMPORT)
        self._learn(line.rank)
        changes = self._marks(line)
        if _STOPPING.match(line.message):
            self.stopping = True
        if not self.ready:
            self.headed += 1
            self.unmatched += 0 if changes else 1
        return changes

    def _learn(self, rank: str | None) -> None:
        if rank is None or rank in self._tagged or len(self.phases) >= _MAX_RANKS:
            return
        self._tagged.add(rank)
        if rank not in self.phases:
            if self._guessed:
                # The guess does not fit this version's tags: keep only what the log showed.
                self.phases = {known: phase for known, phase in self.phases.items() if known in self._tagged}
            self.phases[rank] = IMPORT

    def _marks(self, line: LogLine) -> list[Change]:
        for phase, pattern in _RANK_MARKS:
            if pattern.match(line.message):
                owner = line.rank or self._sole()
                return self._enter(owner, phase, line.time) if owner is not None else []
        if line.rank is not None:
            return []
        for phase, pattern in _MAIN_MARKS:
            if pattern.match(line.message):
                self.follower = self.follower or line.message.startswith("Dummy")
                if not self.phases:
                    self._learn("TP0")
                return [change for rank in self.ranks for change in self._enter(rank, phase, line.time)]
        return []

    def _owner(self, line: LogLine) -> str | None:
        """The rank a line belongs to; a server of one rank tags none of its lines."""
        if line.rank is None and len(self.phases) == 1 and line.message.startswith("Scheduler hit an exception"):
            return next(iter(self.phases))
        return line.rank

    def _sole(self) -> str | None:
        if not self.phases and self._guessed:
            self._learn("TP0")
        return next(iter(self.phases)) if len(self.phases) == 1 else None

    def _enter(self, rank: str, phase: str, time: float | None) -> list[Change]:
        if ORDER[phase] <= ORDER[self.phases[rank]]:
            return []
        self.phases[rank] = phase
        if time is not None:
            self.since[rank] = time
        return [Entered(rank, phase)]

    def _bars(self, text: str) -> list[Change]:
        bar = bar_position(text)
        if bar is None or not self.phases:
            return []
        what, done, total = bar
        rank = min(self.phases, key=lambda tag: [int(number) for number in re.findall(r"\d+", tag)])
        phase = LOAD if "shard" in what else GRAPHS if what.startswith("Captur") else self.phases[rank]
        moved = Progress(rank, phase, done, total, what or phase)
        if moved == self._bar:
            return []
        self._bar = moved
        return [moved]
