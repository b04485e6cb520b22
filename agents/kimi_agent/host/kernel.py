"""What the kernel says: its log about GPUs, PCI errors and the OOM killer, and the cgroup's count of kills."""

import errno
import os
import re
from pathlib import Path
from typing import Final

from kimi_agent.host.procfs import read_stat, read_text
from kimi_agent.text import clean

KEPT: Final = 50
_TELLING: Final = re.compile(
    r"NVRM: .*Xid|NVRM: .*(?:fallen off|RmInitAdapter|locked)|\bAER: .*(?:Uncorrect|fatal|Fatal)|pcieport .*link down"
    r"|oom-kill:|Out of memory: Killed|Memory cgroup out of memory: Killed|nvidia.*GSP.*(?:timeout|timed out)"
    r"|I/O error, dev |nfs: server .* not responding"
)
_XID: Final = re.compile(r"Xid \((?:PCI:)?(?P<bus>[^)]*)\): (?P<code>\d+)")


class KernelLog:
    """Reads what is new in the kernel's log since it was made; a read costs one system call when there is nothing."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self.why: str | None = None
        """Why it cannot be read."""
        self.lines: list[str] = []
        self._file = -1
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self.why = f"{path}: {error.strerror}"

    def read(self) -> list[str]:
        """Telling lines so far, oldest first."""
        while self._file >= 0:
            try:
                record = os.read(self._file, 8192)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten before they were read: the next one is the oldest left
                self.why = f"the kernel log cannot be read: {error.strerror}"
                self.close()
                break
            if not record:
                break
            text = telling(record)
            if text is not None and len(self.lines) < KEPT:
                self.lines.append(text)
        return self.lines

    def close(self) -> None:
        """Give the file back."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def telling(record: bytes) -> str | None:
    """The text of one record of the kernel's log, when it is about a GPU, the bus, a disk or the OOM killer."""
    text = clean(record.decode("utf-8", "replace").partition(";")[2].partition("\n")[0])
    return text if _TELLING.search(text) else None


class OomCounter:
    """Counts what the OOM killer took from a process's cgroup since it was made, or since the process moved there."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._path: Path | None = None
        self._before: int | None = None
        self.kills()

    def kills(self) -> int | None:
        """Kills since then; `None` when there is no counter to read."""
        stat = read_stat(self._pid)
        if stat is not None and stat.state not in "ZX":  # one that has ended is said to be in the root's
            path = _counter_file(self._pid)
            if path != self._path:  # a wrapper may move itself just after it was started
                self._path, self._before = path, _count(path)
        now = _count(self._path)
        return None if now is None or self._before is None else max(now - self._before, 0)


def xid(line: str) -> tuple[str, int] | None:
    """The PCI bus id and the number of an Xid line of NVIDIA's driver."""
    match = _XID.search(line)
    return (match["bus"], int(match["code"])) if match else None


def _counter_file(pid: int) -> Path | None:
    """`memory.events` of cgroup v2, or `memory.oom_control` of v1."""
    for line in (read_text(f"/proc/{pid}/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        root = Path("/sys/fs/cgroup/memory" if "memory" in controllers.split(",") else "/sys/fs/cgroup")
        if controllers and "memory" not in controllers.split(","):
            continue
        for name in ("memory.events", "memory.oom_control"):
            path = root / place.lstrip("/") / name
            if path.is_file():
                return path
    return None


def _count(path: Path | None) -> int | None:
    if path is None:
        return None
    for line in (read_text(str(path)) or "").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None
