"""Reading /proc: one process, the descendants of one, ports and shared memory."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")

_SHM = re.compile(r"/dev/shm/(?:sglang_loads_|sgl_shm_)[\w.\-]+")  # noqa: S108 - names to look for, nothing is written
_SEMAPHORE = re.compile(r" (\d+) +/dev/shm/sem\.")
_LISTEN: Final = "0A"
_ESTABLISHED: Final = "01"


@dataclass(frozen=True, slots=True)
class Stat:
    """What `/proc/<pid>/stat` says of a process."""

    pid: int
    name: str
    """The kernel's name of it, 15 bytes at most."""
    state: str
    parent: int
    session: int
    """Pid of the session's leader: what a process keeps when its parent dies."""
    major_faults: int
    cpu: int
    """User and system time, in clock ticks."""
    start: int
    """Ticks since boot: with the pid it names a process for ever."""
    rss: int
    """Bytes."""


def read_text(path: str) -> str | None:
    """A file of /proc as text; `None` when it is gone or may not be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - Path costs more than the read itself
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None


def read_stat(pid: int) -> Stat | None:
    """One process; `None` when there is none."""
    text = read_text(f"/proc/{pid}/stat")
    if text is None:
        return None
    # The name is in parentheses and may itself hold any of them.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) < 22:
        return None
    return Stat(
        pid=pid,
        name=head.partition("(")[2],
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        major_faults=int(fields[9]),
        cpu=int(fields[11]) + int(fields[12]),
        start=int(fields[19]),
        rss=int(fields[21]) * PAGE,
    )


def bytes_read(pid: int) -> int | None:
    """What a process and its threads have asked of disks; `None` when that may not be read."""
    for line in (read_text(f"/proc/{pid}/io") or "").splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return None


def starttime(pid: int) -> int | None:
    """Ticks between boot and the process's start; `None` when it is gone or a zombie."""
    stat = read_stat(pid)
    return stat.start if stat is not None and stat.state not in "ZX" else None


@cache
def boot_id() -> str:
    """The kernel's identity of this boot; start times only compare within one."""
    return (read_text("/proc/sys/kernel/random/boot_id") or "").strip()


def title(pid: int) -> str:
    """The process's command line, as it set it itself; empty for a kernel thread, a zombie or a process gone."""
    return (read_text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()


def pids() -> set[int]:
    """Every process of the host that can be seen from here."""
    with os.scandir(PROC) as entries:
        return {int(entry.name) for entry in entries if entry.name.isdecimal()}


def process_tree(pid: int) -> list[int]:
    """A process and its descendants, parents first; empty when it is gone."""
    parents = {each: stat.parent for each in pids() if (stat := read_stat(each)) is not None}
    return descendants(pid, parents) if pid in parents else []


def descendants(pid: int, parents: dict[int, int]) -> list[int]:
    """`pid` and all below it, parents first, from a map of child to parent."""
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for each in found:
        found.extend(sorted(child for child in children.get(each, ()) if child != each))
    return found


def run_processes(main: int) -> dict[int, int]:
    """All that began with `main`, a session leader: its descendants and its session, as {pid: start time}.

    The session finds what was left to pid 1 when its parent died; zombies are left out.
    """
    stats = {pid: stat for pid in pids() if (stat := read_stat(pid)) is not None}
    below = set(descendants(main, {pid: stat.parent for pid, stat in stats.items()}))
    return {
        pid: stat.start
        for pid, stat in stats.items()
        if (pid in below or stat.session == main) and stat.state not in "ZX"
    }


def shm_segments(pids: Iterable[int]) -> set[str]:
    """SGLang's segments and semaphores in /dev/shm that these processes have mapped or open.

    Taken before a kill, they are what may be removed after it; a pattern alone would hit other servers' too.
    """
    found: set[str] = set()
    inodes: set[int] = set()
    for pid in pids:
        maps = read_text(f"/proc/{pid}/maps") or ""
        found.update(_SHM.findall(maps))
        inodes.update(int(inode) for inode in _SEMAPHORE.findall(maps))
        for target in open_files(pid):
            found.update(_SHM.findall(target))
    return found | _semaphores(inodes)


def _semaphores(inodes: set[int]) -> set[str]:
    """Python's named semaphores by inode: a map shows the name that a semaphore had before it was linked."""
    if not inodes:
        return set()
    with os.scandir("/dev/shm") as entries:  # noqa: S108 - read only
        return {entry.path for entry in entries if entry.name.startswith("sem.mp-") and entry.inode() in inodes}


def open_files(pid: int) -> Iterator[str]:
    """What a process's file descriptors lead to; nothing when they may not be seen."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return
    for link in links:
        try:
            yield str(link.readlink())
        except OSError:
            continue  # closed meanwhile


def listening(port: int) -> bool:
    """Whether anything on this host listens on a TCP port, on any address."""
    return bool(_listeners(port))


def port_holder(port: int) -> str | None:
    """Who listens on a TCP port, as `pid 123 (name)`; `a process of another user` when it may not be seen."""
    inodes = _listeners(port)
    if not inodes:
        return None
    pid = holder_pid(port)
    if pid is None:
        return "a process of another user"
    stat = read_stat(pid)
    return f"pid {pid} ({stat.name})" if stat is not None else f"pid {pid}"


def holder_pid(port: int) -> int | None:
    """The process that listens on a TCP port; `None` when none does that can be seen."""
    wanted = {f"socket:[{inode}]" for inode in _listeners(port)}
    if not wanted:
        return None
    return next((pid for pid in sorted(pids()) if any(target in wanted for target in open_files(pid))), None)


def connections(port: int) -> int:
    """Connections that are established to a TCP port of this host."""
    return len(_sockets(port, _ESTABLISHED))


def _listeners(port: int) -> set[str]:
    wanted = f":{port:04X}"
    return {inode for address, inode in _listening_sockets() if address.endswith(wanted)}


def _sockets(port: int, state: str) -> set[str]:
    """Inodes of the sockets bound to a TCP port, in one state."""
    wanted = f":{port:04X}"
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read_text(table) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == state and fields[1].endswith(wanted):
                inodes.add(fields[9])
    return inodes


def listening_ports(pids: Iterable[int]) -> set[int]:
    """The TCP ports that any of these processes listens on."""
    held = {target for pid in pids for target in open_files(pid) if target.startswith("socket:[")}
    return {
        int(address.rpartition(":")[2], 16) for address, inode in _listening_sockets() if f"socket:[{inode}]" in held
    }


def _listening_sockets() -> Iterator[tuple[str, str]]:
    """(address and port in hexadecimal, inode) of every listening TCP socket."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read_text(table) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN:
                yield fields[1], fields[9]


def with_variable(name: str, value: str) -> dict[int, int]:
    """This user's processes that were started with an environment variable, as {pid: start time}."""
    wanted = f"{name}={value}"
    return {
        pid: start
        for pid in pids()
        if wanted in (read_text(f"/proc/{pid}/environ") or "").split("\0") and (start := starttime(pid)) is not None
    }
