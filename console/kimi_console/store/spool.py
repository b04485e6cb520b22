"""The log's lines on disk: an append-only file and an array of offsets, eight bytes of memory a line."""

import os
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from threading import Lock
from typing import Final

from kimi_console.store.lines import Lines

GIB: Final = 1 << 30


class _Segment:
    """One file of lines; `offsets[i]` is where line `base + i` begins, the last one is the file's end."""

    def __init__(self, base: int, path: Path | None) -> None:
        handle, name = tempfile.mkstemp(prefix="kimi-log-", dir=path)
        Path(name).unlink()
        self.fd = handle
        self.base = base
        self.offsets = array("Q", [0])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def size(self) -> int:
        """Bytes written."""
        return self.offsets[-1]

    def append(self, lines: Sequence[str]) -> None:
        """Write lines behind the last one; on an `OSError` the segment is as it was before."""
        data = "\n".join(lines).encode("utf-8", "replace") + b"\n"
        ends: Iterator[int]
        if len(data) == sum(map(len, lines)) + len(lines):
            ends = accumulate((len(line) + 1 for line in lines), initial=self.size)
        else:
            ends = accumulate((len(line.encode("utf-8", "replace")) + 1 for line in lines), initial=self.size)
        view, at = memoryview(data), self.size
        while view:
            written = os.pwrite(self.fd, view, at)
            view, at = view[written:], at + written
        next(ends)
        self.offsets.extend(ends)

    def lines(self, start: int, stop: int) -> list[str]:
        """The lines at places `start` to `stop` of this segment."""
        begin, end = self.offsets[start], self.offsets[stop]
        data = os.pread(self.fd, end - begin, begin)
        text = data.decode("utf-8", "replace")
        lines = text.split("\n")[:-1]
        if len(lines) == stop - start:
            return lines
        cuts = [offset - begin for offset in self.offsets[start : stop + 1]]
        return [data[a : max(a, b - 1)].decode("utf-8", "replace") for a, b in pairwise(cuts)]

    def close(self) -> None:
        """Give the disk space back."""
        os.close(self.fd)


class LogSpool(Lines):
    """Already cleaned lines, numbered from 0, in an unlinked temporary file.

    Above `limit` bytes the older half is dropped: numbers stay, dropped lines read as empty, and `first` tells where
    the kept ones begin. When the disk is full the lines are counted in `lost` and read as empty. Reading from another
    thread while lines are appended is safe.
    """

    def __init__(self, path: Path | None = None, limit: int = 2 * GIB) -> None:
        self._path = path
        self._limit = limit
        self._lock = Lock()
        self._count = 0
        self._segments: list[_Segment] = [_Segment(0, path)]
        self.generation = 0
        """Grows when the spool is cleared: line numbers of another generation mean nothing."""
        self.lost = 0
        """Lines that could not be written."""

    def __len__(self) -> int:
        return self._count

    @property
    def first(self) -> int:
        """Number of the first line that is still kept."""
        return self._segments[0].base

    @property
    def head(self) -> int | None:
        """None: every line is of the past."""
        return None

    def played(self, lines: int) -> None:
        """Nothing: it knows no others."""

    def append(self, lines: Sequence[str]) -> None:
        """Add lines at the end."""
        if not lines:
            return
        with self._lock:
            if self._segments[-1].size > self._limit // 2:
                self._rotate()
            try:
                self._segments[-1].append(lines)
            except OSError:
                self.lost += len(lines)
                last = self._segments[-1]
                last.offsets.extend([last.size] * len(lines))
            self._count += len(lines)

    def _rotate(self) -> None:
        if len(self._segments) == 2:
            self._segments.pop(0).close()
        self._segments.append(_Segment(self._count, self._path))

    def lines(self, start: int, stop: int) -> list[str]:
        """The lines `start` to `stop` (excluded), as far as there are any."""
        start, stop = max(0, start), min(stop, self._count)
        if start >= stop:
            return []
        with self._lock:
            found = [""] * max(0, min(stop, self.first) - start)
            for segment in self._segments:
                begin = max(start, segment.base) - segment.base
                end = min(stop, segment.base + len(segment)) - segment.base
                if begin < end:
                    found.extend(self._read(segment, begin, end))
        return found

    @staticmethod
    def _read(segment: _Segment, begin: int, end: int) -> list[str]:
        if segment.offsets[begin] == segment.offsets[end]:
            return [""] * (end - begin)
        return segment.lines(begin, end)

    def clear(self) -> None:
        """Forget all lines; numbers begin again at 0."""
        with self._lock:
            for segment in self._segments:
                segment.close()
            self._segments = [_Segment(0, self._path)]
            self._count = 0
            self.lost = 0
            self.generation += 1

    def close(self) -> None:
        """Give the disk space back; the spool is empty and must not be appended to again."""
        with self._lock:
            for segment in self._segments:
                segment.close()
            self._segments = [_Closed()]
            self._count = 0
            self.generation += 1


class _Closed(_Segment):
    """The segment of a closed spool."""

    def __init__(self) -> None:
        self.fd = -1
        self.base = 0
        self.offsets = array("Q", [0])

    def close(self) -> None:
        """Closing twice is harmless."""
