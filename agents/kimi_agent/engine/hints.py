"""What a log mentions beside phases and failures: a download, a lock, a compiler, a plugin, a barrier that gave up."""

import re
from dataclasses import dataclass
from typing import Final

from kimi_agent.engine.loglines import LogLine

_DOWNLOAD = re.compile(
    r"(?:Fetching \d+ files?|Downloading[ \w.:/-]{0,120}|[\w.-]{1,120}\.(?:safetensors|bin|gguf|pt|pth|model|json|txt))"
    r":? {1,4}(?P<percent>\d{1,3})%"
)
_LOCK = re.compile(r"[Ww]aiting to acquire lock|[Bb]locking waiting for file lock|[Ww]aiting for (?:the )?lock\b")
_COMPILE = re.compile(
    r"Entering DeepGEMM JIT Pre-Compile|DeepGEMM warmup|[Ll]oading JIT ops|JIT backend|JIT compil|start build \["
    r"|[Cc]ompiling (?:kernel|CUDA|Triton|module)|Building (?:extension )?module"
)
_COMPILED = re.compile(r"[Ff]inished loading JIT ops|finish build \[|[Cc]ompil\w+ (?:took|done|finished|complete)")
_PLUGIN = re.compile(r"Failed to (?:load plugin|execute general plugin:?) kimi_capture\b")
_PROXY = re.compile(
    r"ProxyError|Cannot connect to proxy|Tunnel connection failed|Proxy Authentication Required|\bsquid\b|X-Squid",
    re.IGNORECASE,
)
_DISK = re.compile(
    r"No space left on device|Errno 28\b|Stale file handle|Errno 116\b|Transport endpoint is not connected|Errno 107\b"
    r"|Input/output error|Errno 5\b|Disk quota exceeded|Errno 122\b"
)
_BARRIER = re.compile(
    r"(?:Ranks? (?P<ranks>\d{1,5}(?:, ?\d{1,5}){0,63}) failed to pass monitoredBarrier"
    r"|there are other ranks that didn't finish loading|other ranks that didn't)"
)
_COLLECTIVE = re.compile(r"[Cc]ollective operation timeout|Timed out after \d+ms waiting for (?:recv|send)")
_XID = re.compile(r"NVRM: Xid|\bXid \(PCI|GPU has fallen off the bus|RC watchdog: GPU is probably locked")
_BROADCAST = re.compile(r"No available shared memory broadcast block found in \d+ seconds")
_READ: Final = 1000
"""Characters of a line that are looked at."""
_CLUES = (
    "%", "lock", "JIT", "ompil", "uild", "plugin", "roxy", "squid", "Errno", "space", "handle", "endpoint",
    "output error", "quota", "arrier", "other ranks", "imeout", "imed out", "Xid", "off the bus", "RC watchdog",
    "broadcast", "DeepGEMM",
)  # fmt: skip
"""A line without one of these is about none of it."""


@dataclass(frozen=True, slots=True)
class Mention:
    """One line that says something of it, the last one."""

    line: str
    time: float | None
    """Log time of the line or of the one before it that had a time."""
    rank: str | None
    count: int = 1
    """How many lines said so."""


DOWNLOAD: Final = "download"
"""A download under way; forgotten when its bar is full."""
LOCK: Final = "lock"
COMPILE: Final = "compile"
"""A compilation begun and not said to be over."""
PLUGIN: Final = "plugin"
"""The capture plugin was not loaded."""
PROXY: Final = "proxy"
DISK: Final = "disk"
"""A file system that is full, stale or broken."""
BARRIER: Final = "barrier"
"""A barrier that some ranks did not reach in time."""
COLLECTIVE: Final = "collective"
"""A collective operation that timed out."""
HARDWARE: Final = "hardware"
BROADCAST: Final = "broadcast"
"""vLLM's complaint, once a minute, that a worker does not answer."""

_MATTERS: Final = (
    (DOWNLOAD, _DOWNLOAD), (LOCK, _LOCK), (COMPILE, _COMPILE), (PLUGIN, _PLUGIN), (PROXY, _PROXY), (DISK, _DISK),
    (BARRIER, _BARRIER), (COLLECTIVE, _COLLECTIVE), (HARDWARE, _XID), (BROADCAST, _BROADCAST),
)  # fmt: skip


class Hints:
    """The last mention of each matter in one server's log."""

    def __init__(self) -> None:
        self.mentions: dict[str, Mention] = {}
        """By the names above."""
        self.missing: tuple[int, ...] = ()
        """The ranks that did not reach a barrier, where a line names them."""

    def feed(self, line: LogLine, rank: str | None, now: float | None) -> None:
        """Take in one line; `now` is the log's clock."""
        text = line.message[:_READ]
        if not any(map(text.__contains__, _CLUES)):
            return
        for matter, pattern in _MATTERS:
            if (match := pattern.search(text)) is not None:
                before = self.mentions.get(matter)
                self.mentions[matter] = Mention(text.strip(), now, rank, before.count + 1 if before else 1)
                self._look_closer(matter, match)
        if _COMPILED.search(text):
            self.mentions.pop(COMPILE, None)

    def _look_closer(self, matter: str, match: re.Match[str]) -> None:
        if matter == DOWNLOAD and int(match["percent"]) >= 100:
            del self.mentions[DOWNLOAD]
        elif matter == BARRIER and not self.missing and match["ranks"]:
            self.missing = tuple(int(number) for number in match["ranks"].split(","))
