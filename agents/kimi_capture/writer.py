"""The threads that turn staged rows into committed shards.

One thread settles chunks and groups finished samples into shards, a few commit them. A request that has ended waits for
its own rows alone, not for a later step: that may never end. What waits is bounded by the caller through `hold_back`. A
full disk pauses and is retried; any other write error ends the dump.
"""

import contextlib
import enum
import errno
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from kimi_capture.chunk import Chunk, Rows, assemble
from kimi_capture.format import Array, Commit, Sample
from kimi_capture.guard import Guard
from kimi_capture.rows import ALREADY, DISK_FULL, DUMP_FAILED, MISMATCH, ROWS_MISSING, Piece
from kimi_capture.selfcheck import Checker
from kimi_capture.store import COMMITTERS, Store

GIB: Final = 1 << 30
RETRY: Final = 2.0
"""Seconds between two tries on a full disk."""
FLUSH: Final = 30.0
"""Seconds after which a started shard is written although it is not full."""
HOLD: Final = 30.0
"""Longest time in seconds that one step is held back."""
LOOK: Final = 0.1
"""Seconds after which a step that is held back looks whether waiting still makes sense."""
POLL: Final = 0.002
"""Seconds between two looks for rows that a request which has ended waits for."""
POLL_IDLE: Final = 0.02
"""And for rows that nobody waits for yet."""
PATIENCE: Final = 1.0
"""Seconds that a shard waits for the self-check of its rows."""
Lost = Callable[[int, str, "str | None"], None]
"""Told of rows that are lost after all: how many, the reason, and the problem in words if it is an error."""


class Command(enum.Enum):
    """What else the building thread is told."""

    SUBMIT = enum.auto()
    """The shard that is not full yet is to be written."""
    END = enum.auto()
    """So it is, and no request will be handed over any more."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that ended well, on its way into a shard."""

    rid: str
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    tokens: Array
    """[rows] int64: what the scheduler says the rows' tokens are."""
    pieces: list[Piece]

    def check(self, parts: list[Rows] | None) -> str | None:
        """Why the assembled rows are not those of this request, if so."""
        if parts is None:
            return ROWS_MISSING
        positions, tokens = (
            np.concatenate([part.arrays[name] for part in parts]) for name in ("positions", "token_ids")
        )
        if len(positions) != len(self.tokens):
            return ROWS_MISSING
        contiguous = np.array_equal(positions, np.arange(len(self.tokens)))
        return None if contiguous and np.array_equal(tokens, self.tokens) else MISMATCH


@dataclass(slots=True)
class Batch:
    """Samples that will be one shard."""

    samples: list[tuple[Sample, list[Rows]]]
    bytes: int = 0
    since: float = 0.0

    @property
    def rows(self) -> int:
        return sum(sample.rows for sample, _ in self.samples)

    @property
    def parts(self) -> list[Rows]:
        """The rows of all samples, one after the other."""
        return [rows for _, parts in self.samples for rows in parts]

    def tensors(self) -> dict[str, list[Array]]:
        """The shard's tensors, each in the pieces that it lies in."""
        names = self.parts[0].arrays
        tensors: dict[str, list[Array]] = {name: [rows.arrays[name] for rows in self.parts] for name in names}
        tensors["sample_offsets"] = [np.cumsum([0, *(sample.rows for sample, _ in self.samples)], dtype=np.int64)]
        return tensors


