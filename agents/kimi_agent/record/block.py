"""A block's bytes: numbers and times of its events in columns, then the log's text, then the lines of all other events.

The columns hardly cost anything once compressed, where the same digits within lines are a third of all that does; and
text that stands alone is neither escaped when it is written nor parsed when it is read.
"""

import struct
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate, islice, repeat
from typing import Final, TypeVar

from kimi_agent.model.events import Body, Event, LogLines, Note, Snapshot
from kimi_agent.wire.codec import decode_lenient

HEAD: Final = struct.Struct("<IBqd")
"""Number of events, how the block is kept, number and time of the first event."""
STEPS, TEXT = 1, 2
"""How it is kept. Numbers without holes and steps of whole milliseconds between times, instead of both as they are;
the log's text by itself, instead of within the lines of its events."""
TEXT_HEAD: Final = struct.Struct("<QIqH")
"""Bytes and lines of the log's text, number of its first line, bytes of the run's name, which follows."""
NOT_LOG: Final = -1
_LOG: Final = (b',"k":"log"', b',"k":"snapshot"')

_LATER: Final = Note("info", "")
"""Stands where another body comes."""

T = TypeVar("T")
Said = tuple[int, Sequence[str]]
"""Lines of the log, and the number of the first of them."""


class Block:
    """The events of a block; only what is asked for is made of its bytes."""

    def __init__(
        self, seqs: Sequence[int], times: Sequence[float], counts: Sequence[int], log: "Log", rest: bytes
    ) -> None:
        """`counts` are the lines of each event in the log's text, or negative for another event, whose line of the wire
        is in `rest` from its kind on.

        Raises:
            ValueError: there are not as many.
        """
        self.seqs = seqs
        self.times = times
        self.counts = counts
        self._log = log
        self._others = [index for index, count in enumerate(counts) if count == NOT_LOG]
        rests = rest.split(b"\n") if self._others else []
        if len(rests) != len(self._others) or min(counts) < NOT_LOG or sum(counts) + len(rests) != log.lines:
            raise ValueError("a block has not the events that it says")
        self._rests = dict(zip(self._others, rests, strict=True))

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def _texts(self) -> list[str]:
        return self._log.texts()

    @cached_property
    def _starts(self) -> list[int]:
        """Of each event where its lines begin in the text, and last their number."""
        lines = [max(0, count) for count in self.counts] if self._others else self.counts
        return list(accumulate(lines, initial=0))

    def event(self, index: int) -> Event:
        """An event.

        Raises:
            WireError: it is none.
            ValueError: the log's text is none.
        """
        if self.counts[index] == NOT_LOG:
            time = repr(self.times[index]).encode()
            return decode_lenient(b'{"seq":%d,"t":%b%b' % (self.seqs[index], time, self._rests[index]))
        first, lines = self._lines(index)
        return Event(self.seqs[index], self.times[index], LogLines(self._log.run, first, tuple(lines)))

    def events(self, start: int = 0) -> list[Event]:
        """The events from one on.

        Raises:
            WireError: one of them is none.
            ValueError: the log's text is none.
        """
        bodies = self._bodies()
        for index in self._others:
            bodies.insert(index, _LATER)
        made = _rows(Event, len(self) - start, self.seqs[start:], self.times[start:], bodies[start:])
        for index in self._others[bisect_left(self._others, start) :]:
            made[index - start] = self.event(index)
        return made

    def telling(self, start: int, stop: int) -> list[Event]:
        """The events from `start` to `stop` (excluded) without those that only say lines of the log before others do:
        a state folded from these is the same.

        Raises:
            WireError: one of them is none.
            ValueError: the log's text is none.
        """
        counts = self.counts
        last = range(start, stop - 1)
        kept = [index for index in last if counts[index] == NOT_LOG or counts[index + 1] == NOT_LOG]
        return [self.event(index) for index in [*kept, *range(max(start, stop - 1), stop)]]

    def said(self, index: int) -> Said | None:
        """What an event says of the log, if it does.

        Raises:
            WireError: it is no event.
            ValueError: the log's text is none.
        """
        if self.counts[index] != NOT_LOG:
            return self._lines(index)
        if not self._rests[index].startswith(_LOG):
            return None
        body = self.event(index).body
        return (body.first, body.lines) if isinstance(body, LogLines | Snapshot) else None

    def _bodies(self) -> list[Body]:
        """Those of the log's events."""
        first = self._log.first
        if self.counts.count(1) == len(self) - len(self._others):
            lines = self._log.lines
            return list(_rows(LogLines, lines, repeat(self._log.run), range(first, first + lines), zip(self._texts)))
        said = (self._lines(index) for index, count in enumerate(self.counts) if count != NOT_LOG)
        return [LogLines(self._log.run, at, tuple(lines)) for at, lines in said]

    def _lines(self, index: int) -> Said:
        begin, end = self._starts[index], self._starts[index + 1]
        return self._log.first + begin, self._texts[begin:end]


@dataclass(frozen=True, slots=True)
class Log:
    """The log's part of a block."""

    run: str = ""
    first: int = 0
    """Number of its first line."""
    lines: int = 0
    text: bytes = b""

    def texts(self) -> list[str]:
        """Its lines.

        Raises:
            ValueError: there are not as many.
        """
        texts = self.text.decode().split("\n") if self.lines else []
        if len(texts) != self.lines:
            raise ValueError("a block has not the lines that it says")
        return texts


def _rows(kind: type[T], count: int, *columns: Iterable[object]) -> list[T]:
    """Objects of a dataclass with slots, column by column: a third of the time of a frozen one's `__init__`."""
    made = list(map(object.__new__, repeat(kind, count)))
    for field, column in zip(fields(kind), columns, strict=True):  # type: ignore[arg-type]
        deque(map(getattr(kind, field.name).__set__, made, column), maxlen=0)
    return made


def unpack(data: bytes) -> Block:
    """The block of these bytes, as this version writes them or the one before it.

    Raises:
        ValueError: they are no block's.
    """
    try:
        count, how, seq, time = HEAD.unpack_from(data)
        if not count or how not in range(4):
            raise ValueError("a block is not of this format")
        at = HEAD.size + count * (4 if how & STEPS else 16)
        if at > len(data):
            raise ValueError("a block is too short")
        seqs, times = _columns(data[HEAD.size : at], count, seq, time if how & STEPS else None)
        if not how & TEXT:
            return Block(seqs, times, array("i", [NOT_LOG]) * count, Log(), data[at:])
        counts = array("i", data[at : at + 4 * count])
        at += 4 * count
        size, lines, first, name = TEXT_HEAD.unpack_from(data, at)
    except struct.error as error:
        raise ValueError("a block is too short") from error
    at += TEXT_HEAD.size
    log = Log(data[at : at + name].decode(), first, lines, data[at + name : at + name + size])
    if len(log.text) != size or len(counts) != count:
        raise ValueError("a block has not the lines that it says")
    return Block(seqs, times, counts, log, data[at + name + size :])


def _columns(data: bytes, count: int, seq: int, time: float | None) -> tuple[Sequence[int], Sequence[float]]:
    if time is None:
        return array("q", data[: 8 * count]), array("d", data[8 * count :])
    return range(seq, seq + count), _times(time, array("i", data))


def _times(first: float, steps: "array[int]") -> list[float]:
    return list(map((1000.0).__rtruediv__, islice(accumulate(steps, initial=round(1000 * first)), 1, None)))
