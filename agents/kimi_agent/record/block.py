"""A block's bytes: numbers and times of its events in columns, then the rest of their lines.

The columns hardly cost anything once compressed, where the same digits within the lines are a third of all that does.
"""

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Final

from kimi_agent.model.events import Event

_HEAD: Final = struct.Struct("<IBqd")
"""Number of events, how times are kept, number and time of the first event."""
_PLAIN, _STEPS = 0, 1
"""Every number and time as it is; or numbers without holes, and steps of whole milliseconds between times."""
REST: Final = b',"k":'
"""Where the rest of a line begins: its first key that is no column."""
_LONGEST_STEP: Final = 2**31 - 1
_LATEST: Final = 2.0**40


@dataclass(frozen=True, slots=True)
class Block:
    """The events of a block: `seqs[i]` and `times[i]` belong to `rests[i]`, the line from its kind on."""

    seqs: Sequence[int]
    times: Sequence[float]
    rests: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.rests)

    def lines(self, start: int = 0) -> list[bytes]:
        """The lines of the wire from an event on."""
        whole = zip(self.seqs[start:], map(repr, self.times[start:]), self.rests[start:], strict=True)
        return [b'{"seq":%d,"t":%b%b' % (seq, time.encode(), rest) for seq, time, rest in whole]

    def line(self, index: int) -> bytes:
        """An event's line of the wire."""
        return b'{"seq":%d,"t":%b%b' % (self.seqs[index], repr(self.times[index]).encode(), self.rests[index])


def pack(events: Sequence[Event], rests: Sequence[bytes]) -> bytes:
    """The bytes of a block, before compression."""
    first = events[0]
    steps = _steps(events)
    if steps is not None:
        head = _HEAD.pack(len(events), _STEPS, first.seq, first.time)
        columns = steps.tobytes()
    else:
        head = _HEAD.pack(len(events), _PLAIN, first.seq, first.time)
        columns = array("q", [e.seq for e in events]).tobytes() + array("d", [e.time for e in events]).tobytes()
    return head + columns + b"\n".join(rests)


def unpack(data: bytes) -> Block:
    """The block of these bytes.

    Raises:
        ValueError: they are no block's.
    """
    try:
        count, how, seq, time = _HEAD.unpack_from(data)
    except struct.error as error:
        raise ValueError("a block is too short") from error
    wide = how == _PLAIN
    end = _HEAD.size + count * (16 if wide else 4)
    rests = data[end:].split(b"\n")
    if how not in (_PLAIN, _STEPS) or count != len(rests) or end > len(data):
        raise ValueError("a block has not the events that it says")
    columns = data[_HEAD.size : end]
    if wide:
        seqs, times = array("q", columns[: 8 * count]), array("d", columns[8 * count :])
        return Block(seqs, times, rests)
    return Block(range(seq, seq + count), _times(time, array("i", columns)), rests)


def _steps(events: Sequence[Event]) -> "array[int] | None":
    """Milliseconds from each event to the next, where that says it all; the first is 0."""
    first = events[0].seq
    if [event.seq for event in events] != list(range(first, first + len(events))):
        return None
    times = [event.time for event in events]
    if not -_LATEST < min(times) <= max(times) < _LATEST:
        return None
    whole = [round(1000 * time) for time in times]
    steps = [0, *map(sub, whole[1:], whole)]
    if max(steps) > _LONGEST_STEP or min(steps) < -_LONGEST_STEP or [number / 1000 for number in whole] != times:
        return None
    return array("i", steps)


def _times(first: float, steps: "array[int]") -> list[float]:
    return [now / 1000 for now in accumulate(steps, initial=round(1000 * first))][1:]
