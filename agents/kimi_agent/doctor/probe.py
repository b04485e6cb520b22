"""The close look, made by a child of the agent: `python -m kimi_agent.doctor.probe`, a `Request` in, two `Deep`s out.

Every probe has a thread and a deadline of its own, since any of them may meet a file system or a driver that never
answers: what did not come back in time is reported as skipped, and the child ends without waiting for it.
"""

import http.client
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from kimi_agent.doctor.facts import (
    Answer,
    Deep,
    Disk,
    DiskWait,
    Growing,
    Lock,
    Machine,
    Partial,
    Port,
    Request,
    Skipped,
    Stack,
)
from kimi_agent.engine.loads import LOADS_PATH
from kimi_agent.engine.options import value
from kimi_agent.host import diskio, downloads, locks, machine, stacks
from kimi_agent.host.procfs import connections, holder_pid, open_files, process_tree, read_text

DEADLINE: Final = 10.0
"""Seconds for all probes of one look together; they run side by side."""
BETWEEN: Final = 6.2
"""Seconds between the two stacks of a process."""
GROWTH: Final = 1.5
"""Seconds over which a file is watched for growth."""
HTTP_DEADLINE: Final = 2.0
STACK_THREADS: Final = 4
MOST_LOCKS: Final = 16
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - looked at only


@dataclass(slots=True)
class Probes:
    """Runs probes side by side and keeps what came back in time."""

    found: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def run(self, probes: dict[str, Callable[[], Any]]) -> None:
        """Run them; return when all are done, or at the deadline."""
        threads = {
            name: threading.Thread(target=self._one, args=(name, probe), name=name, daemon=True)
            for name, probe in probes.items()
        }
        for thread in threads.values():
            thread.start()
        end = time.monotonic() + DEADLINE
        for name, thread in threads.items():
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                self.skipped[name] = f"no answer in {DEADLINE:.0f} s"

    def _one(self, name: str, probe: Callable[[], Any]) -> None:
        try:
            self.found[name] = probe()
        except stacks.NotSeenError as error:
            self.skipped[name] = str(error)
        except (OSError, ValueError) as error:
            self.skipped[name] = f"{type(error).__name__}: {error}"


def look(request: Request) -> tuple[Deep, "Reads | None"]:
    """Everything but what takes a second look, and what that is to be compared with."""
    began, probes = time.time(), Probes()
    tree = process_tree(request.main)
    probes.run({
        "stack": lambda: take_stacks(request),
        "reads": lambda: find_reads(request),
        "lock": lambda: find_locks(request, tree),
        "disk": lambda: find_disks(request),
        "download": lambda: find_growing(request, tree),
        "port": lambda: find_ports(request, tree),
        "machine": find_machine,
        "http": lambda: ask_http(request),
    })  # fmt: skip
    found = probes.found
    first, unseen = found.get("stack", ((), ()))
    growing, partial = found.get("download", ((), request.partial))
    skipped = [Skipped(what, why) for what, why in probes.skipped.items()]
    deep = Deep(
        time=began,
        first=first,
        locks=found.get("lock", ()),
        growing=growing,
        partial=partial,
        ports=found.get("port", ()),
        disks=found.get("disk", ()),
        machine=found.get("machine"),
        answers=found.get("http", ()),
        skipped=(*skipped, *unseen),
    )
    return deep, found.get("reads")


def take_stacks(request: Request) -> tuple[tuple[Stack, ...], tuple[Skipped, ...]]:
    """The stacks that were asked for, and of which processes there is none and why."""
    if not request.ranks:
        return (), ()
    seen: dict[str, Stack] = {}
    unseen: dict[str, str] = {}
    queue = list(request.ranks)

    def work() -> None:
        while queue:
            try:
                name, pid = queue.pop(0)
            except IndexError:
                return
            try:
                seen[name] = _stack(name, pid, request.sockets)
            except stacks.NotSeenError as error:
                unseen[name] = str(error)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(STACK_THREADS)]
    for worker in workers:
        worker.start()
    end = time.monotonic() + DEADLINE - 0.5
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
    names = [name for name, _ in request.ranks]
    missing = {name: unseen.get(name, "no answer in time") for name in names if name not in seen}
    skipped = [Skipped(f"stack of {name}", why) for name, why in missing.items()]
    if missing and not seen:
        skipped.insert(0, Skipped("stack", next(iter(missing.values()))))
    return tuple(seen[name] for name in names if name in seen), tuple(skipped)


def _stack(name: str, pid: int, sockets: str | None) -> Stack:
    try:
        return Stack(name, "py-spy", time.time(), stacks.by_py_spy(pid))
    except stacks.NotSeenError as refused:
        path = Path(sockets) / f"cap-{pid}.sock" if sockets else None
        if path is None or not path.exists():
            raise
        try:
            return Stack(name, "plugin", time.time(), stacks.by_plugin(path))
        except stacks.NotSeenError as error:
            raise stacks.NotSeenError(f"{refused}; {error}") from error


