"""What went wrong, from the log alone: exceptions told apart from their effects, taken ports, memory, dead ranks."""

import re
from dataclasses import dataclass, replace
from typing import Final

from kimi_agent.engine.loglines import LogLine

KEPT: Final = 64
"""Exceptions kept; the first ones tell the cause, later ones are effects."""

_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*"
    r"(?:Error|Exception|Exit|Interrupt|Iteration|Timeout|Warning|Failure|Refused|Denied|NotFound|Abort))"
    r"(?:: (?P<message>.*))?$"
)
_UNCAUGHT = re.compile(
    r'  File "(?:<frozen runpy>|<string>|.*/runpy\.py|.*/multiprocessing/process\.py)", line \d+, in '
)
_EFFECT = re.compile(
    r"Connection (?:closed|reset) by peer|Broken pipe|remote process exited|ncclRemoteError|NCCL communicator was abort"
    r"|scheduler died during initialization|Please see the error messages above|collective operation timeout"
    r"|Timed out after \d+ms waiting for (?:recv|send)|peer closed connection|recvValue failed",
    re.IGNORECASE,
)
_FATAL = re.compile(
    r"hit an exception: |Received sigquit|SIGQUIT received|scheduler is dead|scheduler died during init"
    r"|crashed with exit code|Initialization failed|self\.soft=False\)|Watchdog timeout \("
    r"|EngineCore (?:failed to start|encountered a fatal error)|Engine core initialization failed|EngineDeadError"
    r"|WorkerProc (?:hit an exception|failed to start)|Worker proc \S+ died unexpectedly"
)
_FATAL_CLUES = ("xception", "sigquit", "SIGQUIT", "dead", "died", "crashed", "ailed", "atchdog", "ngineCore", "EngineD")
_GIVES_UP = re.compile(r"hit an exception\W*$|failed to start\W*$|encountered a fatal error\W*$")
_CRASH = re.compile(
    r"(?P<type>Fatal Python error): (?P<message>.+)$|terminate called after throwing an instance of '(?P<thrown>[^']+)'"
)
_WHAT = re.compile(r"  what\(\): +(?P<message>.*)$")
_PORT = re.compile(r"Errno 98|address already in use|Port is already in use|^port \d+ is in use\. ", re.IGNORECASE)
_PORT_NUMBER = re.compile(r"'[^']*', (\d{2,5})\)|port (\d{2,5})|nccl_port=(\d{2,5})")
_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|HIP out of memory|Not enough memory\. Please try|Cannot allocate memory"
)
_DIED = re.compile(
    r"Rank (?P<rank>\d{1,5}) scheduler (?:is dead|died)|Subprocess scheduler_(?P<child>\d{1,5}) \(pid=\d+\) crashed"
)
_EXIT_CODE = re.compile(r"[Ee]xit ?code:? (-?\d{1,4})")
_HARD_WATCHDOG = re.compile(r"atchdog timeout \(self\.watchdog_timeout=[\d.]+(?:, self\.soft=False)?\)")
_CLUES = ("rrno", "in use", "emory", "dead", "died", "rashed", "atchdog", "warmup error")
"""A line without one of these is about neither ports, memory, death, watchdog nor warm-up."""
_WARM_UP = re.compile(r"Initialization failed\. warmup error: ?(.*)")


@dataclass(frozen=True, slots=True)
class Raised:
    """One exception that a traceback in the log ended with."""

    rank: str | None
    """`None` for the main process."""
    type: str
    message: str
    time: float | None
    fatal: bool
    """Whether its process died of it, as far as the log says."""
    effect: bool
    """A peer's death seen from a survivor: never the cause."""
    where: str = ""
    """The traceback's last frame: file, line and function."""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(slots=True)
class _Open:
    """A traceback whose last line has not come yet."""

    rank: str | None
    time: float | None
    fatal: bool
    headed: bool = False
    """Each of its lines carries a header, as in vLLM."""
    warm_up: bool = False
    """It says why the warm-up failed."""
    frames: int = 0
    where: str = ""
    derived: bool = False
    """It was raised from an exception already seen, which is the cause."""


