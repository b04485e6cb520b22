"""What every store of log lines can do, whatever holds them."""

from typing import Final, Protocol

from kimi_console.store.expression import Pattern

CHUNK: Final = 8192
"""Lines read at once in a search."""


class Lines(Protocol):
    """Clean lines, numbered from 0; reading from another thread while lines are added is safe."""

    generation: int
    """Grows when the store is cleared: line numbers of another generation mean nothing."""
    lost: int
    """Lines that could not be kept."""

    def __len__(self) -> int: ...

    @property
    def first(self) -> int:
        """Number of the first line that is still kept."""

    @property
    def head(self) -> int | None:
        """Where the present ends within the lines, for a store that knows the future too."""

    def played(self, lines: int) -> None:
        """So many lines are of the past now."""

    def lines(self, start: int, stop: int) -> list[str]:
        """The lines `start` to `stop` (excluded), as far as there are any."""

    def line(self, index: int) -> str:
        """One line.

        Raises:
            IndexError: there is no such line yet.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"line {index} of {len(self)}")
        return self.lines(index, index + 1)[0]

    def search(self, pattern: Pattern, start: int, backward: bool = False) -> int | None:
        """Number of the first matching line from `start` on (included), or back from it; `None` when there is none."""
        count = len(self)
        if backward:
            for stop in range(min(start + 1, count), self.first, -CHUNK):
                begin = max(self.first, stop - CHUNK)
                found = [i for i, line in enumerate(self.lines(begin, stop)) if pattern.search(line)]
                if found:
                    return begin + found[-1]
            return None
        for begin in range(max(start, self.first), count, CHUNK):
            for index, line in enumerate(self.lines(begin, begin + CHUNK)):
                if pattern.search(line):
                    return begin + index
        return None

    def matches(self, pattern: Pattern, start: int, stop: int, inverse: bool = False) -> list[int]:
        """Numbers of the kept lines within `start` to `stop` that match (with `inverse`, that do not)."""
        start = max(start, self.first)
        lines = self.lines(start, stop)
        return [start + i for i, line in enumerate(lines) if (pattern.search(line) is None) == inverse]
