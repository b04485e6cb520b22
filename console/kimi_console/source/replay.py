"""A recording, an agent's journal or a plain server's log as a source of events, at any speed."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Literal

from kimi_agent.engine.dialects import is_record
from kimi_agent.engine.loglines import parse, split_lines
from kimi_agent.errors import UsageError
from kimi_agent.model.events import Event
from kimi_agent.record.format import MAGIC
from kimi_agent.record.reader import Recording
from kimi_agent.text import clean
from kimi_agent.wire.codec import MAX_LINE, WireError, decode_event
from kimi_console.source.base import Link
from kimi_console.source.files import chunks_of
from kimi_console.source.logfile import LogEvents

BATCH = 4096
"""Events handed over at once when they are not waited for."""
LOOKED_AT = 2000
"""Lines of a text in which one must be of a server for it to be taken for a log."""
_NAMED = re.compile(r"sglang|vllm|server_args=", re.IGNORECASE)
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")
_OFFSET = re.compile(r"\+(?:(?:(\d+):)?(\d+):)?(\d+(?:\.\d+)?)")


class ReplaySource:
    """Plays events back with the pauses between them divided by the speed; stays on the last one's state."""

    def __init__(self, path: Path, speed: float | None = 1.0, at: str | None = None) -> None:
        """Open a recording.

        Args:
            path: a file of events, a directory of an agent's journal, or a plain server's log.
            speed: times real time; `None` for as fast as possible.
            at: where to begin: `+[[h:]m:]s`, `hh:mm[:ss]` or an ISO date and time. What is before comes at once.

        Raises:
            UsageError: it cannot be read, is none of these, or `at` is not a time.
        """
        self.title = path.name or str(path)
        self.speed = speed
        self._path = path
        self._events = open_events(path)
        self._first = next(self._events, None)
        if self._first is None:
            raise UsageError(f"{path} holds no event", "Give a recording, a journal or a server's log.")
        self._begin = parse_at(at, self._first.time) if at else self._first.time
        self._link = Link("replay", since=time.time())
        self._playing = asyncio.Event()
        self._playing.set()
        self._closed = False

    @property
    def link(self) -> Link:
        """`replay` while it plays, `ended` after the last event."""
        return self._link

    def pause(self) -> None:
        """Hold the clock."""
        self._playing.clear()

    def resume(self) -> None:
        """Let the clock go on."""
        self._playing.set()

    async def batches(self) -> AsyncGenerator[Sequence[Event], None]:
        """The events, each when its time has come; ends after the last.

        Raises:
            UsageError: the rest of the file is damaged.
        """
        batch: list[Event] = []
        clock = self._begin
        for event in self._all():
            if self._closed:
                return
            wait = (event.time - clock) / self.speed if self.speed else 0.0
            if wait > 0 or not self._playing.is_set() or len(batch) >= BATCH:
                yield batch
                batch = []
                await self._playing.wait()
                await asyncio.sleep(max(0.0, wait))
                await self._playing.wait()
            clock = max(clock, event.time)
            batch.append(event)
        self._link = Link("ended", "the recording is over", time.time())
        yield batch

    async def close(self) -> None:
        """Stop playing."""
        self._closed = True
        self._playing.set()

    def _all(self) -> Iterator[Event]:
        if self._first is not None:
            yield self._first
        yield from self._events


def parse_at(text: str, first: float) -> float:
    """The Unix time that `--at` means, in a recording that begins at `first`.

    Raises:
        UsageError: it is not a time.
    """
    if match := _OFFSET.fullmatch(text):
        hours, minutes, seconds = match.groups()
        return first + int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds)
    try:
        if match := _CLOCK.fullmatch(text):
            begin = datetime.fromtimestamp(first)
            hour, minute, second = (int(part or 0) for part in match.groups())
            then = begin.replace(hour=hour, minute=minute, second=second, microsecond=0)
            # A clock time before the beginning means the next day's.
            return (then if then >= begin.replace(microsecond=0) else then + timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise UsageError(
            f"{clean(text)!r} is not a time", "Write +90, +1:30, 14:03:22 or 2026-01-31T14:03:22 after --at."
        ) from error


def open_events(path: Path) -> Iterator[Event]:
    """The events of a recording, a journal's directory or a plain log, read as they are consumed.

    Raises:
        UsageError: it cannot be read or is none of these.
    """
    kind = readable(path)
    if kind == "journal":
        return _journal(path)
    if kind == "recording":
        return _recorded(path)
    return _events_of(path) if kind == "events" else LogEvents(path).events()


def readable(path: Path) -> Literal["recording", "events", "journal", "log"]:
    """What a file is, by its first bytes.

    Raises:
        UsageError: it cannot be read or is none of these.
    """
    if path.is_dir():
        return "journal"
    head = _head(path)
    if head.startswith(MAGIC):
        return "recording"
    if _holds_events(head):
        return "events"
    if b"\0" in head:
        raise UsageError(f"{path} is a binary file", "Give a recording, a journal or a server's log.")
    if not any(map(_of_a_server, islice(split_lines(head, b"")[0], LOOKED_AT))):
        raise UsageError(f"{path} is neither a recording nor a server's log", "Give one of these.")
    return "log"


def _of_a_server(line: str) -> bool:
    return parse(line).kind != "text" or _NAMED.search(line) is not None


def is_log(path: Path) -> bool:
    """Whether a readable file is text rather than a recording.

    Raises:
        UsageError: it cannot be read.
    """
    if path.is_dir():
        return False
    head = _head(path)
    return not head.startswith(MAGIC) and not _holds_events(head)


def _holds_events(head: bytes) -> bool:
    """Whether a file that begins so holds events, and not the records of a logger or a container that writes JSON."""
    first = next(iter(split_lines(head.lstrip() + b"\n", b"")[0]), "")
    return first.startswith("{") and not is_record(first)


def _head(path: Path) -> bytes:
    head = next(chunks_of(path), b"")
    if not head.strip():
        raise UsageError(f"{path} is empty", "Give a recording, a journal or a server's log.")
    return head


def _recorded(path: Path) -> Iterator[Event]:
    with closing(Recording(path)) as recording:
        for batch in recording.batches():
            yield from batch


def _journal(directory: Path) -> Iterator[Event]:
    inner = directory / "journal"
    files = sorted((inner if inner.is_dir() else directory).glob("*.ndjson"))
    if not files:
        raise UsageError(f"{directory} holds no journal", "Give a directory with .ndjson files, or an agent's home.")
    return (event for file in files for event in _events_of(file))


def _events_of(path: Path) -> Iterator[Event]:
    """The events of one file; a torn last line, left by a crash, is left out."""
    number, carry = 0, b""
    for chunk in chunks_of(path):
        *lines, carry = (carry + chunk).split(b"\n")
        for line in lines:
            number += 1
            try:
                yield decode_event(line)
            except WireError as error:
                raise UsageError(
                    f"{path} line {number} is not an event ({error.message})", "Give a recording made with --record."
                ) from error
        if len(carry) > MAX_LINE:
            raise UsageError(f"{path} line {number + 1} is too long for an event", "Give a recording, or a log.")
