"""`PhaseTracker`: from log lines to each rank's place in the start. Pure: no clock, no files."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kimi_agent.engine import marks
from kimi_agent.engine.dialects import UNDATED
from kimi_agent.engine.failures import FailureReader, Raised
from kimi_agent.engine.hints import Hints
from kimi_agent.engine.loglines import LogLine, bar_position
from kimi_agent.engine.titles import ranks_of_server_args
from kimi_agent.model.phases import GRAPHS, IMPORT, LOAD, ORDER, READY

_MAX_RANKS: Final = 4096
_DAY: Final = 86_400.0
_NAMES: Final = ("sglang", "SGLang", "vllm", "vLLM", "server_args=")


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
    `server_args=` line and from the tags themselves; where such a log holds several starts, as a container's does that
    was restarted, what is told is of the last. Within one start a rank never goes back.
    """

    def __init__(self, ranks: Sequence[str] = ()) -> None:
        self.lines = 0
        self.starts = 0
        """How many starts the log holds, as far as their arguments were logged."""
        self.last_time: float | None = None
        self._guessed = not ranks
        self._begin(ranks)

    def _begin(self, ranks: Sequence[str]) -> None:
        self.phases: dict[str, str] = dict.fromkeys(ranks, IMPORT)
        self.since: dict[str, float] = {}
        """Log time at which a rank entered its phase, where the log has times."""
        self.failures = FailureReader()
        self.hints = Hints()
        self.unmatched = 0
        """Lines before ready that read like the opening of a phase and that no mark knows."""
        self.unmatched_last = ""
        """The last of them."""
        self.first_time: float | None = self.last_time
        self.progress_time: float | None = self.last_time
        """Log time of the last phase entered or bar moved."""
        self.named = False
        """Whether a line names SGLang or vLLM, or gives a server's arguments."""
        self.last_message = ""
        """The last line that a logger wrote, batch and access lines left out."""
        self.reached = False
        """Whether an HTTP request has reached the server, its own included."""
        self.stopping = False
        self.follower = False
        """Whether this is the log of a node that serves no HTTP: it never says ready."""
        self.untagged = False
        """Whether several ranks wrote without their tags: how many are past a phase is known, which is not."""
        self._tagged: set[str] = set()
        self._counted: Counter[str] = Counter()
        self._bar: Progress | None = None
        self._vllm = False
        self._unmatched_since: float | None = None
        self._unmatched_seconds = 0.0

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

    @property
    def unmatched_seconds(self) -> float:
        """Seconds from unmatched lines to the next mark: they may belong to another phase than is shown."""
        since, now = self._unmatched_since, self.last_time
        return self._unmatched_seconds + (max(now - since, 0.0) if since is not None and now is not None else 0.0)

    @property
    def tags(self) -> frozenset[str]:
        """The rank tags seen so far."""
        return frozenset(self._tagged)

    def feed(self, line: LogLine) -> list[Change]:
        """Take in one line; what changed by it, in order."""
        self.lines += 1
        self.clock(line.time)
        if line.kind == "batch":
            self._learn(line.rank)
        self.reached = self.reached or line.kind == "access"
        if line.kind in ("access", "batch") and not line.before:
            return []
        self.named = self.named or any(map(line.message.__contains__, _NAMES))
        changes = self._bars(line.before or line.message)
        if line.kind == "message":
            changes += self._message(line)
        owner = self.failures.feed(line, self._owner(line))
        self.hints.feed(line, owner, self.last_time)
        if changes and self.last_time is not None:
            self.progress_time = self.last_time
        for text in line.more:
            changes += self.feed(LogLine(line.time, line.rank, text, "text"))
            self.lines -= 1
        return changes

    def skip(self, lines: int) -> None:
        """Count lines that say nothing of the start."""
        self.lines += lines

    def clock(self, time: float | None) -> None:
        """The log has come to this time, as its headers tell it."""
        if time is None:
            return
        last = self.last_time
        if last is not None and (time < UNDATED) != (last < UNDATED):
            # A library's own header beside SGLang's: only the one with a year is a clock.
            if time < UNDATED:
                return
            self.first_time = last = None
        if time < UNDATED and last is not None:
            # A clock without a date starts over at midnight.
            time += _DAY * max(0, round((last - time) / _DAY))
        if self.first_time is None:
            self.first_time = self.progress_time = self.last_time = time
        # Processes write side by side: a line may be a little older than the one before.
        self.last_time = time if self.last_time is None else max(self.last_time, time)

    def _message(self, line: LogLine) -> list[Change]:
        if line.message.startswith("server_args="):
            self.starts += 1
            if self._guessed and self.starts > 1:
                self._begin(())
        self.last_message = line.message
        if self._guessed:
            self._announced(line)
        if line.rank is not None:
            self._learn(line.rank)
        changes = self._marks(line)
        if marks.STOPPING.match(line.message):
            self.stopping = True
        if changes:
            self._unmatched_seconds, self._unmatched_since = self.unmatched_seconds, None
        elif changes is None and not self.ready and marks.could_be_mark(line.message):
            self.unmatched += 1
            self.unmatched_last = line.message
            self._unmatched_since = self._unmatched_since or self.last_time
        return changes or []

    def _announced(self, line: LogLine) -> None:
        """Learn the ranks that a server says it will have."""
        ranks: Sequence[str] = ()
        if line.rank is None and line.message.startswith("server_args="):
            ranks = ranks_of_server_args(line.message)
        elif (world := marks.WORLD.match(line.message)) is not None:
            ranks = [f"TP{number}" for number in range(int(world[1]))]
        for rank in ranks[:_MAX_RANKS]:
            self.phases.setdefault(rank, IMPORT)

    def _learn(self, rank: str | None) -> None:
        if rank is None or rank in self._tagged or len(self.phases) >= _MAX_RANKS:
            return
        self._tagged.add(rank)
        if rank not in self.phases:
            if self._guessed:
                # The guess does not fit this version's tags: keep only what the log showed.
                self.phases = {known: phase for known, phase in self.phases.items() if known in self._tagged}
            self.phases[rank] = IMPORT

    def _marks(self, line: LogLine) -> list[Change] | None:
        """The phases entered by a message; `None` when no mark knows it."""
        if marks.ANY.match(line.message) is None:
            return None
        self._vllm = self._vllm or marks.VLLM.search(line.message) is not None
        for phase, pattern in marks.RANK_MARKS:
            if (match := pattern.match(line.message)) is not None:
                owner = line.rank or self._sole() or self._counted_rank(match["line"])
                return self._enter(owner, phase) if owner is not None else []
        if line.rank is not None:
            return None
        for phase, pattern in marks.MAIN_MARKS:
            if pattern.match(line.message):
                self.follower = self.follower or line.message.startswith("Dummy")
                return self._enter_all(phase)
        if self._vllm and marks.VLLM_READY.match(line.message):
            return self._enter_all(READY)
        return None

    def _enter_all(self, phase: str) -> list[Change]:
        if not self.phases:
            self._learn("TP0")
        return [change for rank in self.ranks for change in self._enter(rank, phase)]

    def _counted_rank(self, words: str) -> str | None:
        """Where no rank is tagged, the n-th to say the same words stands for the n-th rank."""
        if self._tagged or not self.phases:
            return None
        self.untagged = True
        self._counted[words] += 1
        return self.ranks[min(self._counted[words], len(self.phases)) - 1]

    def _owner(self, line: LogLine) -> str | None:
        """The rank a line belongs to; a server of one rank tags none of its lines."""
        if line.rank is None and len(self.phases) == 1 and line.message.startswith("Scheduler hit an exception"):
            return next(iter(self.phases))
        return line.rank

    def _sole(self) -> str | None:
        if not self.phases and self._guessed:
            self._learn("TP0")
        return next(iter(self.phases)) if len(self.phases) == 1 else None

    def _enter(self, rank: str, phase: str) -> list[Change]:
        if ORDER[phase] <= ORDER[self.phases[rank]]:
            return []
        self.phases[rank] = phase
        if self.last_time is not None:
            self.since[rank] = self.last_time
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
        return [*self._enter(rank, phase), moved]