class FailureReader:
    """Reads failures out of a log, line by line.

    Lines of a traceback mostly carry no header and those of two ranks may interleave: an exception is given to the
    traceback of its own rank, where something names it, and else to the one that has been open longest.
    """

    def __init__(self) -> None:
        self.raised: list[Raised] = []
        self.port: int | None = None
        self.port_line: str | None = None
        self.memory_line: str | None = None
        self.memory_rank: str | None = None
        self.watchdog: LogLine | None = None
        self.warm_up_error: str | None = None
        self.died: tuple[int, int | None] | None = None
        """(index of the rank in launch order, exit code) of the first rank that the log calls dead."""
        self.failed: str | None = None
        """The first line that says the server is failing."""
        self._open: list[_Open] = []
        self._last: _Open | None = None
        self._gave_up: set[str | None] = set()
        """Ranks (`None`: the main process) that said they give up, whose traceback follows in lines of its own."""

    def feed(self, line: LogLine, rank: str | None) -> str | None:
        """Take in one line, of `rank` in the tracker's view; the rank it belongs to, which its traceback may tell."""
        if line.kind in ("access", "bar", "batch"):
            return rank
        known = len(self.raised)
        if line.kind == "message" and not self._in_traceback(line, rank):
            self._header(line, rank)
        else:
            self._body(line, rank)
        if len(self.raised) > known:
            rank = self.raised[-1].rank
        self._marks(line, rank)
        return rank

    def _in_traceback(self, line: LogLine, rank: str | None) -> bool:
        """Whether a line with a header is part of a traceback whose every line has one."""
        if line.message.startswith(_TRACEBACK):
            return True
        if not self._open:
            return False
        opened = next((opened for opened in self._open if opened.headed and opened.rank == rank), None)
        goes_on = line.message.startswith(("  ", "During handling of", "The above exception")) or not line.message
        return opened is not None and (goes_on or _RAISED.match(line.message) is not None)

    @property
    def reading(self) -> bool:
        """Whether a traceback is open, so that any line may belong to it."""
        return bool(self._open)

    @property
    def first(self) -> Raised | None:
        """The earliest exception that is a cause; a peer's error only when there is no other."""
        for wanted in ({"fatal": True, "effect": False}, {"fatal": True, "effect": True}):
            for raised in self.raised:
                if raised.fatal == wanted["fatal"] and raised.effect == wanted["effect"]:
                    return raised
        return None

    def _header(self, line: LogLine, rank: str | None) -> None:
        if line.message.endswith(_TRACEBACK):
            warm_up = _WARM_UP.search(line.message) is not None
            self._start(_Open(rank, line.time, fatal="hit an exception" in line.message, warm_up=warm_up))
        elif any(map(line.message.__contains__, _FATAL_CLUES)) and _FATAL.search(line.message):
            self.failed = self.failed or line.message
            if _GIVES_UP.search(line.message):
                self._gave_up.add(rank)

    def _start(self, opened: _Open) -> None:
        opened.fatal = opened.fatal or opened.rank in self._gave_up
        self._gave_up.discard(opened.rank)
        self._open = [*self._open[-KEPT:], opened]

    def _body(self, line: LogLine, rank: str | None) -> None:
        text = line.message
        if text == _TRACEBACK:
            if not (self._open and self._open[-1].frames == 0 and self._open[-1].derived):
                self._start(_Open(rank, line.time, fatal=False, headed=line.kind == "message"))
        elif text.startswith("During handling of the above exception"):
            self._reopen(handled=True)
        elif text.startswith("The above exception was the direct cause"):
            self._reopen(handled=False)
        elif self._open and text.startswith("  "):
            self._frame(text, rank)
        elif self._open and (match := _RAISED.match(text)):
            self._close(match["type"], match["message"] or "", rank)
        else:
            self._crash(text, rank, line.time)

    def _crash(self, text: str, rank: str | None, time: float | None) -> None:
        """A process that C++ or a signal ended: it wrote no traceback of Python's."""
        if (match := _CRASH.match(text)) is not None and len(self.raised) < KEPT:
            kind, message = match["type"] or match["thrown"], match["message"] or ""
            self.raised.append(Raised(rank, kind, message, time, fatal=True, effect=bool(_EFFECT.search(message))))
            self.failed = self.failed or text
        elif (what := _WHAT.match(text)) is not None and self.raised and not self.raised[-1].message:
            message = what["message"]
            self.raised[-1] = replace(self.raised[-1], message=message, effect=bool(_EFFECT.search(message)))

    def _frame(self, text: str, rank: str | None) -> None:
        newest = next((one for one in reversed(self._open) if rank is not None and one.rank == rank), self._open[-1])
        if newest.frames == 0 and _UNCAUGHT.match(text):
            newest.fatal = True
        newest.frames += 1
        if text.startswith('  File "'):
            newest.where = text.strip()

    def _close(self, kind: str, message: str, rank: str | None) -> None:
        opened = next((one for one in self._open if rank is not None and one.rank == rank), self._open[0])
        self._open.remove(opened)
        self._last = opened
        if opened.derived or len(self.raised) >= KEPT:
            return
        if opened.warm_up:
            self.warm_up_error = f"{kind}: {message}"
        effect = bool(_EFFECT.search(message))
        self.raised.append(Raised(opened.rank, kind, message, opened.time, opened.fatal, effect, opened.where))
        if opened.fatal:
            self.failed = self.failed or f"{kind}: {message}"

    def _reopen(self, *, handled: bool) -> None:
        """A chained exception follows: of a handled one it is the failure, of a cause only the wrapping."""
        if self._last is None:
            return
        last = self._last
        if handled and self.raised:
            self.raised[-1] = replace(self.raised[-1], fatal=False)
        self._open.insert(0, _Open(last.rank, last.time, last.fatal, last.headed, derived=not handled))
        self._last = None

    def _marks(self, line: LogLine, rank: str | None) -> None:
        text = line.message
        if not any(map(text.__contains__, _CLUES)):
            return
        if self.port_line is None and _PORT.search(text):
            self.port_line = text
            number = _PORT_NUMBER.search(text)
            self.port = int(next(group for group in number.groups() if group)) if number else None
        if self.memory_line is None and _MEMORY.search(text):
            self.memory_line, self.memory_rank = text.strip(), rank
        if self.died is None and (died := _DIED.search(text)):
            code = _EXIT_CODE.search(text)
            self.died = (int(died["rank"] or died["child"]), int(code[1]) if code else None)
        if self.watchdog is None and _HARD_WATCHDOG.search(text):
            self.watchdog = line
        if self.warm_up_error is None and (warm_up := _WARM_UP.search(text)):
            self.warm_up_error = warm_up[1]
