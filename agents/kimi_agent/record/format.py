"""The recording's schema: the one place that knows how its file is laid out.

A recording is an SQLite database. An event's *place* is its index in the recording, from 0, over every journal that
was recorded into it. A block holds consecutive events, compressed; a checkpoint holds the state
before the event at its place, compressed against the state of its `base` checkpoint; a mark is an event that an
operator looks for.
"""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kimi_agent.errors import UsageError
from kimi_agent.text import clean

APPLICATION_ID: Final = 0x4B494D49
VERSION: Final = 2
"""Of the format; kept in SQLite's `user_version`. A newer one is refused, older ones are read: 1 had the log's lines
within the lines of their events.
"""
MAGIC: Final = b"SQLite format 3\x00"
SUFFIX: Final = ".kimirec"
BLOCK_EVENTS: Final = 2048
"""A block is sealed at so many events, or so many bytes."""
BLOCK_BYTES: Final = 1 << 20
MOST_BYTES: Final = 64 << 20
"""More than this no block and no state unpacks to; a file that says so is damaged."""
CHECKPOINT_EVENTS: Final = 512
"""Seeking folds about so many events at most, and one for each stretch of the log's lines between them."""
CHECKPOINT_PLACES: Final = 4 * BLOCK_EVENTS
"""It goes through no more than so many."""
FULL_EVERY: Final = 64
"""One checkpoint of so many is complete; the others are compressed against it."""
LEVEL: Final = 1
"""Of zstd, where events come by the million."""
SLOW_LEVEL: Final = 9
"""Where they come by the dozen: a tenth smaller, eight times the work."""

SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE blocks (
    place INTEGER PRIMARY KEY, events INTEGER NOT NULL, begin REAL NOT NULL, end REAL NOT NULL,
    run INTEGER NOT NULL, lines INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE INDEX blocks_begin ON blocks (begin);
CREATE INDEX blocks_lines ON blocks (run, place, lines) WHERE lines > 0;
CREATE TABLE checkpoints (place INTEGER PRIMARY KEY, base INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE marks (place INTEGER NOT NULL, time REAL NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX marks_place ON marks (place);
"""


class RecordingError(UsageError):
    """A recording cannot be read or written; says which and why."""

    slug = "recording"


@dataclass(frozen=True, slots=True)
class Mark:
    """An event that an operator looks for."""

    place: int
    time: float
    kind: str
    """launch, phase, status, error, verdict, dump, exit or gap."""
    text: str


def is_recording(path: Path) -> bool:
    """Whether a file is an SQLite database, and so can only be a recording.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def check(database: sqlite3.Connection, path: Path) -> None:
    """Refuse what is not a recording, or one of a newer schema.

    Raises:
        RecordingError: it is one of these.
        sqlite3.DatabaseError: the file is damaged.
    """
    if database.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise RecordingError(f"{path} is an SQLite database but not a recording", "Give a recording.")
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise RecordingError(
            f"{path} is a recording of format {version}, and this version reads up to {VERSION}",
            "Open it with the kimi-console that made it, or a newer one.",
        )


def damaged(path: Path, why: object) -> RecordingError:
    """The error for a recording whose contents cannot be right."""
    return RecordingError(f"{path} is damaged: {clean(str(why), 200)}", "Take another copy of it.")
