"""Crashes of a writer on real files, and what is left of them: crashing.py KIND FIRST CRASHES DIRECTORY [IMAGE].

A round forks a writer, takes it or its disk away at a random moment, judges the directory, repairs it or not, and
resumes the dump until every request is in it. One JSON line a round on stdout; the first that is wrong ends it all.

KIND is `kill` (SIGKILL of the engine's side), `scribe` (SIGKILL of the process that writes the shards), `call` (SIGKILL
before, within or after one system call of a writer without such a process), `limit` (the kernel refuses to let a file
grow) or `power` (the file system IMAGE is cut off from its disk, with all that was not synced).
"""

import contextlib
import fcntl
import json
import os
import random
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kimi_agent.shards.dumps import is_dump
from kimi_agent.shards.repair import repair
from kimi_agent.shards.verify import verify
from kimi_capture.arena import Arena
from kimi_capture.directory import RUNS, orphans, temporary_files
from kimi_capture.format import COMMITS, Commit, file_xxh3, read_commits, read_shard
from kimi_capture.rows import ALREADY
from kimi_capture.scribe import Scribe
from kimi_capture.store import Store

from .dumping import Dumping, finished, manifest

REQUESTS = 40
COMMITS_ALL = 9
"""About so many shards are the requests."""
GOING_DOWN = 0x8004587D
"""ext4's ioctl that ends all I/O at once; 2 as its argument leaves the journal in memory unwritten."""
WRITES = ("write", "pwrite")
REPORT = os.write
"""Not one of the calls that a crash comes in: a line cut in two is no line, and another thread's may follow."""
CALLS = (*WRITES, "open", "fsync", "rename", "link", "unlink", "ftruncate", "mkdir")


class Reporting(Store):
    """Says of each commit, the moment it is durable, that it is."""

    def __init__(self, directory: Path, out: int, *, resume: bool, apart: bool) -> None:
        super().__init__(directory, "TP0", manifest(), resume=resume, start=partial(Scribe, Arena()) if apart else None)
        self._out = out
        scribe = self._committer.pid if isinstance(self._committer, Scribe) else 0
        REPORT(out, f"{json.dumps(scribe)}\n".encode())

    def commit(self, *args: Any, **options: Any) -> Commit:
        commit = super().commit(*args, **options)
        REPORT(self._out, f"{json.dumps([commit.shard, commit.bytes, commit.rows, commit.xxh3])}\n".encode())
        return commit


def rows_of(number: int) -> int:
    return 5 + number * 7 % 31


def write(directory: Path, out: int, prepare: Callable[[], None] | None, *, resume: bool) -> None:
    """Write every request and end the process: with 0 when all are in the dump, 3 when it failed.

    By a process of its own, but where this one is prepared to end.
    """
    if prepare:
        prepare()
    code = 4
    try:
        dumping = Dumping(directory, Reporting(directory, out, resume=resume, apart=prepare is None))
        for number in range(REQUESTS):
            dumping.writer.put(finished(f"r{number}", rows_of(number), number))
            dumping.writer.hold_back()
        dumping.writer.close(time.monotonic() + 30)
        dumping.writer.store.release()
        code = 3 if dumping.failures else 0
        assert code or dumping.lost.keys() <= {ALREADY}, dumping.lost
    except OSError:
        code = 3
    finally:
        os._exit(code)


class Writer:
    """A forked writer, and the commits that it reported."""

    def __init__(self, directory: Path, *, resume: bool, prepare: Callable[[], None] | None = None) -> None:
        self._in, out = os.pipe()
        self._text = b""
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._in)
            write(directory, out, prepare, resume=resume)
        os.close(out)

    def read(self, lines: int, timeout: float = 60) -> bool:
        """Wait until so many commits are reported; False when the writer ended before."""
        while self._text.count(b"\n") < lines:
            assert select.select([self._in], [], [], timeout)[0], "the writer hangs"
            data = os.read(self._in, 65536)
            if not data:
                return False
            self._text += data
        return True

    def end(self) -> int:
        """The exit code; everything it reported is read."""
        self.read(1 << 30)
        os.close(self._in)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def _lines(self) -> list[Any]:
        return [json.loads(line) for line in self._text.split(b"\n")[:-1]]

    @property
    def scribe(self) -> int:
        """The process that writes the shards; 0 when there is none."""
        return int(self._lines[0]) if self._lines else 0

    @property
    def reported(self) -> list[list[Any]]:
        return self._lines[1:]