def find_locks(request: Request, tree: list[int]) -> tuple[Lock, ...]:
    """Lock files in the server's kernel caches, and any lock that one of its processes is blocked on."""
    names = {pid: f"pid {pid}" for pid in tree} | {pid: name for name, pid in request.ranks}
    blocked = locks.waiting(names)
    paths = {path for place in locks.cache_directories(request.environment) for path in locks.lock_files(place)}
    wanted: dict[Path, tuple[str, ...]] = dict.fromkeys(paths, ())
    for pid in tree:
        for target in open_files(pid) if blocked else ():
            inode = locks.inode_of(Path(target)) if target.startswith("/") else None
            if inode in blocked:
                wanted[Path(target)] = tuple(blocked[inode])
    held = locks.holders(wanted)
    found = []
    for path, waiters in wanted.items():
        owner = held.get(path)
        if not waiters and owner is None and path.name.endswith(".lock"):
            continue  # the file of an advisory lock stays when it is free; only torch's baton is the lock itself
        holder = locks.name_of(owner) if owner is not None else None
        found.append(Lock(str(path), locks.age(path), holder, owner in tree, waiters))
    found.sort(key=lambda lock: (not lock.waiters, lock.age))
    return tuple(found[:MOST_LOCKS])


def find_disks(request: Request) -> tuple[Disk, ...]:
    """The file systems that a start reads from and writes to."""
    temporary = request.environment.get("TMPDIR", "/tmp")  # noqa: S108 - looked at only
    places = {"model": request.model, SHARED_MEMORY: SHARED_MEMORY, "temporary files": temporary}
    found = []
    for what, path in places.items():
        if Path(path).exists():
            usage = shutil.disk_usage(path)
            found.append(Disk(what, path, machine.file_system(path)[1], usage.free, usage.total))
    return tuple(found)


def find_growing(request: Request, tree: list[int]) -> tuple[tuple[Growing, ...], tuple[Partial, ...]]:
    """The partial files that grew since the last look, or while they were watched; and the sizes of all of them."""
    paths = downloads.partial_files(tree, request.model)
    if not paths:
        return (), ()
    known = {Path(one.path): one for one in request.partial}
    began = {path: Partial(str(path), size, time.time()) for path, size in downloads.sizes(paths).items()}
    time.sleep(GROWTH)
    growing, partial = [], []
    for path, size in downloads.sizes(paths).items():
        now, base = time.time(), known.get(path) or began.get(path)
        partial.append(Partial(str(path), size, now))
        if base is not None and size > base.size:
            rate = (size - base.size) / (now - base.time)
            growing.append(Growing(str(path), size, rate, *downloads.progress(path, request.model)))
    return tuple(growing), tuple(partial)


def find_ports(request: Request, tree: list[int]) -> tuple[Port, ...]:
    """Who has the ports that the command line names."""
    wanted = {"HTTP": request.port}
    for flag in ("--dist-init-addr", "--nccl-init-addr", "--nccl-port"):
        number = (value(request.argv, flag) or "").rpartition(":")[2]
        if number.isdecimal():
            wanted[flag] = int(number)
    found = []
    for what, port in wanted.items():
        pid = holder_pid(port)
        holder = locks.name_of(pid) if pid is not None else None
        found.append(Port(what, port, holder, pid in tree, connections(port) if what != "HTTP" else 0))
    return tuple(found)


def find_machine() -> Machine:
    """What the kernel and the PCI bridges say about peer-to-peer writes."""
    flags = machine.iommu_flags(read_text("/proc/cmdline") or "")
    return Machine(flags, machine.iommu_groups(), machine.acs_redirecting())


def ask_http(request: Request) -> tuple[Answer, ...]:
    """Whether the main process answers what it can answer alone, and what leaves no line in the server's log."""
    if not request.serving:
        return ()
    began = time.monotonic()
    link = http.client.HTTPConnection(request.host, request.port, timeout=HTTP_DEADLINE)
    try:
        link.request("GET", LOADS_PATH)
        status = link.getresponse().status
        return (Answer(LOADS_PATH, status, time.monotonic() - began),)
    except (OSError, http.client.HTTPException) as error:
        words = "no answer" if isinstance(error, TimeoutError) else str(error)
        return (Answer(LOADS_PATH, None, time.monotonic() - began, words),)
    finally:
        link.close()


@dataclass(frozen=True, slots=True)
class Reads:
    """Who waits for a disk, and what it has given, at one time."""

    time: float
    threads: dict[tuple[str, int], tuple[str, str]]
    """(name, where in the kernel) by (process, thread id)."""
    given: int | None

    def until(self, later: "Reads") -> tuple[tuple[DiskWait, ...], float | None]:
        """The processes of which a thread waits both times, and the bytes per second between."""
        both = {rank: later.threads[rank, thread] for rank, thread in self.threads if (rank, thread) in later.threads}
        waits = tuple(DiskWait(rank, name, wchan) for rank, (name, wchan) in sorted(both.items()))
        if self.given is None or later.given is None:
            return waits, None
        return waits, max(later.given - self.given, 0) / max(later.time - self.time, 1e-3)


def find_reads(request: Request) -> Reads:
    """Which threads wait for a disk now, and what the model's disk has given."""
    threads = {
        (rank, thread): what for rank, pid in request.ranks for thread, what in diskio.waiting_threads(pid).items()
    }
    return Reads(time.monotonic(), threads, diskio.bytes_given(request.model, [pid for _, pid in request.ranks]))


def main() -> None:
    """Print the look, and with stacks print it again with the second ones; then leave, whatever is still blocked."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    found, before = look(request)
    _print(found)
    if request.ranks:
        time.sleep(max(0.0, BETWEEN - (time.time() - found.time)))
        again = Probes()
        again.run({"stack": lambda: take_stacks(request), "reads": lambda: find_reads(request)})
        after = again.found.get("reads")
        waits, given = before.until(after) if before is not None and after is not None else ((), None)
        _print(replace(found, second=again.found.get("stack", ((), ()))[0], waits=waits, given=given))
    os._exit(0)


def _print(found: Deep) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
