"""A source that also records every event."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

from kimi_agent.model.events import Event
from kimi_agent.model.reduce import resume
from kimi_agent.model.state import State
from kimi_agent.record.format import SLOW_LEVEL, RecordingError
from kimi_agent.record.writer import FLUSH_PERIOD, RecordingWriter
from kimi_console.source.base import Link


class Batches(Protocol):
    """A source whose stream can be closed early."""

    title: str

    @property
    def link(self) -> Link: ...

    def batches(self) -> AsyncGenerator[Sequence[Event], None]: ...

    async def close(self) -> None: ...


class Recorder:
    """Wraps a source; each batch is taken before anyone sees it, and in the file a second later."""

    def __init__(self, source: Batches, path: Path) -> None:
        """Open the recording, to go on with it when there is one; a new one can be read by this user only.

        Raises:
            RecordingError: the file cannot be opened, or is something else.
        """
        self.title = source.title
        self._source = source
        self._path = path
        self._failed = ""
        self._state = State()
        self._timer: asyncio.TimerHandle | None = None
        self._writer = RecordingWriter(path, level=SLOW_LEVEL, title=source.title)

    @property
    def link(self) -> Link:
        """The source's link; a recording that failed is told there."""
        link = self._source.link
        if not self._failed:
            return link
        return Link(link.state, f"{link.detail}; {self._failed}".lstrip("; "), link.since)

    async def batches(self) -> AsyncGenerator[Sequence[Event], None]:
        """The source's batches; a full disk ends the recording, not the session."""
        async with aclosing(self._source.batches()) as batches:
            async for batch in batches:
                if not self._failed:
                    self._append(batch)
                yield batch

    def _append(self, batch: Sequence[Event]) -> None:
        before = self._state
        for event in batch:
            self._state = resume(self._state, event)
        try:
            self._writer.append(batch, before)
        except RecordingError as error:
            self._give_up(error)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_PERIOD, self._flush)

    def _flush(self) -> None:
        self._timer = None
        try:
            self._writer.flush()
        except RecordingError as error:
            self._give_up(error)

    def _give_up(self, error: RecordingError) -> None:
        self._failed = f"the recording ended: {error.message}"

    async def close(self) -> None:
        """Close the source and the file."""
        await self._source.close()
        if self._timer is not None:
            self._timer.cancel()
        self._writer.close()
