"""A log that still grows, or comes through a pipe, as a source of events for those without a screen."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

from kimi_agent.model.events import Event
from kimi_console.source.base import Link
from kimi_console.source.importing import batches_of


class GrowingSource:
    """Hands events over as the lines come; ends with the pipe, and with a file never."""

    def __init__(self, source: str) -> None:
        """Open a file, or standard input (`-`).

        Raises:
            UsageError: it cannot be read, or is no log.
        """
        self.title = source
        self._batches = iter(batches_of(source, follow=True))
        self._began = time.time()
        self._closed = False

    @property
    def link(self) -> Link:
        """Always `replay`."""
        return Link("replay", since=self._began)

    async def batches(self) -> AsyncGenerator[Sequence[Event], None]:
        """The events; the reading waits in a thread.

        Raises:
            UsageError: the file cannot be read any more.
        """
        while not self._closed:
            batch = await asyncio.to_thread(next, self._batches, None)
            if batch is None:
                return
            if batch:
                yield batch

    async def close(self) -> None:
        """Read no further."""
        self._closed = True
