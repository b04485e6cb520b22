"""A plain SGLang log as events: what the agent would have journaled, had it watched."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from kimi_agent.doctor.logfile import diagnose_log, diagnose_tracker
from kimi_agent.engine.loads import ThroughputMeter
from kimi_agent.engine.loglines import LogLine, parse, split_lines
from kimi_agent.engine.phases import Change, Entered, PhaseTracker
from kimi_agent.model.events import (
    Body,
    Event,
    LogLines,
    LogUnmatched,
    PhaseEntered,
    PhaseProgress,
    RunStarted,
    StatusChanged,
    VerdictChanged,
)
from kimi_agent.text import clean
from kimi_console.source.files import chunks_of

RUN = "log"
"""The run id that a log's events carry."""
SCOUTED = 10_000
"""Lines of the beginning that are read twice, to know the ranks before the first event."""
_ARGUMENTS = {
    "model": re.compile(r"\bmodel_path(?:': |=)'([^']*)'"),
    "host": re.compile(r"\bhost(?:': |=)'([^']*)'"),
    "port": re.compile(r"\bport(?:': |=)(\d{1,5})\b"),
}
"""How `server_args=` spells them, as a dictionary or as a call."""
RATES_PERIOD = 1.0
"""Seconds of the log's time between two samples of throughput."""
LINE_SECONDS = 0.1
"""What a line takes to play in a log without times."""
MAX_LINES = 500
MAX_CHARACTERS = 200_000
"""Most that one event holds, so that it fits a line of the wire."""


def log_lines(path: Path) -> Iterator[str]:
    """The clean lines of a log.

    Raises:
        UsageError: it cannot be read.
    """
    carry = b""
    for chunk in chunks_of(path):
        lines, carry = split_lines(chunk, carry)
        yield from lines
    if carry:
        yield from split_lines(b"\n", carry)[0]


