"""A dump directory as its writer sees it: claimed once, then shards committed one by one.

Commit rule: temporary file + fsync + rename + directory fsync + one appended, fsynced line in `commits.jsonl`.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

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


class Store:
    """The shards that one rank adds to a dump directory. `commit` may be called from several threads at once."""

    def __init__(self, directory: Path, rank: str, manifest: Manifest, *, resume: bool = False) -> None:
        """Claim the directory: a new one, or with `resume` that of an equal dump which another run began.

        Raises StoreError when it holds anything else, OSError when it cannot be written.
        """
        self._claim = Claim(directory, rank, manifest, resume=resume)
        self.directory = directory
        self.manifest = manifest
        self._windows = Windows()
        self.rids = self._claim.rids
        """The requests that the dump had before."""
        self._next = self._claim.first

    def release(self) -> None:
        """Let others have the directory; nothing may be committed after."""
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
        manifest = self.manifest
        parts = {name: [tensor] if isinstance(tensor, np.ndarray) else tensor for name, tensor in tensors.items()}
        buffers = encode_parts(
            parts, moments, dump=manifest.dump, dtype=STATE_DTYPES[manifest.dtype], boundaries=manifest.boundaries,
            samples=samples, self_check=self_check,
        )  # fmt: skip
        size, digest = self._place(name, buffers)
        rids = tuple(sample.rid for sample in samples)
        commit = Commit(name, size, sum(sample.rows for sample in samples), len(samples), digest, time.time(), rids)
        append_durably(self.directory / COMMITS, encode_commit(commit))
        return commit

    def _place(self, name: str, buffers: list[Array]) -> tuple[int, str]:
        temporary = self.directory / f".{name}.tmp"
        try:
            placed = write_direct(temporary, buffers, self._windows)
            temporary.rename(self.directory / name)
        finally:
            temporary.unlink(missing_ok=True)
        fsync_directory(self.directory)
        return placed
