"""Writing a recording: batches of events in, whole blocks and checkpoints out; what is flushed survives a crash."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import zstandard

from kimi_agent import __version__
from kimi_agent.model.events import Body, Event, RunStarted, Snapshot
from kimi_agent.model.reduce import resume_all
from kimi_agent.model.state import State
from kimi_agent.record.builder import BlockBuilder, Extent
from kimi_agent.record.format import (
    APPLICATION_ID,
    BLOCK_BYTES,
    BLOCK_EVENTS,
    CHECKPOINT_EVENTS,
    CHECKPOINT_PLACES,
    FULL_EVERY,
    LEVEL,
    SCHEMA,
    VERSION,
    Mark,
    RecordingError,
    check,
    is_recording,
)
from kimi_agent.record.marks import MARKING, Marker
from kimi_agent.record.states import encode_state, fingerprint

FLUSH_PERIOD: Final = 1.0
"""Seconds after which a caller flushes: the most that a crash can lose."""
MOST_FREE: Final = 0.1
"""Share of a closed file that small blocks left empty; with more it is written anew, unless that takes long."""
MOST_MOVED: Final = 20_000
"""Pages."""
STARTING: Final = frozenset({RunStarted, Snapshot})


class RecordingWriter:
    """Appends to one recording.

    `flush` writes what is new as a small block; the full one replaces them later: readers and crashes always find
    whole blocks. A batch may hold any number of events; the state before it is what a checkpoint
    is made of.
    """

    def __init__(self, path: Path, *, level: int = LEVEL, scratch: bool = False, **meta: str) -> None:
        """Open a recording to go on with it, or begin one that only this user can read.

        Args:
            scratch: the file ends with the process that reads it, so that the disk is never waited for.

        Raises:
            RecordingError: the file is something else, of a newer format, or cannot be written.
        """
        self.path = path
        self._level = level
        self._scratch = scratch
        self._compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
        self._marker = Marker()
        self._marks: list[Mark] = []
        self._deltas: zstandard.ZstdCompressor | None = None
        self._base = self._since_full = 0
        self._checkpoints: list[tuple[int, State]] = []
        self._checkpointed = 0
        self._unfolded = CHECKPOINT_EVENTS
        """Events since the last checkpoint, without those that are the log's; as many as to make one at once."""
        self._packed = 0
        self._block = BlockBuilder()
        self._seq = 0
        self._written = Extent()
        """How much of the block is in the file already, in small blocks."""
        try:
            self._size = path.stat().st_size if path.exists() else 0
            self._database = self._open(meta)
            newest = self._database.execute("SELECT place + events, run FROM blocks ORDER BY place DESC LIMIT 1")
            sealed, run = newest.fetchone() or (0, 0)
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error) from error
        self._sealed, self._run = int(sealed), int(run)

    def append(self, events: Sequence[Event], before: State) -> None:
        """Add events; `before` is the state before the first of them.

        Raises:
            RecordingError: the disk takes no more; what was flushed before stays.
        """
        if not events:
            return
        start = 0
        for cut in [*self._cuts(events), len(events)]:
            while start < cut:
                stop = min(cut, start + CHECKPOINT_EVENTS)
                self._add(events[start:stop], before)
                if stop < len(events):
                    before = resume_all(before, events[start:stop])
                start = stop
            self._begin_run(events[start : start + 1])

    def flush(self) -> None:
        """Make what was appended survive a crash of this process.

        Raises:
            RecordingError: the disk takes no more.
        """
        if self._written.events < len(self._block):
            self._write(self._written)
            self._written = self._block.extent

    @property
    def size(self) -> int:
        """Bytes of the events written to the file by now, compressed."""
        return self._size

    def close(self) -> None:
        """Flush, and leave one file that can be copied; what fails now was told before or is not needed."""
        with suppress(RecordingError):
            self._seal()
        with suppress(sqlite3.Error):
            self._database.execute("PRAGMA journal_mode = DELETE")
            (free,) = self._database.execute("PRAGMA freelist_count").fetchone()
            (pages,) = self._database.execute("PRAGMA page_count").fetchone()
            if free > MOST_FREE * pages and pages < MOST_MOVED:
                self._database.execute("VACUUM")
        self._database.close()

    def _open(self, meta: dict[str, str]) -> sqlite3.Connection:
        if self.path.exists() and self.path.stat().st_size and not is_recording(self.path):
            raise RecordingError(f"{self.path} exists and is not a recording", "Choose another file to record to.")
        self.path.touch(0o600)
        database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        database.execute(f"PRAGMA synchronous = {'OFF' if self._scratch else 'NORMAL'}")
        database.execute("PRAGMA journal_mode = WAL")
        with _transaction(database):
            if database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                check(database, self.path)
            else:
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                for statement in SCHEMA.strip().rstrip(";").split(";"):
                    database.execute(statement)
            database.execute(f"PRAGMA user_version = {VERSION}")  # an older file gets blocks of this format
            about = {"made_by": f"kimi-console {__version__}", "state": fingerprint(), **meta}
            database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", about.items())
        return database

    def _cuts(self, events: Sequence[Event]) -> list[int]:
        """Where another run, and so another log, begins: there a new block begins, too."""
        cuts: list[int] = []
        if not {type(event.body) for event in events}.isdisjoint(STARTING):
            cuts = [index for index, event in enumerate(events) if _starts(event.body)]
        if self._seq >= events[0].seq or events[-1].seq - events[0].seq != len(events) - 1:
            seqs = [self._seq, *(event.seq for event in events)]
            cuts = sorted({*cuts, *(index for index in range(len(events)) if seqs[index + 1] <= seqs[index])})
        self._seq = events[-1].seq
        return cuts

    def _begin_run(self, first: Sequence[Event]) -> None:
        if first:
            self._seal()
            self._run += 1
            self._unfolded = CHECKPOINT_EVENTS

    def _add(self, events: Sequence[Event], before: State) -> None:
        if len(self._block) + len(events) > BLOCK_EVENTS or self._block.size >= BLOCK_BYTES:
            self._seal()
        place = self._sealed + len(self._block)
        if self._unfolded >= CHECKPOINT_EVENTS or place - self._checkpointed >= CHECKPOINT_PLACES:
            self._checkpoints.append((place, before))
            self._checkpointed, self._unfolded = place, 0
        kept, kinds = self._block.add(events)
        self._unfolded += kept
        if not kinds.isdisjoint(MARKING):
            found = (self._marker.mark(place + index, event) for index, event in enumerate(events))
            self._marks += [mark for mark in found if mark is not None]

    def _seal(self) -> None:
        """End the block: the next event begins another."""
        if not len(self._block):
            return
        self._write(Extent())
        self._size += self._packed
        self._sealed += len(self._block)
        self._block, self._written = BlockBuilder(), Extent()

    def _write(self, since: Extent) -> None:
        """Write the block from an extent on, in place of the small blocks that hold it already."""
        filled, place = self._block, self._sealed + since.events
        data = self._compressor.compress(filled.pack(since))
        begin, end, events = filled.times[since.events], filled.times[-1], len(filled) - since.events
        block = (place, events, begin, end, self._run, filled.lines(since), data)
        marks = [(mark.place, mark.time, mark.kind, mark.text) for mark in self._marks]
        try:
            with _transaction(self._database) as database:
                checkpoints = [self._checkpoint(*one) for one in self._checkpoints]
                database.executemany("INSERT INTO checkpoints VALUES (?, ?, ?)", checkpoints)
                if self._written.events > since.events:
                    database.execute("DELETE FROM blocks WHERE place >= ?", (place,))
                database.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?)", block)
                database.executemany("INSERT INTO marks VALUES (?, ?, ?, ?)", marks)
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error) from error
        self._marks.clear()
        self._checkpoints.clear()
        self._packed = len(data)

    def _checkpoint(self, place: int, state: State) -> tuple[int, int, bytes]:
        """The row of a checkpoint: most are compressed against an earlier one, from which they differ little."""
        raw = encode_state(state)
        if self._deltas is None or self._since_full == FULL_EVERY:
            base = zstandard.ZstdCompressionDict(raw, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
            self._deltas = zstandard.ZstdCompressor(level=self._level, write_checksum=True, dict_data=base)
            self._base, self._since_full = place, 1
            return place, place, self._compressor.compress(raw)
        self._since_full += 1
        return place, self._base, self._deltas.compress(raw)

    def _failed(self, error: Exception) -> RecordingError:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return RecordingError(f"cannot record to {self.path}: {why}", "Free space, or choose another file.")


def _starts(body: Body) -> bool:
    """Whether another log begins with an event."""
    return isinstance(body, Snapshot) or (isinstance(body, RunStarted) and not body.adopted)


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All of the block's statements or, when one fails, none."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield database
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")