class LogEvents:
    """Turns one log into numbered events, line by line; log times drive the clock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tracker = PhaseTracker()
        self._seq = 0
        self._time = 0.0
        self._lines: list[str] = []
        self._characters = 0
        self._first = 0
        self._status = "STARTING"
        self._verdict: tuple[str, str | None] = ("none", None)
        self._timed = True
        self._meter = ThroughputMeter(RUN)
        self._metered = 0.0
        self._unmatched = 0

    def events(self) -> Iterator[Event]:
        """The events of the log, and the doctor's verdict on the whole of it at its end.

        Raises:
            UsageError: it cannot be read.
        """
        yield self._run(islice(log_lines(self._path), SCOUTED))
        for line in log_lines(self._path):
            yield from self._line(line)
        yield from self._flush()
        if self._unmatched:
            yield self._unmatched_now()
        found = diagnose_log(chunks_of(self._path))
        if found.verdict.kind != "none":
            yield self._event(VerdictChanged(RUN, found.verdict))
        if found.status != self._status != "STOPPING":
            yield self._event(StatusChanged(RUN, found.status, found.reason))

    def following(self, pieces: Iterable[Sequence[str]]) -> Iterator[list[Event]]:
        """The events of a log that still grows, given as pieces of lines; an empty piece is a moment without any.

        The run begins anew, with all its lines, when the log names ranks that were not known.
        """
        scout = PhaseTracker()
        head: list[str] = []
        heard = time.monotonic()
        for lines in pieces:
            heard = time.monotonic() if lines else heard
            known, fresh = scout.ranks, len(head) < SCOUTED
            if fresh:
                head += lines
                for line in lines:
                    scout.feed(parse(line))
            if fresh and lines and (self._seq == 0 or scout.ranks != known):
                yield list(self._anew(head))
            elif lines:
                yield [event for line in lines for event in self._line(line)]
            else:
                # The log's clock may be of another place or day: only how long it has been silent is known.
                last = self._tracker.last_time
                now = None if last is None else last + time.monotonic() - heard
                yield [*self._flush(), *self._judged(now)] if self._seq else []
        yield [*self._flush(), *self._judged(None)]

    def _anew(self, head: Sequence[str]) -> Iterator[Event]:
        self._lines, self._characters, self._first, self._status = [], 0, 0, "STARTING"
        yield self._run(head)
        for line in head:
            yield from self._line(line)

    def _judged(self, now: float | None) -> Iterator[Event]:
        """What the doctor says of what was read so far, where that is news."""
        found = diagnose_tracker(self._tracker, now)
        kind = (found.verdict.kind, found.verdict.rank)
        if kind != self._verdict:
            self._verdict = kind
            yield self._event(VerdictChanged(RUN, found.verdict))
        if found.status != self._status != "STOPPING":
            self._status = found.status
            yield self._event(StatusChanged(RUN, found.status, found.reason))

    def _run(self, head: Iterable[str]) -> Event:
        """The run's first event; its ranks and arguments are looked for in the first lines."""
        scout = PhaseTracker()
        arguments = ""
        for line in map(parse, head):
            scout.feed(line)
            if not arguments and line.message.startswith("server_args="):
                arguments = line.message
        found = {name: match[1] for name, pattern in _ARGUMENTS.items() if (match := pattern.search(arguments))}
        model = found.get("model", "")
        ranks = scout.ranks or ("TP0",)
        self._tracker = PhaseTracker(ranks)
        self._timed = scout.first_time is not None
        self._time = scout.first_time or 0.0
        started = RunStarted(
            run=RUN,
            name=Path(model).name or self._path.name,
            model=model,
            argv=(),
            pid=0,
            tp=len(ranks),
            ranks=ranks,
            host=found.get("host", ""),
            port=int(found.get("port", 0)),
            log=str(self._path),
            python="",
            sglang=None,
            capture=False,
        )
        return self._event(started)

    def _line(self, text: str) -> Iterator[Event]:
        line = parse(text)
        changes = self._tracker.feed(line)
        now = (self._tracker.last_time or self._time) if self._timed else self._time + LINE_SECONDS
        full = len(self._lines) >= MAX_LINES or self._characters + len(text) > MAX_CHARACTERS
        if now > self._time or full:
            yield from self._flush()
            self._time = now
        self._lines.append(text)
        self._characters += len(text)
        status, reason = self._status_now()
        if changes or status != self._status:
            yield from self._flush()
            yield from map(self._event, map(_body, changes))
        if self._tracker.unmatched > self._unmatched or (changes and self._unmatched):
            self._unmatched = self._tracker.unmatched
            yield self._unmatched_now()
        if line.kind == "batch":
            yield from self._rates(line)
        if status != self._status:
            self._status = status
            yield self._event(StatusChanged(RUN, status, reason))

    def _rates(self, line: LogLine) -> Iterator[Event]:
        """What a batch line tells of throughput, once a second of the log's time."""
        self._meter.feed(line, self._time)
        if self._time - self._metered >= RATES_PERIOD:
            self._metered = self._time
            yield from self._flush()
            yield self._event(self._meter.update(None, self._time))

    def _unmatched_now(self) -> Event:
        seen = self._tracker
        return self._event(LogUnmatched(RUN, seen.unmatched, seen.unmatched_seconds, seen.unmatched_last))

    def _flush(self) -> Iterator[Event]:
        if self._lines:
            lines, self._lines, self._characters = tuple(self._lines), [], 0
            yield self._event(LogLines(RUN, self._first, lines))
            self._first += len(lines)

    def _status_now(self) -> tuple[str, str]:
        raised = self._tracker.first_exception
        if raised is not None:
            return "FAILED", clean(str(raised))
        if self._tracker.stopping:
            return "STOPPING", "the log says so"
        if self._tracker.ready:
            return "READY", "the log says so"
        return "STARTING", ""

    def _event(self, body: Body) -> Event:
        self._seq += 1
        return Event(self._seq, self._time, body)


def _body(change: Change) -> Body:
    if isinstance(change, Entered):
        return PhaseEntered(RUN, change.rank, change.phase)
    return PhaseProgress(RUN, change.rank, change.phase, change.done, change.total, change.what)
