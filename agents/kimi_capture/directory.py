"""A dump directory as a file system has it: who holds it, how a line becomes durable, what a killed writer left.

Every writer shares a lock on the manifest and has its own lock file alone; a repair has the manifest alone. The kernel
lets go of both when their process ends, however it ends, so what a lock protects belongs to a living process.
"""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kimi_capture.format import (
    COMMITS,
    MANIFEST,
    STATE_DTYPES,
    Commit,
    FormatError,
    Manifest,
    encode_commit,
    file_xxh3,
    read_commits,
    read_shard,
)
from kimi_capture.locks import is_locked

RUNS: Final = "runs.jsonl"
"""One line for each time that a rank began to write: run, rank, time, versions, command line, first shard."""
QUARANTINE: Final = "quarantine"
"""Directory in the dump for files that are not part of it any more."""
SHARD: Final = "shard-"
_LOCK: Final = ".lock"


class HeldError(Exception):
    """Another process holds the dump or one writer's part of it; says which."""


def hold_directory(directory: Path, *, exclusive: bool) -> int:
    """Lock a dump; returns the descriptor whose closing lets go of it.

    Raises HeldError when another process holds it, OSError when the manifest cannot be opened for writing.
    """
    fd = os.open(directory / MANIFEST, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        who = ", ".join(map(str, holders(directory))) if exclusive else "a repair"
        raise HeldError(f"{directory} is held by {who or 'another process'}") from error
    except OSError:
        os.close(fd)
        raise
    return fd


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a writer's lock, or held it when it was killed, as the lock file says."""

    pid: int | None
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.pid is not None else "a writer"


def holders(directory: Path) -> list[Holder]:
    """The writers that hold a dump, or held it when they were killed."""
    return [_holder(path) for path in sorted(lock_files(directory))]


def lock_files(directory: Path) -> Iterator[Path]:
    """The writers' lock files; one that nobody holds is a killed writer's."""
    return directory.glob(f".{SHARD}*{_LOCK}")


def shard_prefix(rank: str) -> str:
    """How the names of all files of a rank's writer begin."""
    return f"{SHARD}{rank.replace(' ', '-')}-"


def is_held(directory: Path, prefix: str) -> bool:
    """Whether a writer's part of a dump is still written: by the rank, or by what writes its shards after its death."""
    return is_locked(_lock_file(directory, prefix))


def _lock_file(directory: Path, prefix: str) -> Path:
    return directory / f".{prefix.removesuffix('-')}{_LOCK}"


class WriterLock:
    """One writer's part of a dump: all files whose names begin with its prefix."""

    def __init__(self, directory: Path, prefix: str, run: str = "") -> None:
        """Take it. Raises HeldError when another process has it, OSError when the lock file cannot be made."""
        self._path = _lock_file(directory, prefix)
        self.fd = self._take()
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "run": run}
        try:
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, json.dumps(holder).encode(), 0)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # the lock counts, its text only names the holder
                self.release()
                raise

    def release(self) -> None:
        """Let go of it; its file goes with it, so that one which stays behind tells of a killed writer."""
        self._path.unlink(missing_ok=True)
        os.close(self.fd)

    def _take(self) -> int:
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(fd).st_ino == os.stat(self._path).st_ino:  # noqa: PTH116 - of the same kind as fstat
                    return fd
            except BlockingIOError as error:
                os.close(fd)
                raise HeldError(f"{self._path.parent} is being written by {_holder(self._path)}") from error
            except FileNotFoundError:
                pass  # its last holder removed it while it was opened here: take a new one
            os.close(fd)


def append_durably(path: Path, lines: bytes) -> None:
    """Append whole lines to a file and fsync it; several processes may.

    Raises OSError; then none of them is there, where the disk still takes that back, and the same call can be repeated.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        size = _cut_torn(fd)
        try:
            if os.write(fd, lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(fd)
            if not size:
                fsync_directory(path.parent)
            os.utime(fd)  # ext4's fsync may return 0 when its journal was given up: only a later change is refused
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)


def cut_torn_line(path: Path) -> int:
    """Cut a file's last line when it has no end; how many lines were cut: 0 or 1. Nobody else may append meanwhile.

    Raises OSError; a file that is not there has no torn line.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        size = os.fstat(fd).st_size
        torn = _cut_torn(fd) != size
        os.fsync(fd)
    finally:
        os.close(fd)
    return int(torn)


