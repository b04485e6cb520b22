"""A dump directory as its writer sees it: claimed once, then shards committed one by one.

Commit rule: temporary file + fsync + rename + directory fsync + one appended, fsynced line in `commits.jsonl`.
"""

import errno
import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path

from kimi_capture.format import (
    COMMITS,
    MANIFEST,
    STATE_DTYPES,
    Array,
    Commit,
    FormatError,
    Manifest,
    Sample,
    encode_commit,
    encode_shard,
    read_commits,
    read_manifest,
    write_durably,
)


class StoreError(Exception):
    """The directory cannot take this dump: message and what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Store:
    """The shards that one rank adds to a dump directory. `commit` may be called from several threads at once."""

    def __init__(self, directory: Path, rank: str, manifest: Manifest) -> None:
        """Claim the directory: writes its manifest, or finds that of the same dump of the same launch.

        Raises StoreError when it holds anything else, OSError when it cannot be written.
        """
        self.directory = directory
        self.manifest = manifest
        self._prefix = f"shard-{rank.replace(' ', '-')}-"
        self._claim()
        for left in directory.glob(f".{self._prefix}*.tmp"):
            left.unlink()
        names = [path.name for path in directory.glob(f"{self._prefix}*.safetensors")]
        self._next = max((int(name[len(self._prefix) :].split(".")[0]) for name in names), default=-1) + 1
        commits, _ = read_commits(directory)
        for name in set(names) - {commit.shard for commit in commits}:
            (directory / name).unlink()

    def new_name(self) -> str:
        """The next shard's file name; one thread only."""
        self._next += 1
        return f"{self._prefix}{self._next - 1:06d}.safetensors"

    def commit(self, name: str, tensors: Mapping[str, Array], samples: tuple[Sample, ...]) -> Commit:
        """Write and commit a shard; when it returns, the shard is durable and listed.

        Raises OSError; then nothing is listed, and the same call can be repeated.
        """
        manifest = self.manifest
        buffers, digest = encode_shard(
            tensors, dump=manifest.dump, dtype=STATE_DTYPES[manifest.dtype], boundaries=manifest.boundaries,
            samples=samples,
        )  # fmt: skip
        self._place(name, buffers)
        size = sum(buffer.nbytes for buffer in buffers)
        commit = Commit(name, size, sum(sample.rows for sample in samples), len(samples), digest, time.time())
        self._append(encode_commit(commit))
        return commit

    def _claim(self) -> None:
        directory, manifest = self.directory, self.manifest
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / MANIFEST).exists():
            if any(not path.name.startswith(f".{MANIFEST}") for path in directory.iterdir()):
                raise StoreError(f"{directory} has files but no manifest", "give the dump a directory of its own")
            temporary = directory / f".{MANIFEST}.{os.getpid()}.tmp"
            try:
                write_durably(temporary, [memoryview(manifest.encode())])
                os.link(temporary, directory / MANIFEST)
            except FileExistsError:
                pass  # another rank of this launch was first; whose it is is checked below
            finally:
                temporary.unlink(missing_ok=True)
            _fsync_directory(directory)
            _fsync_directory(directory.parent)
        try:
            found = read_manifest(directory)
        except FormatError as error:
            raise StoreError(str(error), "give the dump a directory of its own") from error
        if (found.dump, found.run, found.boundaries) != (manifest.dump, manifest.run, manifest.boundaries):
            raise StoreError(
                f"{directory} already holds dump {found.dump} of run {found.run}", "give the dump another name"
            )

    def _place(self, name: str, buffers: list[memoryview]) -> None:
        temporary = self.directory / f".{name}.tmp"
        try:
            write_durably(temporary, buffers)
            temporary.rename(self.directory / name)
        finally:
            temporary.unlink(missing_ok=True)
        _fsync_directory(self.directory)

    def _append(self, line: bytes) -> None:
        fd = os.open(self.directory / COMMITS, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            size = os.fstat(fd).st_size
            # A crash or a full disk can have torn the last line: end it, so that it spoils no other.
            start = b"\n" if size and os.pread(fd, 1, size - 1) != b"\n" else b""
            if os.write(fd, start + line) != len(start + line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.directory / COMMITS))
            os.fsync(fd)
        finally:
            os.close(fd)
        _fsync_directory(self.directory)


def _fsync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
