"""Any log or journal as a recording: small ones at once, large and growing ones by a process of their own, behind.

    python -m kimi_console.source.importing SOURCE RECORDING [--follow]

ends with 0, or says on standard output why it could not go on: `{"error": sentence}`. SOURCE `-` is standard input.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import orjson

from kimi_agent.errors import KimiError
from kimi_agent.model.events import Event
from kimi_agent.model.reduce import resume_all
from kimi_agent.model.state import State
from kimi_agent.record.format import CHECKPOINT_EVENTS
from kimi_agent.record.writer import FLUSH_PERIOD, RecordingWriter
from kimi_console.source.base import PIPE
from kimi_console.source.files import followed_lines, piped_lines
from kimi_console.source.kinds import is_log
from kimi_console.source.logfile import LogEvents
from kimi_console.source.replay import open_events

EAGER: Final = 4
"""Batches that are in the file at once; the later ones within a second."""
NICE: Final = 10
"""After these, what reads behind gives way to what shows."""


def import_events(batches: Iterable[Sequence[Event]], path: Path, *, scratch: bool = False) -> State:
    """Write events to a recording as they come, which is `scratch` when nobody keeps it; the state after them.

    Raises:
        KimiError: the events cannot be read, or the recording not be written.
    """
    writer = RecordingWriter(path, scratch=scratch)
    state, flushed = State(), 0.0
    try:
        for number, batch in enumerate(batches):
            writer.append(batch, state)
            state = resume_all(state, batch)
            if number < EAGER or time.monotonic() - flushed > FLUSH_PERIOD or not batch:
                writer.flush()
                flushed = time.monotonic()
    finally:
        writer.close()
    return state


def batches_of(source: str, *, follow: bool) -> Iterator[Sequence[Event]]:
    """The events of a file, of what is still written to it, or of standard input (`-`).

    Raises:
        UsageError: it cannot be read, or is nothing that can be played.
    """
    if source == PIPE:
        return LogEvents(Path("standard input")).following(piped_lines(sys.stdin.fileno()))
    path = Path(source)
    if follow and is_log(path):
        return LogEvents(path).following(followed_lines(path))
    return batched(open_events(path))


def batched(events: Iterator[Event]) -> Iterator[list[Event]]:
    """Events in lists: the first alone, so that it can be seen at once, then up to as many as a checkpoint's.

    Raises:
        KimiError: the rest cannot be read; what was read before has been handed over.
    """
    size, batch = 1, list[Event]()
    try:
        for event in events:
            batch.append(event)
            if len(batch) == size:
                yield batch
                size, batch = min(4 * size, CHECKPOINT_EVENTS), []
    except KimiError:
        yield batch
        raise
    yield batch


def _gently(batches: Iterable[Sequence[Event]]) -> Iterator[Sequence[Event]]:
    for number, batch in enumerate(batches):
        yield batch
        if number == EAGER:
            os.nice(NICE)


def main() -> int:
    """Import, and say how it went."""
    source, recording, *rest = sys.argv[1:]
    try:
        import_events(_gently(batches_of(source, follow="--follow" in rest)), Path(recording), scratch=True)
    except KimiError as error:
        sys.stdout.buffer.write(orjson.dumps({"error": str(error)}) + b"\n")
        return int(error.exit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
