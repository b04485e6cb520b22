"""Writing a slice of a recording to a file: as a recording, as its log, or as its state."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kimi_agent.errors import UsageError
from kimi_agent.model.events import Event, LogLines, Snapshot
from kimi_agent.model.reduce import resume
from kimi_agent.model.state import State
from kimi_agent.record.format import SUFFIX
from kimi_agent.record.reader import Recording
from kimi_console.share.private import redactor_for, without_private
from kimi_console.share.writing import new_file
from kimi_console.source.importing import import_events

KINDS: Final = {SUFFIX: "recording", ".log": "log", ".txt": "log", ".json": "state", ".svg": "screen"}
"""What is written, by the file's suffix."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be written."""

    path: Path
    begin: float | None = None
    """Unix time; `None` is the recording's first event."""
    end: float | None = None
    anonymise: bool = False

    @property
    def kind(self) -> str:
        """recording, log, state or screen.

        Raises:
            UsageError: the file's suffix says none of these.
        """
        kind = KINDS.get(self.path.suffix.lower())
        if kind is None:
            raise UsageError(f"{self.path} has no suffix that says what to write", f"One of: {', '.join(KINDS)}.")
        return kind


def export(recording: Recording, wanted: Wanted) -> dict[str, int]:
    """Write a slice; what was replaced in it, by kind.

    Raises:
        UsageError: the file is there already or cannot be written, or the recording is damaged.
    """
    first = 0 if wanted.begin is None else recording.place_at(wanted.begin)
    end = len(recording) if wanted.end is None else recording.place_at(wanted.end)
    redactor = redactor_for(recording.state(first), recording.state(end)) if wanted.anonymise else None
    batches = _slice(recording, first, max(first, end))
    with new_file(wanted.path):
        _write(without_private(batches, redactor) if redactor is not None else batches, wanted)
    return redactor.report() if redactor is not None else {}


def report_words(report: dict[str, int]) -> str:
    """What was replaced, in words."""
    return ", ".join(f"{count} {kind}" for kind, count in report.items()) or "nothing private was found"


def _slice(recording: Recording, first: int, end: int) -> Iterator[list[Event]]:
    """The state at the slice's beginning, then its events."""
    state = recording.state(first)
    if first:
        lines = state.run.log_lines if state.run is not None else 0
        yield [Event(state.seq, state.time or recording.begin, Snapshot(state, lines))]
    place = first
    for batch in recording.batches(first):
        if place >= end:
            return
        yield batch[: end - place]
        place += len(batch)


def _write(batches: Iterator[list[Event]], wanted: Wanted) -> None:
    if wanted.kind == "recording":
        import_events(batches, wanted.path)
    elif wanted.kind == "log":
        with wanted.path.open("x", encoding="utf-8", errors="replace") as file:
            for batch in batches:
                for event in batch:
                    if isinstance(event.body, LogLines):
                        file.writelines(f"{line}\n" for line in event.body.lines)
    else:
        wanted.path.write_bytes(msgspec.json.format(msgspec.json.encode(_last(batches)), indent=1))


def _last(batches: Iterator[list[Event]]) -> State:
    state = State()
    for batch in batches:
        for event in batch:
            state = resume(state, event)
    return state
