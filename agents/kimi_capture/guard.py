"""The plugin's one rule about failures: nothing of it may hurt serving."""

import functools
import logging
import threading
from collections.abc import Callable
from typing import Final, ParamSpec

P = ParamSpec("P")
LIMIT: Final = 5
"""Failures after which capture is given up."""
_log = logging.getLogger("kimi_capture")


class Guard:
    """Catches, counts and reports every failure of what it wraps."""

    def __init__(self) -> None:
        self.errors = 0
        self.last_error: str | None = None
        self.on_limit: Callable[[str], None] = lambda reason: None
        """Called with the reason at every failure from the LIMIT-th on."""
        self._lock = threading.Lock()

    def __call__(self, function: Callable[P, None]) -> Callable[P, None]:
        """`function`, which can no longer raise."""

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except Exception as error:  # serving goes on whatever capture does
                self.report(f"{function.__name__}: {type(error).__name__}: {error}")

        return guarded

    def report(self, problem: str) -> None:
        """Count a failure that was met outside of a wrapped call."""
        with self._lock:
            self.errors += 1
            self.last_error = problem[:500]
            errors = self.errors
        _log.warning("capture failed (%d): %s", errors, self.last_error)
        if errors >= LIMIT:
            self.on_limit(f"{errors} failures, last {self.last_error}")
