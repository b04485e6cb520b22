"""The journal: every event, numbered, in segment files on disk.

It is the buffer between the agent and its clients: a slow client reads the disk at its own pace and stalls nobody.
The oldest segments are dropped when the journal outgrows its limit; a reader is told what is gone. While the disk takes
nothing the newest events are held in memory: readers get them all the same, and the disk once it can.
"""

import asyncio
import errno
import fcntl
import json
import os
import time
import uuid
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kimi_agent.counts import many
from kimi_agent.errors import KimiError
from kimi_agent.model.events import Body, Event, Gap, Note
from kimi_agent.paths import private_dir
from kimi_agent.wire.codec import WireError, decode_event, encode_event
from kimi_capture.locks import is_locked

SEGMENT_BYTES = 16 << 20
LIMIT_BYTES = 512 << 20
HELD_BYTES = 8 << 20
"""Of events that the disk does not take; the oldest of them are dropped."""
READ_BYTES = 256 << 10
TOGETHER = 0.05
"""Seconds in which events that follow one another are waited for, to be sent as one."""


@dataclass(slots=True)
class _Place:
    """Where a reader is, so that it goes on there instead of counting the lines of a segment anew."""

    path: Path | None = None
    offset: int = 0
    """Bytes of the segment's lines that were read."""
    seq: int = 0
    """Number of the last of them."""