def kill_at_call(source: random.Random) -> Callable[[], None]:
    """Make this process kill itself around its n-th change of a file; of a write only a part may happen."""
    when = source.choice(("before", "within", "after"))
    names = WRITES if when == "within" else CALLS
    left = source.randrange(1, 2 * COMMITS_ALL if when == "within" else 10 * COMMITS_ALL)

    def wrap(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if when == "within":
                    real(args[0], memoryview(args[1])[: len(args[1]) // 2], *args[2:])
                elif when == "after":
                    real(*args, **options)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    def prepare() -> None:
        for name in names:
            setattr(os, name, wrap(getattr(os, name), name))

    return prepare


def crash(kind: str, source: random.Random, directory: Path, *, resume: bool) -> tuple[Writer, bool]:
    """A writer that was stopped at a random moment, and whether it was: it may have been quicker."""
    writer = Writer(directory, resume=resume, prepare=kill_at_call(source) if kind == "call" else None)
    if kind != "call":
        if not writer.read(1 + source.randrange(COMMITS_ALL)):
            return writer, writer.end() != 0
        time.sleep(source.uniform(0, 0.01))  # the moment itself: anywhere within a commit
    with contextlib.suppress(ProcessLookupError):
        if kind in {"kill", "scribe"}:
            os.kill(writer.pid if kind == "kill" else writer.scribe, signal.SIGKILL)
        elif kind == "limit":
            resource.prlimit(writer.scribe, resource.RLIMIT_FSIZE, (source.randrange(50_000), resource.RLIM_INFINITY))
    if kind == "power":
        cut_off(directory.parent)
    hit = writer.end() != 0
    if writer.scribe:
        wait_for_end(writer.scribe)  # it ends what it began
    return writer, hit


def cut_off(disk: Path) -> None:
    """Nothing more is written to a mounted ext4, and what was not synced is gone."""
    fd = os.open(disk, os.O_RDONLY)
    fcntl.ioctl(fd, GOING_DOWN, struct.pack("I", 2))
    os.close(fd)


def wait_for_end(pid: int) -> None:
    """Until no thread of a process is left: one that still ends holds its locks, though the process is a zombie."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([fd], [], [], 60)[0], "the writing process hangs"
    os.close(fd)


def judge(directory: Path, reported: list[list[Any]]) -> str:
    """Every committed shard is whole, every reported commit is there; what the crash left, in a word."""
    if not directory.is_dir():
        assert not reported
        return "nothing"
    commits, unreadable = read_commits(directory)
    assert unreadable == 0
    for commit in commits:
        shard = read_shard(directory / commit.shard)
        assert (shard.path.stat().st_size, file_xxh3(shard.path)) == (commit.bytes, commit.xxh3)
        assert shard.corrupt() == []
    listed = [[commit.shard, commit.bytes, commit.rows, commit.xxh3] for commit in commits]
    assert all(commit in listed for commit in reported), (reported, listed)
    file = directory / COMMITS
    if file.exists() and not file.read_bytes().endswith((b"\n", b"")[: 1 + (not file.stat().st_size)]):
        return "torn line"
    if orphans(directory):
        return "no line"
    return "unfinished" if list(temporary_files(directory)) else "clean"


def repaired(directory: Path) -> None:
    """A repair leaves a dump that verifies, and a second one nothing to do."""
    if is_dump(directory):
        first = repair(directory)
        assert first.ok, first
        assert first.lost == ()
        result = verify(directory)
        assert result.ok, result.problems
        assert result.uncommitted == ()
        again = repair(directory)
        assert (again.removed, again.committed, again.quarantined, again.lines) == ((), (), (), 0)


def complete(directory: Path, crashes: int) -> None:
    """A resumed dump ends with every request in it once, row for row."""
    last = Writer(directory, resume=directory.is_dir())
    assert last.end() == 0
    result = verify(directory)
    assert result.ok, [str(problem) for shard in result.shards for problem in shard.problems]
    assert result.uncommitted == ()
    found: Counter[str] = Counter()
    for commit in result.dump.commits:
        samples = read_shard(directory / commit.shard).meta.samples
        assert tuple(sample.rid for sample in samples) == commit.rids
        found.update({sample.rid: sample.rows * 1000 + 1 for sample in samples})
    assert found == {f"r{number}": rows_of(number) * 1000 + 1 for number in range(REQUESTS)}
    assert 1 <= len((directory / RUNS).read_bytes().splitlines()) <= crashes + 1


def remount(image: Path, mountpoint: Path) -> None:
    """Bring the disk back as after a reboot: its journal is replayed."""
    subprocess.run(["umount", mountpoint], check=True)
    subprocess.run(["mount", "-o", "loop", image, mountpoint], check=True)


def one_round(kind: str, seed: int, base: Path, image: Path | None) -> dict[str, Any]:
    source = random.Random(seed)
    directory = base / f"{kind}{seed}"
    left: list[str] = []
    reported: list[list[Any]] = []
    hits = 0
    crashes = 1 + source.randrange(2)
    for _ in range(crashes):
        writer, hit = crash(kind, source, directory, resume=directory.is_dir())
        reported += writer.reported
        hits += hit
        if image is not None:
            remount(image, base)
        left.append(judge(directory, reported))
        if source.random() < 0.7:  # else the resumed dump has to see to it
            repaired(directory)
            judge(directory, reported)
    complete(directory, crashes)
    judge(directory, reported)
    shutil.rmtree(directory)
    return {"seed": seed, "crashes": hits, "left": left, "reported": len(reported)}


def main(kind: str, first: str, crashes: str, base: str, image: str | None = None) -> None:
    seed, left = int(first), int(crashes)
    while left > 0:
        done = one_round(kind, seed, Path(base), Path(image) if image else None)
        print(json.dumps(done), flush=True)
        seed, left = seed + 1, left - done["crashes"]


if __name__ == "__main__":
    main(*sys.argv[1:])
