"""One dump of one rank: the ledger's accounts joined with the writer's, and the state an operator reads."""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from kimi_capture.chunk import Chunk
from kimi_capture.format import Array, Manifest
from kimi_capture.guard import Guard
from kimi_capture.rows import DISK_FULL, DUMP_FAILED, DUMP_STOPPED, STAGING_FULL, Ledger, Piece
from kimi_capture.selfcheck import Checker
from kimi_capture.staging import REGION, Block, Stager, Tensors, span
from kimi_capture.store import Store
from kimi_capture.writer import GIB, Finished, Writer

MIB: Final = 1 << 20
MAX_ERRORS: Final = 20
"""Problems that a status shows; the counts go on."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes."""

    shard: int
    waiting: int
    """What may wait to be written before the engine is held back."""
    memory: int
    """Host memory for rows not yet committed; beyond it new requests are not kept."""
    keep_free: int = 0
    """Of the disk; the dump pauses before it takes them."""

    @property
    def arena(self) -> int:
        """Host memory to begin with."""
        return min(self.waiting, self.memory)

    @classmethod
    def from_environment(cls) -> "Limits":
        """KIMI_CAPTURE_SHARD_MIB, _WAITING_MIB, _MEMORY_MIB (half of what is available) and _KEEP_FREE_GIB."""
        pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(
            int(os.environ.get("KIMI_CAPTURE_SHARD_MIB", "256")) * MIB,
            int(os.environ.get("KIMI_CAPTURE_WAITING_MIB", "4096")) * MIB,
            int(os.environ.get("KIMI_CAPTURE_MEMORY_MIB", str(pages // 2 // MIB))) * MIB,
            int(float(os.environ.get("KIMI_CAPTURE_KEEP_FREE_GIB", "0")) * GIB),
        )


class Dump:
    """A dump from `start` to `stopped`. Owns the ledger's accounts for that time; `lock` guards the ledger."""

    def __init__(
        self, ledger: Ledger, lock: threading.Condition, store: Store, *, stager: Stager, row_bytes: int,
        limits: Limits, guard: Guard, checker: Checker | None = None,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._lock = lock
        self._row_bytes = row_bytes
        self._checker = checker
        self._stager = stager
        self._block: Block | None = None
        """Rows of small steps that are not on their way yet; the hooks' thread's."""
        self._limits = limits
        self._state = "writing"
        self._errors: list[str] = []
        self._started = time.time()
        self.writer = Writer(
            store, row_bytes=row_bytes, shard_bytes=limits.shard, limit=limits.waiting, guard=guard, lost=self._lost,
            on_failure=self.fail, keep_free=limits.keep_free, checker=checker,
        )  # fmt: skip
        with lock:
            ledger.open()

    @property
    def manifest(self) -> Manifest:
        return self.writer.store.manifest

    @property
    def state(self) -> str:
        """writing, draining, stopped, paused or failed."""
        if self.writer.failed:
            return "failed"
        return "paused" if self.writer.paused and self._state != "stopped" else self._state

    @property
    def active(self) -> bool:
        """Whether rows may still have to be kept."""
        return self._state != "stopped" and not self.writer.failed

    def refusal(self) -> str | None:
        """Why a request that begins now cannot be kept; call with the lock held."""
        if self.writer.failed:
            return DUMP_FAILED
        if self.writer.paused and self.writer.full:
            return DISK_FULL
        uncommitted = (self._ledger.captured - self.writer.committed) * self._row_bytes
        return STAGING_FULL if uncommitted > self._limits.memory else None

    def put(self, item: Chunk | Finished) -> None:
        """Hand rows, or a request that ended, to the writer. For the hooks' thread."""
        if isinstance(item, Finished):
            self._close_block()
        self.writer.put(item)

    def stage(self, source: Tensors, pieces: list[Piece]) -> str | None:
        """Hand over a step's rows (see `Stager`), waiting for memory where that helps; else why they are lost.

        Raises ValueError when the step's tensors are too short.
        """
        if self._gather(source, pieces):
            return None
        stager = self._stager
        chunk = stager.stage(source, pieces)
        if chunk is None:
            chunk = self.writer.hold_for(lambda: self._stage_again(source, pieces), stager.arena.wait)
        if chunk is None and self.writer.idle:  # all of it is held by requests in flight
            size = stager.arena.size + max(REGION, stager.size(source))
            if size <= self._limits.memory:
                stager.grow(size)
                chunk = stager.stage(source, pieces)
        if chunk is None:
            return DISK_FULL if self.writer.paused else STAGING_FULL
        self.writer.put(chunk)
        return None

    def _stage_again(self, source: Tensors, pieces: list[Piece]) -> Chunk | None:
        self._stager.begin(everything=True)
        return self._stager.stage(source, pieces)

    def hold_back(self) -> None:
        """Keep the engine waiting while more waits to be written than may."""
        if self.writer.full:
            self._stager.begin(everything=True)
            self.writer.hold_back()

    def _gather(self, source: Tensors, pieces: list[Piece]) -> bool:
        """Add a small step's rows to the block that is being filled; False when they have to go alone."""
        if self._block is not None and self._block.add(source, pieces):
            return True
        self._close_block()
        first, last = span(pieces)
        self._block = self._stager.gather(source, last - first)
        return self._block is not None and self._block.add(source, pieces)

    def _close_block(self) -> None:
        if self._block is not None:
            block, self._block = self._block, None
            self.writer.put(self._stager.close(block))

    def fail(self, reason: str) -> None:
        """End the dump because capture cannot go on; serving does."""
        self.writer.fail(reason)
        with self._lock:
            self._note(f"the dump ended: {reason}")
            self._ledger.give_up(DUMP_FAILED)
            self._lock.notify_all()

    def stop(self, drain: float) -> None:
        """Keep no new request, let those in flight end for `drain` seconds, commit everything. Blocks."""
        deadline = time.monotonic() + drain
        with self._lock:
            self._state = "draining"
            self._ledger.close()
            self._lock.wait_for(lambda: self._ledger.in_flight == 0 or not self.active, drain)
            self._ledger.give_up(DUMP_FAILED if self.writer.failed else DUMP_STOPPED)
        settled = self.writer.close(deadline)
        self._state = "stopped"
        if settled:
            self.writer.store.release()

    def status(self) -> dict[str, Any]:
        """The `dump` part of a status; never waits for the disk or the engine."""
        writer = self.writer
        with self._lock:
            self._take_violations()
            ledger = self._ledger
            served, captured, missing = ledger.served, ledger.captured, dict(ledger.missing)
            errors = list(self._errors)
        reasons = [reason for reason in (writer.failed, writer.paused) if reason]
        return {
            "name": self.manifest.dump,
            "state": self.state,
            "reason": reasons[0] if reasons else None,
            "directory": str(writer.store.directory),
            "served": served,
            "captured": captured,
            "committed": writer.committed,
            "missing": {reason: rows for reason, rows in missing.items() if rows},
            "samples": writer.samples,
            "shards": writer.shards,
            "bytes": writer.bytes,
            "bytes_per_token": self._row_bytes,
            "write_errors": writer.write_errors,
            "started": self._started,
            "held_back_s": round(writer.held_back, 3),
            "self_check": self._checker and self._checker.describe(),
            "errors": errors + [reason for reason in (writer.failed,) if reason and reason not in errors],
        }

    def _lost(self, rows: int, reason: str, problem: str | None) -> None:
        with self._lock:
            self._ledger.drop(rows, reason)
            if problem is not None:
                self._note(problem)

    def _take_violations(self) -> None:
        for violation in self._ledger.violations:
            self._note(violation)
        self._ledger.violations.clear()

    def _note(self, problem: str) -> None:
        if len(self._errors) < MAX_ERRORS:
            self._errors.append(problem)


def tokens_of(origin: Sequence[int], output: Sequence[int], rows: int) -> Array:
    """[rows] int64: the tokens that the rows of a request were computed from."""
    return np.concatenate([np.asarray(origin, np.int64), np.asarray(output, np.int64)])[:rows]


def inside(root: Path, directory: Path) -> bool:
    """Whether a directory lies under `root`, symbolic links resolved."""
    resolved = directory.resolve()
    return resolved != root.resolve() and resolved.is_relative_to(root.resolve())
