"""When rows on the device set out for the host: behind the engine's own results, never before them.

A GPU copies to the host in the order in which copies become possible, on whatever streams. Rows that set out when their
step ends are ahead of the few bytes that the scheduler waits for: a step of 8,192 rows of Kimi-K2.5's width keeps it
waiting for 8.5 ms (measured on an H200; in smaller pieces just as long). So they stay where they are until the
scheduler has taken the step's results, which is when the next step's computing begins.
"""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

GRACE: Final = 0.25
"""Seconds that rows wait for the engine to take the step's results once they are computed."""


class Transfer:
    """The way of a slot's rows to the host. Thread-safe; nothing here blocks: a device that hangs never answers."""

    def __init__(self, taken: "torch.cuda.Event", start: "Callable[[], torch.cuda.Event]") -> None:
        """`taken`: when the slot has the rows. `start` begins their way, once; its event: when the host has them."""
        self._taken = taken
        self._start: Callable[[], torch.cuda.Event] | None = start
        self._copied: torch.cuda.Event | None = None
        self._since: float | None = None
        self._lock = threading.Lock()

    @property
    def taken(self) -> bool:
        """Whether the slot has the rows: the engine, which is told so by the device too, has results to take."""
        return bool(self._taken.query())

    @property
    def done(self) -> bool:
        """Whether the host has the rows."""
        return self._copied is not None and bool(self._copied.query())

    def begin(self) -> "torch.cuda.Event":
        """Begin, if that was not done before; the event of the end."""
        with self._lock:
            if self._start is not None:
                self._copied, self._start = self._start(), None  # and with it the memory that it holds
            assert self._copied is not None
            return self._copied

    def advance(self) -> bool:
        """Whether the host has the rows, for who looks again and again; begins when nobody else does in time."""
        if self._copied is None and self.taken:
            self._since = self._since or time.monotonic()
            if time.monotonic() - self._since >= GRACE:
                self.begin()
        return self.done