class Journal:
    """One writer, any number of readers, in one process."""

    def __init__(
        self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES, limit_bytes: int = LIMIT_BYTES,
        held_bytes: int = HELD_BYTES,
    ) -> None:  # fmt: skip
        """Open the journal, or begin one.

        Raises:
            KimiError: the directory cannot be used, or another agent has it open.
        """
        self._directory = private_dir(directory)
        self._segment_bytes = segment_bytes
        self._limit_bytes = limit_bytes
        self._held_bytes = held_bytes
        self._lock = self._take_lock()
        self.epoch = self._read_epoch()
        """Identity of the journal; sequence numbers count within it."""
        self._segments = sorted(self._directory.glob("*.ndjson"))
        self._firsts = [int(path.stem) for path in self._segments]
        self.begun = self._last = self._on_disk = self._recover()
        """Numbers of the newest event: when this began, of all, and of those in a file."""
        self._held: deque[bytes] = deque()
        """Lines of the newest events, in order up to the last: those that the disk has not taken."""
        self._held_size = 0
        self.problem = ""
        """Why the newest events are held in memory only; empty while the disk takes them."""
        self.dropped = 0
        """Events that came to no file, in this agent's life, because the disk took nothing for too long."""
        self._file = -1
        self._written = 0
        self._grown = asyncio.Event()
        self._wall = time.time() - time.monotonic()

    @property
    def first(self) -> int:
        """Sequence number of the oldest event still held, `last + 1` when there is none."""
        return self._firsts[0] if self._firsts else self._last - len(self._held) + 1

    @property
    def last(self) -> int:
        """Sequence number of the newest event, 0 when there is none."""
        return self._last

    def append(self, body: Body) -> Event | None:
        """Journal one event; it is in the file when this returns, or held in memory, and then `problem` says why.

        Its time never runs backwards within one agent's life, whatever is done to the host's clock.
        Returns `None` when the journal was let go of: it may be another agent's by now.
        """
        if self._lock < 0:
            return None
        event = Event(self._last + 1, round(self._wall + time.monotonic(), 3), body)
        self._last = event.seq
        line = encode_event(event) + b"\n"
        self._held.append(line)
        self._held_size += len(line)
        self._write_held()
        self._grown.set()
        self._grown = asyncio.Event()
        return event

    def _write_held(self) -> None:
        try:
            while self._held:
                self._write(self._last - len(self._held) + 1, self._held[0])
                self._let_go()
            self.problem = ""
        except OSError as error:
            self.problem = os.strerror(error.errno or errno.EIO)
            while self._held_size > self._held_bytes:
                self._let_go()
                self.dropped += 1

    def _let_go(self) -> None:
        self._held_size -= len(self._held.popleft())

    def _write(self, seq: int, line: bytes) -> None:
        if self._file < 0 or self._written + len(line) > self._segment_bytes or seq != self._on_disk + 1:
            self._roll(seq)
        if os.write(self._file, line) < len(line):
            os.ftruncate(self._file, self._written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._written += len(line)
        self._on_disk = seq

    def account(self) -> Note:
        """What an operator should know when `problem` has changed."""
        if self.problem:
            kept = "what happens is kept in memory until it can"
            return Note("error", f"{self._directory} cannot be written ({self.problem}): free space there; {kept}")
        lost = (
            f"; {many(self.dropped, 'event in between is', 'events in between are')} in no file" if self.dropped else ""
        )
        return Note("error" if lost else "info", f"{self._directory} is written again{lost}")

    async def growth(self) -> None:
        """Wait for the next event."""
        await self._grown.wait()

    async def follow(self, after: int) -> AsyncGenerator[Sequence[bytes], None]:
        """Lines of every event with a sequence number above `after`, in batches, for ever.

        Where events are gone, a `Gap` event stands in their place, with the number of the last that is missing.
        """
        seq, place = after, _Place()
        while True:
            grown = self._grown
            for lines, last in self._read(seq, place):
                seq = last
                yield lines
            if seq >= self._last:
                await grown.wait()
                await asyncio.sleep(TOGETHER)

    def events(self, after: int = 0) -> Iterator[Event]:
        """Every event held with a sequence number above `after`."""
        for lines, _ in self._read(after, _Place()):
            for line in lines:
                yield decode_event(line)

    def close(self) -> None:
        """Let go of the journal; what the disk does not take even now is lost."""
        self._write_held()
        self._close_segment()
        os.close(self._lock)
        self._lock = -1

    def _read(self, after: int, place: _Place) -> Iterator[tuple[list[bytes], int]]:
        if after + 1 < self.first:
            gap = Gap(after + 1, self.first - 1, "the journal keeps only the newest events")
            yield [encode_event(Event(self.first - 1, self._wall + time.monotonic(), gap))], self.first - 1
            after = self.first - 1
        begin = max(0, bisect_right(self._firsts, after + 1) - 1)
        # Copies: while this is read, segments may be added at the end and dropped at the front, and the held written.
        segments, held = list(zip(self._segments[begin:], self._firsts[begin:], strict=True)), list(self._held)
        seq, last = after, self._last
        for path, first in segments:
            after = seq
            for lines, seq in self._read_segment(path, first, after, place):
                yield lines, seq
        if held and seq < last:
            yield [line[:-1] for line in held[-min(len(held), last - seq) :]], last

    def _read_segment(self, path: Path, first: int, after: int, place: _Place) -> Iterator[tuple[list[bytes], int]]:
        if place.path != path or place.seq > after:
            place.path, place.offset, place.seq = path, 0, first - 1
        seq, carry = place.seq, b""
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError:
            return
        with file:
            file.seek(place.offset)
            while chunk := file.read(READ_BYTES):
                place.offset += len(carry) + len(chunk)
                *lines, carry = (carry + chunk).split(b"\n")
                seq += len(lines)
                place.offset, place.seq = place.offset - len(carry), seq
                fresh = lines[-min(len(lines), max(0, seq - after)) :] if seq > after else []
                if fresh:
                    yield fresh, seq

    def _close_segment(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _roll(self, first: int) -> None:
        self._close_segment()
        path = self._directory / f"{first:012d}.ndjson"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._written = 0
        self._segments.append(path)
        self._firsts.append(first)
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Keep the segments within the limit; those that short lives of agents left are small."""
        sizes = [path.stat().st_size if path.exists() else 0 for path in self._segments]
        held = sum(sizes) + self._segment_bytes
        while held > self._limit_bytes and len(self._segments) > 1:
            held -= sizes.pop(0)
            self._segments.pop(0).unlink(missing_ok=True)
            self._firsts.pop(0)

    def _recover(self) -> int:
        """The last whole event's number; a torn last line, left by a crash, is cut off."""
        while self._segments:
            path, first = self._segments[-1], self._firsts[-1]
            data = path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if len(whole) < len(data):
                os.truncate(path, len(whole))
            count = whole.count(b"\n")
            if count:
                self._check(whole[: whole.find(b"\n")], path, first)
                return first + count - 1
            path.unlink()
            self._segments.pop()
            self._firsts.pop()
        return 0

    @staticmethod
    def _check(line: bytes, path: Path, first: int) -> None:
        try:
            seq = decode_event(line).seq
        except WireError as error:
            raise KimiError(f"journal {path} is damaged: {error.message}", "Move the directory away.") from error
        if seq != first:
            raise KimiError(f"journal {path} begins with event {seq} instead of {first}", "Move the directory away.")

    def _take_lock(self) -> int:
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise KimiError(
                f"another agent has {self._directory} open", "Stop it, or choose another --home."
            ) from error
        return lock

    def _read_epoch(self) -> str:
        path = self._directory / "epoch.json"
        if path.exists():
            return str(json.loads(path.read_text())["epoch"])
        epoch = uuid.uuid4().hex
        part = path.with_suffix(".tmp")
        try:
            part.write_text(json.dumps({"epoch": epoch}))
            part.rename(path)
        except OSError as error:
            what = f"cannot write {path}: {error.strerror}"
            raise KimiError(what, "Free space there, or choose another --home.") from error
        return epoch


def locked(directory: Path) -> bool:
    """Whether an agent has this journal open."""
    return is_locked(directory / "lock")
