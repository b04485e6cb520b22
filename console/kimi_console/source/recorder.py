"""A source that also appends every event to a file: the recording is the wire's own lines."""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Protocol

from kimi_agent.errors import UsageError
from kimi_agent.model.events import Event
from kimi_agent.wire.codec import encode_event
from kimi_console.source.base import Link


class Batches(Protocol):
    """A source whose stream can be closed early."""

    title: str

    @property
    def link(self) -> Link: ...

    def batches(self) -> AsyncGenerator[Sequence[Event], None]: ...

    async def close(self) -> None: ...


class Recorder:
    """Wraps a source; each batch is in the file before anyone sees it."""

    def __init__(self, source: Batches, path: Path) -> None:
        """Open the recording for appending; a new one can be read by this user only.

        Raises:
            UsageError: the file cannot be opened.
        """
        self.title = source.title
        self._source = source
        self._path = path
        self._failed = ""
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"cannot record to {path}: {error.strerror}", "Choose another file.") from error

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
        data = b"".join(encode_event(event) + b"\n" for event in batch)
        begin = os.lseek(self._file, 0, os.SEEK_END)
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._failed = f"recording to {self._path} stopped: {error.strerror}"
            with suppress(OSError):
                os.ftruncate(self._file, begin)

    async def close(self) -> None:
        """Close the source and the file."""
        await self._source.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
