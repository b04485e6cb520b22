"""The line numbers of a spool that match a pattern, found chunk by chunk."""

import math
import time
from array import array
from bisect import bisect_left
from typing import Final

from kimi_agent.errors import KimiError
from kimi_console.store.expression import Pattern
from kimi_console.store.lines import Lines

CHUNK: Final = 16_384
"""Lines looked at in one step: some 20 ms for text."""
PIECE: Final = 512
"""Lines between two looks at the clock."""


class LogFilter:
    """An index of matching lines that grows with the spool; one thread advances it at a time."""

    def __init__(self, spool: Lines, pattern: Pattern, *, inverse: bool = False) -> None:
        self._spool = spool
        self._pattern = pattern
        self._inverse = inverse
        self._generation = spool.generation
        self.indices: array[int] = array("Q")
        """Numbers of the matching lines, ascending."""
        self.scanned = 0
        """Lines looked at."""
        self.cancelled = False
        self.problem: KimiError | None = None
        """Why it looks no further."""

    @property
    def behind(self) -> int:
        """Lines of the spool not looked at yet."""
        return len(self._spool) - self.scanned

    def advance(self, limit: int = CHUNK, seconds: float = math.inf) -> bool:
        """Look at the next `limit` lines, or at those that `seconds` are enough for; whether there are more."""
        deadline = time.monotonic() + seconds
        if self._generation != self._spool.generation:
            self._generation = self._spool.generation
            self.indices = array("Q")
            self.scanned = 0
        end = min(self.scanned + limit, len(self._spool))
        try:
            while self.scanned < end and time.monotonic() < deadline and not self.cancelled:
                if not self._look(min(self.scanned + PIECE, end)):
                    break
        except KimiError as error:
            self.problem, self.cancelled = error, True
        return not self.cancelled and self.behind > 0

    def _look(self, stop: int) -> bool:
        """Look at the lines up to one; False when the spool was cleared meanwhile."""
        found = self._spool.matches(self._pattern, self.scanned, stop, inverse=self._inverse)
        if self._generation != self._spool.generation:
            return False
        self.indices.extend(found)
        self.scanned = stop
        return True

    def build(self) -> None:
        """Look at all lines, for a thread; `cancelled` ends it at the next chunk."""
        while self.advance():
            pass

    def place(self, line: int) -> int:
        """Where a line number stands among the matches, or would stand."""
        return bisect_left(self.indices, line)
