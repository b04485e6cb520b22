"""The host's clock as the console knows it: this machine's, corrected by how late events arrive at best."""

import time
from collections.abc import Callable

from kimi_console.source.base import Link


class HostClock:
    """Ages are differences of the host's own times, so that two clocks that differ never make a value look old."""

    def __init__(self, read: Callable[[], float] = time.time) -> None:
        self._read = read
        self._offset: float | None = None

    def observe(self, event_time: float) -> None:
        """An event has just come: the smallest delay seen is taken as the difference of the clocks."""
        delay = self._read() - event_time
        self._offset = delay if self._offset is None else min(self._offset, delay)

    def now(self, link: Link, last_event: float | None) -> float:
        """Now on the host; in a recording the time of its last event."""
        if link.state in ("replay", "ended") and last_event is not None:
            return last_event
        return self._read() - (self._offset or 0.0)
