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
        self._failures = 0
        self._lock = threading.Lock()

    def reset(self) -> None:
        """A new dump starts with the full number of failures ahead of it; the counts stay."""
        with self._lock:
            self._failures = 0

    def __call__(self, function: Callable[P, None]) -> Callable[P, None]:
        """`function`, which can no longer raise."""

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except Exception as error:  # serving goes on whatever capture does
                self.report(f"{function.__name__}: {type(error).__name__}: {error}")

        return guarded

    def note(self, problem: str) -> None:
        """Count and show a failure that capture can live with."""
        with self._lock:
            self.errors += 1
            self.last_error = problem[:500]
        _log.warning("capture: %s", problem)

    def report(self, problem: str) -> None:
        """Count and show a failure; too many of them end capture."""
        self.note(problem)
        with self._lock:
            self._failures += 1
            failures = self._failures
        if failures >= LIMIT:
            self.on_limit(f"{failures} failures, last: {problem[:500]}")
