"""A recording, an agent's journal or a plain server's log as a source of events, at any speed."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from kimi_agent.errors import UsageError
from kimi_agent.model.events import Event
from kimi_agent.record.reader import Recording
from kimi_agent.wire.codec import MAX_LINE, WireError, decode_event
from kimi_console.source.base import Link
from kimi_console.source.files import chunks_of
from kimi_console.source.kinds import readable
from kimi_console.source.logfile import LogEvents
from kimi_console.source.when import parse_at

BATCH = 4096
"""Events handed over at once when they are not waited for."""


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
