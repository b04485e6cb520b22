"""The lines of a file on disk, all of them, whatever has been played of it: only where they begin is kept in memory."""

import os
import re
from array import array
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Final

from kimi_agent.engine.loglines import to_text
from kimi_console.store.lines import Lines

BYTES: Final = 8 << 20
"""Bytes looked through for line ends at once."""
FIRST_BYTES: Final = 128 << 10
"""Of these the first time: enough for a screen."""
HEAD_START: Final = 1.0
"""Seconds that what shows these has for itself before the rest is looked through."""
LONGEST: Final = 262_144
"""Bytes of a line that are read."""
_FEED, _RETURN = 10, 13
_LINE_END: Final = re.compile(rb"\r\n|\n|\r(?!\Z)")


class FileLines(Lines):
    """A text file as a store of lines; a thread finds where they begin, at some 500 MB a second.

    Lines end at a line feed, a carriage return or both. What is appended is not kept, since the file holds it.
    """

    def __init__(self, path: Path) -> None:
        """Open the file and begin to look through it.

        Raises:
            OSError: it cannot be read.
        """
        self.generation = 0
        self.lost = 0
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._starts = array("Q", [0])
        self._head = 0
        self._closing = Event()
        self._thread = Thread(target=self._scan, name="line-ends", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def first(self) -> int:
        """Always 0: a file keeps all its lines."""
        return 0

    @property
    def head(self) -> int | None:
        """How many lines have been played."""
        return self._head

    def played(self, lines: int) -> None:
        """So many lines are of the past."""
        self._head = lines

    def lines(self, start: int, stop: int) -> list[str]:
        """The lines `start` to `stop` (excluded), as far as they have been found."""
        start, stop = max(0, start), min(stop, len(self))
        if start >= stop:
            return []
        cuts = self._starts[start : stop + 1]
        data = os.pread(self._file, cuts[-1] - cuts[0], cuts[0])
        base = cuts[0]
        return [to_text(data[a - base : min(b - base, a - base + LONGEST)].rstrip(b"\r\n")) for a, b in pairwise(cuts)]

    def append(self, lines: object) -> None:
        """Nothing: the file holds them."""

    def clear(self) -> None:
        """Nothing has been played any more."""
        self._head = 0

    def close(self) -> None:
        """Let go of the file."""
        if not self._closing.is_set():
            self._closing.set()
            self._thread.join()
            os.close(self._file)

    def _scan(self) -> None:
        at, held, size = 0, False, FIRST_BYTES
        while not self._closing.is_set():
            data = os.pread(self._file, size, at)
            if not data:
                break
            if held and data[0] != _FEED:
                self._starts.append(at)
            held = data[-1] == _RETURN
            self._starts.frombytes(_ends(data, at))
            at += len(data)
            if size == FIRST_BYTES:
                size = BYTES
                self._closing.wait(HEAD_START if len(data) == FIRST_BYTES else 0)
        if self._starts[-1] < at and not self._closing.is_set():
            self._starts.append(at)


def _ends(data: bytes, at: int) -> bytes:
    """Where lines end in `data`, which begins at `at`, as unsigned 64-bit numbers; not at a carriage return that is
    the last byte, since a line feed may follow.
    """
    if len(data) <= FIRST_BYTES:
        return array("Q", [at + match.end() for match in _LINE_END.finditer(data)]).tobytes()
    import numpy as np  # noqa: PLC0415 - loading it takes longer than the first screen may

    codes = np.frombuffer(data, np.uint8)
    ends = codes == _FEED
    if _RETURN in data:
        returns = codes == _RETURN
        # A line feed right behind a carriage return ends the same line: it is that line's only end.
        returns[:-1] &= ~ends[1:]
        returns[-1] = False
        ends |= returns
    return (np.flatnonzero(ends).astype(np.uint64) + np.uint64(at + 1)).tobytes()
