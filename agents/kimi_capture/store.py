"""A dump directory as its writer sees it: claimed once, then shards committed one by one.

Commit rule: temporary file + fsync + rename + directory fsync + one appended, fsynced line in `commits.jsonl`.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from kimi_capture.claim import Claim
from kimi_capture.direct import Windows, write_direct
from kimi_capture.directory import append_durably, fsync_directory
from kimi_capture.format import (
    COMMITS,
    STATE_DTYPES,
    Array,
    Commit,
    Manifest,
    Sample,
    SelfCheck,
    encode_commit,
)
from kimi_capture.parts import encode_parts

COMMITTERS: Final = 12
"""Shards committed at a time: those that are not written (`direct.WRITERS`) are hashed, or wait for an fsync."""
Parts = Mapping[str, Sequence[Array]]
"""The tensors of a shard by name, each in the pieces that it lies in."""


class Committing(Protocol):
    """Who commits the shards of a claimed directory. `commit` may be called from several threads at once."""

    def commit(
        self, name: str, parts: Parts, samples: tuple[Sample, ...], moments: Sequence[Array | None],
        self_check: SelfCheck | None,
    ) -> Commit:  # fmt: skip
        """Write and commit a shard. Raises OSError; then nothing is listed, and the same call can be repeated."""
        ...

    def close(self) -> None:
        """Nothing will be committed any more. Blocks until nothing is being written."""
        ...


@dataclass(slots=True)
class Group:
    """Lines that become durable together."""

    lines: list[bytes] = field(default_factory=list)
    done: bool = False
    error: OSError | None = None


class CommitList:
    """A dump's list of commits. Shards that are ready while the disk is busy with others' lines share its next flush.

    Thread-safe.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open = Group()
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def add(self, line: bytes) -> None:
        """Make the names in the directory durable, then this line. Blocks; raises OSError, then no line is there."""
        with self._lock:
            group = self._open
            group.lines.append(line)
        with self._turn:
            if not group.done:
                self._write(group)
        if group.error is not None:
            raise OSError(group.error.errno, group.error.strerror) from group.error

    def _write(self, group: Group) -> None:
        with self._lock:
            self._open = Group()
        try:
            fsync_directory(self._directory)
            append_durably(self._directory / COMMITS, b"".join(group.lines))
        except OSError as error:
            group.error = error
        group.done = True


class Committer:
    """Commits in the calling thread."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory = directory
        self._manifest = manifest
        self._list = CommitList(directory)
        self._windows = Windows()

    def commit(
        self, name: str, parts: Parts, samples: tuple[Sample, ...], moments: Sequence[Array | None],
        self_check: SelfCheck | None,
    ) -> Commit:  # fmt: skip
        """See `Committing`."""
        manifest = self._manifest
        buffers = encode_parts(
            parts, moments, dump=manifest.dump, dtype=STATE_DTYPES[manifest.dtype], boundaries=manifest.boundaries,
            samples=samples, self_check=self_check,
        )  # fmt: skip
        size, digest = self._place(name, buffers)
        rids = tuple(sample.rid for sample in samples)
        commit = Commit(name, size, sum(sample.rows for sample in samples), len(samples), digest, time.time(), rids)
        self._list.add(encode_commit(commit))
        return commit

    def close(self) -> None:
        """Nothing is left to do."""

    def _place(self, name: str, buffers: list[Array]) -> tuple[int, str]:
        temporary = self._directory / f".{name}.tmp"
        try:
            placed = write_direct(temporary, buffers, self._windows)
            temporary.rename(self._directory / name)
        finally:
            temporary.unlink(missing_ok=True)
        return placed


class Store:
    """The shards that one rank adds to a dump directory. `commit` may be called from several threads at once."""

    def __init__(
        self, directory: Path, rank: str, manifest: Manifest, *, resume: bool = False,
        start: Callable[[Claim], Committing] | None = None,
    ) -> None:  # fmt: skip
        """Claim the directory: a new one, or with `resume` that of an equal dump which another run began.

        `start` makes who commits; without it that is the caller of `commit`. Raises StoreError when the directory
        holds anything else, OSError when it cannot be written.
        """
        self._claim = claim = Claim(directory, rank, manifest, resume=resume)
        self.directory = directory
        self.manifest = manifest
        self.rids = claim.rids
        """The requests that the dump had before."""
        self._next = claim.first
        try:
            self._committer: Committing = start(claim) if start else Committer(directory, manifest)
        except OSError:
            claim.release()
            raise

    def release(self) -> None:
        """Let others have the directory; nothing may be committed after."""
        self._committer.close()
        self._claim.release()

    def new_name(self) -> str:
        """The next shard's file name; one thread only."""
        self._next += 1
        return f"{self._claim.prefix}{self._next - 1:06d}.safetensors"

    def commit(
        self, name: str, tensors: Mapping[str, Array | Sequence[Array]], samples: tuple[Sample, ...],
        moments: Sequence[Array | None] = (None,), self_check: SelfCheck | None = None,
    ) -> Commit:  # fmt: skip
        """Write and commit a shard; when it returns, the shard is durable and listed.

        Each tensor is whole or in the pieces that it lies in; `moments` [rows, K+1, 4] belong to the pieces, None where
        they have not been computed. Raises OSError; then nothing is listed, and the same call can be repeated.
        """
        parts = {name: [tensor] if isinstance(tensor, np.ndarray) else tensor for name, tensor in tensors.items()}
        return self._committer.commit(name, parts, samples, moments, self_check)
