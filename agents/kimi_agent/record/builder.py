"""Building a block: events in, batch by batch, and the bytes of the block, or of its end, out.

Each batch is taken apart at once, while its objects are in the processor's cache, and by whole columns: a loop over the
events would cost several times as much.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain, islice
from operator import sub
from typing import Final, NamedTuple, cast

from kimi_agent.model.events import Body, Event, LogLines, Snapshot
from kimi_agent.record.block import HEAD, NOT_LOG, STEPS, TEXT, TEXT_HEAD
from kimi_agent.wire.codec import encode_event

_REST: Final = b',"k":'
"""Where the rest of a line begins: its first key that is no column."""
_MOST_RUN: Final = 0xFFFF
"""Bytes of a run's name."""
_MOST_LINE: Final = 2**63
_ROUND: Final = 1.5 * 2**52
"""Added to a number of less than 2**51, it leaves the nearest whole one in the low bits of the sum."""
_ROUNDED: Final = 2.0**50


class Extent(NamedTuple):
    """How far a block was filled at some time."""

    events: int = 0
    texts: int = 0
    others: int = 0


class BlockBuilder:
    """The events of a block that is not full yet, in columns."""

    def __init__(self) -> None:
        self.size = 0
        """Characters of the log's text and bytes of other events' lines."""
        self.times: list[float] = []
        self._seqs: list[int] = []
        self._counts: list[int] = []
        """Of each event its lines in the log's text, or `NOT_LOG`."""
        self._texts: list[str] = []
        self._others: list[bytes] = []
        """Lines of the wire, from their kind on, of the events that are not in the log's text."""
        self._said: list[int] = []
        """Lines of the log within each of these."""
        self._run: str | None = None
        self._first = 0
        """Number of the first line of the log's text."""

    def __len__(self) -> int:
        return len(self.times)

    @property
    def extent(self) -> Extent:
        """How far it is filled."""
        return Extent(len(self.times), len(self._texts), len(self._others))

    def add(self, events: Sequence[Event]) -> tuple[int, set[type[Body]]]:
        """Take a batch. Returns how many of its events are kept as lines of the wire, and the types of all bodies."""
        bodies = [event.body for event in events]
        kinds = set(map(type, bodies))
        logs = bodies if kinds == {LogLines} else [body for body in bodies if type(body) is LogLines]
        counts, text = self._goes_on(cast("Sequence[LogLines]", logs))
        others: Sequence[Event] = ()
        if len(counts) < len(events):
            lengths = iter(counts)
            counts = [next(lengths, NOT_LOG) if type(body) is LogLines else NOT_LOG for body in bodies]
            others = [event for event, count in zip(events, counts, strict=True) if count == NOT_LOG]
        rests = [_rest(event) for event in others]
        self._texts += text
        self._others += rests
        self._said += [_lines(event.body) for event in others]
        self._counts += counts
        self._seqs += [event.seq for event in events]
        self.times += [event.time for event in events]
        self.size += sum(map(len, text)) + sum(map(len, rests))
        return len(others), kinds

    def lines(self, since: Extent) -> int:
        """How many lines of the log are held from an extent on."""
        return len(self._texts) - since.texts + sum(self._said[since.others :])

    def pack(self, since: Extent) -> bytes:
        """The bytes, before compression, of a block with the events from an extent on."""
        seqs, times = self._seqs[since.events :], self.times[since.events :]
        steps = _steps(seqs, times)
        columns = array("q", seqs).tobytes() + array("d", times).tobytes() if steps is None else steps.tobytes()
        head = HEAD.pack(len(times), TEXT if steps is None else TEXT | STEPS, seqs[0], times[0])
        texts = self._texts[since.texts :]
        text, run = "\n".join(texts).encode(), (self._run or "").encode()
        log = TEXT_HEAD.pack(len(text), len(texts), self._first + since.texts, len(run))
        counts = array("i", self._counts[since.events :]).tobytes()
        return b"".join((head, columns, counts, log, run, text, b"\n".join(self._others[since.others :])))

    def _goes_on(self, logs: Sequence[LogLines]) -> tuple[list[int], list[str]]:
        """How many lines each of these has, and the lines; nothing unless they go on with the log's text."""
        if not logs:
            return [], []
        lines = [body.lines for body in logs]
        counts = list(map(len, lines))
        run, first = (logs[0].run, logs[0].first) if self._run is None else (self._run, self._first)
        start = first + len(self._texts)
        if counts.count(1) == len(counts):
            follow = list(range(start, start + len(counts)))
            texts = [text for (text,) in lines]
        else:
            follow = list(accumulate(counts, initial=start))[:-1]
            texts = list(chain.from_iterable(lines))
        if [body.first for body in logs] != follow or [body.run for body in logs].count(run) != len(logs):
            return [], []
        if "\n" in "".join(texts) or len(run.encode()) > _MOST_RUN or not 0 <= first < _MOST_LINE:
            return [], []
        self._run, self._first = run, first
        return counts, texts


def _rest(event: Event) -> bytes:
    line = encode_event(event)
    return line[line.index(_REST) :]


def _lines(body: Body) -> int:
    return len(body.lines) if isinstance(body, LogLines | Snapshot) else 0


def _steps(seqs: Sequence[int], times: Sequence[float]) -> "array[int] | None":
    """Milliseconds from each event to the next, where that and the first number say it all; the first is 0."""
    if seqs != list(range(seqs[0], seqs[0] + len(seqs))) or not abs(1000.0 * times[0]) < _ROUNDED:
        return None
    sums = [1000.0 * time + _ROUND for time in times]
    if [(one - _ROUND) / 1000.0 for one in sums] != times:
        return None
    whole = array("q", array("d", sums).tobytes()).tolist()
    try:
        return array("i", [0, *map(sub, islice(whole, 1, None), whole)])
    except OverflowError:  # too long a step; with shorter ones all are near enough to the first to be rounded so
        return None
