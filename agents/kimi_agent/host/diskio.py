"""Who waits for a disk, and what it gives: a loader's threads read while the main thread of a rank sleeps."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kimi_agent.host.procfs import bytes_read, read_text

SECTOR: Final = 512
"""Bytes of a sector in /proc/diskstats, whatever the disk's own are."""


def waiting_threads(pid: int) -> dict[int, tuple[str, str]]:
    """The threads of a process in uninterruptible sleep: (name, where in the kernel) by thread id."""
    found = {}
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return {}
    for thread in threads:
        name, _, rest = (read_text(f"{thread}/stat") or "").rpartition(")")
        if rest.split()[:1] == ["D"]:
            wchan = (read_text(f"{thread}/wchan") or "").strip()
            found[int(thread.name)] = (name.partition("(")[2], "" if wchan == "0" else wchan)
    return found


def bytes_given(path: str, pids: Iterable[int]) -> int | None:
    """Bytes that the disk below a path has given by now, or what the processes have asked of disks where it has none.

    A disk counts what it has answered, a process what it has asked: of a slow disk only the first moves steadily.
    """
    try:
        device = Path(path).stat().st_dev
    except OSError:
        return None
    for line in (read_text("/proc/diskstats") or "").splitlines():
        fields = line.split()
        if fields[:2] == [str(os.major(device)), str(os.minor(device))]:
            return int(fields[5]) * SECTOR
    asked = [count for pid in pids if (count := bytes_read(pid)) is not None]
    return sum(asked) if asked else None
