"""A plain SGLang log as events: what the agent would have journaled, had it watched."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from kimi_agent.doctor.logfile import diagnose_log
from kimi_agent.engine.loglines import parse, split_lines
from kimi_agent.engine.phases import Change, Entered, PhaseTracker
from kimi_agent.errors import UsageError
from kimi_agent.model.events import (
    Body,
    Event,
    LogLines,
    PhaseEntered,
    PhaseProgress,
    RunStarted,
    StatusChanged,
    VerdictChanged,
)
from kimi_agent.text import clean

RUN = "log"
"""The run id that a log's events carry."""
CHUNK = 1 << 20
SCOUTED = 10_000
"""Lines of the beginning that are read twice, to know the ranks before the first event."""
_ARGUMENTS = {
    "model": re.compile(r"\bmodel_path(?:': |=)'([^']*)'"),
    "host": re.compile(r"\bhost(?:': |=)'([^']*)'"),
    "port": re.compile(r"\bport(?:': |=)(\d{1,5})\b"),
}
"""How `server_args=` spells them, as a dictionary or as a call."""
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


def chunks_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the path and its permissions.") from error


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

    def events(self) -> Iterator[Event]:
        """The events of the log, and the doctor's verdict on the whole of it at its end.

        Raises:
            UsageError: it cannot be read.
        """
        yield self._run()
        for line in log_lines(self._path):
            yield from self._line(line)
        yield from self._flush()
        found = diagnose_log(chunks_of(self._path))
        if found.verdict.kind != "none":
            yield self._event(VerdictChanged(RUN, found.verdict))
        if found.status != self._status != "STOPPING":
            yield self._event(StatusChanged(RUN, found.status, found.reason))

    def _run(self) -> Event:
        """The run's first event; its ranks and arguments are looked for in the first lines."""
        scout = PhaseTracker()
        arguments = ""
        for line in map(parse, islice(log_lines(self._path), SCOUTED)):
            scout.feed(line)
            if not arguments and line.message.startswith("server_args="):
                arguments = line.message
        ranks = scout.ranks or ("TP0",)
        self._tracker = PhaseTracker(ranks)
        self._time = scout.first_time or 0.0
        found = {name: match[1] for name, pattern in _ARGUMENTS.items() if (match := pattern.search(arguments))}
        model = found.get("model", "")
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
        now = self._tracker.last_time or self._time
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
        if status != self._status:
            self._status = status
            yield self._event(StatusChanged(RUN, status, reason))

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