def fsync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temporary_files(directory: Path) -> Iterator[Path]:
    """Files that were being written: a shard's, the manifest's or a list's."""
    return (path for path in directory.glob(".*.tmp") if path.is_file() and not path.is_symlink())


def orphans(directory: Path) -> list[Path]:
    """Shard files that no commit names, in order of their names. Raises OSError."""
    committed = {commit.shard for commit in read_commits(directory)[0]}
    return [path for path in sorted(directory.glob(f"{SHARD}*.safetensors")) if path.name not in committed]


def settle(path: Path, manifest: Manifest, rids: set[str]) -> Commit | None:
    """Commit an orphan that is whole, or quarantine it; the commit, if it became one.

    A shard gets its name only after all its bytes are durable, so a killed writer's orphan lacks nothing but its line.
    `rids` are the requests that the dump has already; an orphan with any of them is not committed, its own are added.
    Nobody else may write the dump's files of this prefix meanwhile. Raises OSError.
    """
    try:
        commit = recover(path, manifest)
    except FormatError:
        commit = None
    if commit is None or not rids.isdisjoint(commit.rids):
        quarantine(path)
        return None
    fsync_directory(path.parent)
    append_durably(path.parent / COMMITS, encode_commit(commit))
    rids.update(commit.rids)
    return commit


def recover(path: Path, manifest: Manifest) -> Commit:
    """The commit of a whole shard of this dump, read from its file.

    Raises FormatError when it is damaged or another dump's, OSError when it cannot be read.
    """
    shard = read_shard(path)
    if damaged := shard.corrupt():
        raise FormatError(path, f"{', '.join(damaged)} are damaged")
    held = (shard.meta.dump, shard.meta.boundaries, shard.last_hidden_state.shape[1], shard.dtype)
    if held != (manifest.dump, manifest.boundaries, manifest.hidden_size, STATE_DTYPES[manifest.dtype]):
        raise FormatError(path, f"it is a shard of dump {shard.meta.dump} or of other layers")
    found, rids = path.stat(), tuple(sample.rid for sample in shard.meta.samples)
    return Commit(path.name, found.st_size, shard.rows, len(rids), file_xxh3(path), found.st_mtime, rids)


def quarantine(path: Path) -> Path:
    """Move a file of a dump into its quarantine, under a name that is free there. Raises OSError."""
    directory = path.parent / QUARANTINE
    directory.mkdir(exist_ok=True)
    target, number = directory / path.name, 0
    while target.exists():
        number += 1
        target = directory / f"{path.name}.{number}"
    path.rename(target)
    fsync_directory(directory)
    fsync_directory(path.parent)
    return target


def next_number(directory: Path, prefix: str) -> int:
    """The first shard number of a prefix that was never used, not even by a file in quarantine. Raises OSError."""
    names = [commit.shard for commit in read_commits(directory)[0]]
    names += [path.name for place in (directory, directory / QUARANTINE) for path in place.glob(f"{prefix}*")]
    numbers = [name.removeprefix(prefix).split(".")[0] for name in names if name.startswith(prefix)]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1


def runs_line(manifest: Manifest, rank: str, first: int) -> bytes:
    """The line of `runs.jsonl` for a rank that begins to write at shard number `first`."""
    run = {
        "run": manifest.run, "rank": rank, "time": time.time(), "first_shard": first, "sglang": manifest.sglang,
        "plugin": manifest.plugin, "argv": manifest.argv, "parallel": manifest.parallel,
    }  # fmt: skip
    return json.dumps(run, separators=(",", ":")).encode() + b"\n"


def _cut_torn(fd: int) -> int:
    """Cut a last line that has no end: its writer died or failed in it. Returns the size that is left."""
    size = end = os.fstat(fd).st_size
    while end and (block := os.pread(fd, min(4096, end), max(0, end - 4096))):
        if newline := block.rfind(b"\n") + 1:
            end = max(0, end - 4096) + newline
            break
        end = max(0, end - 4096)
    if end != size:
        os.ftruncate(fd, end)
    return end


def _holder(path: Path) -> Holder:
    try:
        holder = json.loads(path.read_bytes())
        return Holder(int(holder["pid"]), str(holder["host"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Holder(None, socket.gethostname())