class Writer:
    """Writes one dump of one rank. Every method may be called from any thread; none blocks but the named ones."""

    def __init__(
        self, store: Store, *, row_bytes: int, shard_bytes: int, limit: int, guard: Guard, lost: Lost,
        on_failure: Callable[[str], None], keep_free: int = 0, checker: Checker | None = None,
    ) -> None:  # fmt: skip
        """`limit`: bytes that may wait; at least two shards, or a shard that is being filled would block itself.

        `keep_free`: bytes of the disk that stay free: the dump pauses before a shard would take them.

        `on_failure` is told when a shard cannot be written for any reason but a full disk; it ends with `fail`.
        """
        self.store = store
        self._checker = checker
        self.limit = max(limit, 2 * shard_bytes)
        self.paused: str | None = None
        self.failed: str | None = None
        self.committed = 0
        self.samples = 0
        self.shards = 0
        self.bytes = 0
        self.write_errors = 0
        """Writes that failed, every try counted."""
        self.rids = store.rids
        """The requests that are in the dump, or in a shard to be."""
        self.held_back = 0.0
        """Seconds for which the engine was held back."""
        self._row_bytes = row_bytes
        self._keep_free = keep_free
        self._shard_bytes = shard_bytes
        self._guard = guard
        self._lost = lost
        self._on_failure = on_failure
        self._waiting = 0
        self._drop: str | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._inbox: queue.SimpleQueue[Chunk | Finished | Command] = queue.SimpleQueue()
        self._jobs: queue.Queue[Batch] = queue.Queue(COMMITTERS)
        self._batch = Batch([])
        self._unsettled: deque[Chunk] = deque()
        """Those whose pieces have no rows yet; the building thread's."""
        self._settle = guard(self._settle_first)
        self._stuck_since: float | None = None
        """Since when a request that has ended waits for its rows."""
        self._ended = False
        """Whether no request will be handed over any more."""
        self._forsaken = False
        """Whether nothing waits for the device any more."""
        threading.Thread(target=self._build_for_ever, name="kimi-capture-build", daemon=True).start()
        for number in range(COMMITTERS):
            threading.Thread(target=self._commit_for_ever, name=f"kimi-capture-{number}", daemon=True).start()

    @property
    def full(self) -> bool:
        """Whether more waits than may."""
        return self._waiting > self.limit

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._waiting

    def put(self, item: Chunk | Finished) -> None:
        """Hand over a step's rows, or a request all of whose chunks were handed over before."""
        self._wait_for(self._size(item))
        self._inbox.put(item)

    def hold_back(self) -> None:
        """Block while more waits than may, but not when the disk is full and not for ever: serving comes first."""
        if not self.full:
            return
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: not self.full or bool(self.paused or self.failed), HOLD)
        self.held_back += time.monotonic() - began

    def hold_for(self, attempt: Callable[[], Chunk | None], wait: Callable[[float], object]) -> Chunk | None:
        """Block until `attempt` succeeds, as long as what waits here can still give memory back, but not for ever.

        `wait` blocks until some memory is back, or for the seconds that it is given.
        """
        began = time.monotonic()
        self._inbox.put(Command.SUBMIT)  # a shard that is not full yet gives its memory back too
        chunk = None
        while chunk is None and not (self.idle or self.paused or self.failed) and time.monotonic() - began < HOLD:
            wait(LOOK)
            chunk = attempt()
        self.held_back += time.monotonic() - began
        return chunk

    def fail(self, reason: str) -> None:
        """End the dump: what is not committed is lost."""
        with self._changed:
            self.failed = self.failed or reason
            self._drop = DUMP_FAILED
            self._changed.notify_all()

    def close(self, deadline: float) -> bool:
        """Commit what is left and end the threads. Blocks; on a full disk only until `deadline` (monotonic).

        Returns whether nothing is being written any more; a disk that hangs can keep a write.
        """
        self._inbox.put(Command.END)
        with self._changed:
            while self._waiting and self._drop is None:
                if self.paused and time.monotonic() >= deadline:
                    self._drop = DISK_FULL
                    self._changed.notify_all()
                elif self._stuck_since is not None and time.monotonic() - self._stuck_since > HOLD:
                    self._guard.note("the device does not hand over the rows of a request that has ended")
                    self._forsaken, self._stuck_since = True, None
                self._changed.wait(RETRY)
            settled = self._changed.wait_for(lambda: not self._waiting, HOLD)
            self._closed = True
            self._changed.notify_all()
        return settled

    def _size(self, item: Chunk | Finished) -> int:
        return item.bytes if isinstance(item, Chunk) else len(item.tokens) * self._row_bytes

    def _wait_for(self, size: int) -> None:
        with self._changed:
            self._waiting += size
            self._changed.notify_all()

    def _build_for_ever(self) -> None:
        build, settle = self._guard(self._build), self._guard(self._settle_ready)
        while not self._closed:
            with contextlib.suppress(queue.Empty):
                build(self._inbox.get(timeout=POLL_IDLE if self._unsettled else RETRY))
            settle()
            if self._batch.samples and time.monotonic() - self._batch.since > FLUSH:
                self._submit()

    def _build(self, item: Chunk | Finished | Command) -> None:
        if isinstance(item, Chunk):
            self._unsettled.append(item)
        elif isinstance(item, Finished):
            self._add(item)
        else:
            self._submit()
            self._ended |= item is Command.END

    def _settle_ready(self) -> None:
        """Settle what is on the host. At the end what is not there yet is nobody's: its requests were given up."""
        while self._unsettled and (self._ended or self._unsettled[0].ready):
            if self._ended:
                self._wait_for(-self._unsettled.popleft().bytes)
            else:
                self._settle()

    def _settle_first(self) -> None:
        chunk = self._unsettled.popleft()
        try:
            chunk.settle()
        finally:
            self._wait_for(-chunk.bytes)

    def _await(self, pieces: list[Piece]) -> None:
        """Block until the rows of these pieces are on the host, or that is given up."""
        while self._unsettled and not (self._drop or self._forsaken) and any(piece.rows is None for piece in pieces):
            if self._unsettled[0].ready:
                self._settle()
            else:
                self._stuck_since = self._stuck_since or time.monotonic()
                time.sleep(POLL)
        self._stuck_since = None

    def _add(self, item: Finished) -> None:
        reason: str | None = ROWS_MISSING
        try:
            self._await(item.pieces)
            parts = assemble(item.pieces)
            reason = item.check(parts) or (ALREADY if item.rid in self.rids else None)
            if parts is None and (self._drop or self._forsaken):
                reason = self._drop or DUMP_FAILED
            if parts is not None and reason is None:
                self._collect(item, parts)
        finally:
            if reason is not None:
                problem = f"request {item.rid} was not written: {reason}"
                self._lost(len(item.tokens), reason, problem if reason in (ROWS_MISSING, MISMATCH) else None)
                self._wait_for(-self._size(item))

    def _collect(self, item: Finished, parts: list[Rows]) -> None:
        rows = len(item.tokens)
        self.rids.add(item.rid)
        if self._checker is not None:
            self._checker.check(item.rid, parts)
        sample = Sample(item.rid, item.prompt_tokens, item.output_tokens, rows, item.finish_reason)
        if not self._batch.samples:
            self._batch.since = time.monotonic()
        self._batch.samples.append((sample, parts))
        self._batch.bytes += self._size(item)
        if self._batch.bytes + self._size(item) // 2 >= self._shard_bytes:  # one more like it would be farther off
            self._submit()

    def _submit(self) -> None:
        if self._batch.samples:
            self._jobs.put(self._batch)
            self._batch = Batch([])

    def _commit_for_ever(self) -> None:
        commit = self._guard(self._commit)
        while not self._closed:
            try:
                commit(self._jobs.get(timeout=RETRY))
            except queue.Empty:
                continue

    def _commit(self, batch: Batch) -> None:
        reason = DUMP_FAILED
        try:
            commit = self._try(batch)
            reason = "" if commit else self._drop or DUMP_FAILED
        finally:
            if reason:
                self._lost(batch.rows, reason, None)
            self._wait_for(-batch.bytes)

    def _try(self, batch: Batch) -> Commit | None:
        """Commit a batch, however often it takes; None when the dump ends before."""
        with self._changed:
            name = self.store.new_name()
        samples = tuple(sample for sample, _ in batch.samples)
        tensors = batch.tensors()
        moments = [rows.moments for rows in batch.parts]
        checked = self._checker.totals(PATIENCE) if self._checker is not None else None
        while self._drop is None:
            try:
                if low := self._low_water(batch.bytes):
                    self._pause(low)
                    continue
                commit = self.store.commit(name, tensors, samples, moments, checked)
            except OSError as error:
                self._failed_to_write(name, error)
            else:
                self._book(commit)
                return commit
        return None

    def _failed_to_write(self, name: str, error: OSError) -> None:
        problem = f"{name} could not be written: {error.strerror or error}"
        with self._changed:
            self.write_errors += 1
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            self._guard.note(problem)
            self._on_failure(problem)
            return
        self._pause(problem)

    def _low_water(self, size: int) -> str | None:
        """Why a shard of that size may not be written yet. Raises OSError."""
        if not self._keep_free:
            return None
        disk = os.statvfs(self.store.directory)
        free = disk.f_bavail * disk.f_frsize
        if free - size >= self._keep_free:
            return None
        return f"{free / GIB:.3g} GiB are free, a shard would take some of the {self._keep_free / GIB:.3g} to keep free"

    def _pause(self, problem: str) -> None:
        """Say why nothing is written, and wait a little before the next try."""
        with self._changed:
            if self.paused is None:
                self._guard.note(problem)
            self.paused = problem
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._drop is not None, RETRY)

    def _book(self, commit: Commit) -> None:
        with self._changed:
            self.paused = None
            self.committed += commit.rows
            self.samples += commit.samples
            self.shards += 1
            self.bytes += commit.bytes
