"""Reading a recording: any event, the state at any place, marks and log lines; also while it is still written."""

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import zstandard

from kimi_agent.model.events import Event
from kimi_agent.model.reduce import resume_all
from kimi_agent.model.state import State
from kimi_agent.record.block import Block, Said, unpack
from kimi_agent.record.format import MOST_BYTES, Mark, RecordingError, check, damaged, is_recording
from kimi_agent.record.states import decode_state, fingerprint
from kimi_agent.wire.codec import WireError

DAMAGE: Final = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises over a damaged file: its own words about it need not be text."""


class Recording:
    """One recording, open for reading. Every method raises RecordingError where the file is damaged."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            RecordingError: it is not a recording, of a newer format, damaged, or cannot be read.
        """
        self.path = path
        try:
            if not is_recording(path):
                raise RecordingError(f"{path} is not a recording", "Give one made with --record.")
            self._database = _connect(path)
            check(self._database, path)
        except OSError as error:
            raise RecordingError(
                f"cannot read {path}: {error.strerror}", "Check the path and its permissions."
            ) from error
        except DAMAGE as error:
            raise damaged(path, error) from error
        self.meta = dict(self._rows("SELECT key, value FROM meta"))
        """Who made it, and of what."""
        self._usable = self.meta.get("state") == fingerprint()
        self._unpacked = lru_cache(maxsize=8)(self._unpack)
        self._near = (0, State())

    def __len__(self) -> int:
        """How many events there are now; it may grow."""
        return int(self._one("SELECT place + events FROM blocks ORDER BY place DESC LIMIT 1", default=0))

    @property
    def begin(self) -> float:
        """Time of the first event; 0 when there is none."""
        return float(self._one("SELECT begin FROM blocks ORDER BY place LIMIT 1", default=0.0))

    @property
    def end(self) -> float:
        """Time of the last event."""
        return float(self._one("SELECT end FROM blocks ORDER BY place DESC LIMIT 1", default=0.0))

    def batches(self, place: int = 0) -> Iterator[list[Event]]:
        """The events from a place on, block by block."""
        for first, data in self._from(place):
            with self._wire():
                events = self._unpacked(data).events(max(0, place - first))
            yield events

    def event(self, place: int) -> Event:
        """One event.

        Raises:
            RecordingError: there is none at this place.
        """
        first, block = self._around(place)
        with self._wire():
            return block.event(place - first)

    def state(self, place: int) -> State:
        """The state after all events before `place`: the nearest checkpoint, and what came since."""
        at, state = self._checkpoint(place)
        while at < place:
            first, block = self._around(at)
            stop = min(place, first + len(block))
            with self._wire():
                state = resume_all(state, block.telling(at - first, stop - first))
            at = stop
        self._near = (place, state)
        return state

    def place_at(self, time: float) -> int:
        """The place before which every event up to this time stands."""
        row = self._row("SELECT place FROM blocks WHERE begin <= ? ORDER BY begin DESC, place DESC LIMIT 1", time)
        if row is None:
            return 0
        first, block = self._around(row[0])
        return first + sum(1 for then in block.times if then <= time)

    def marks(self, after: int = -1) -> list[Mark]:
        """The marks beyond a place, in order."""
        query = "SELECT place, time, kind, text FROM marks WHERE place > ? ORDER BY place"
        return [Mark(*row) for row in self._rows(query, after)]

    def log(self, place: int, count: int) -> tuple[int, list[str]]:
        """The last lines, at most `count`, of the log as it was before `place`, and the number of the first of them."""
        row = self._row("SELECT run FROM blocks WHERE place < ? ORDER BY place DESC LIMIT 1", place)
        kept: deque[Said] = deque()
        have = 0
        query = "SELECT place FROM blocks WHERE run = ? AND lines > 0 AND place < ? ORDER BY place DESC"
        for (first,) in self._rows(query, row[0] if row else 0, place):
            block = self._around(first)[1]
            with self._wire():
                for index in reversed(range(min(len(block), place - first))):
                    if (said := block.said(index)) is not None:
                        kept.appendleft(said)
                        have += len(said[1])
                    if have >= count:
                        return _joined(kept, count)
        return _joined(kept, count)

    def find(self, matches: Callable[[str], object], place: int, *, backward: bool = False) -> int | None:
        """Place of the next event (or, backwards, of the one before `place`) with a log line that matches."""
        order, beyond = ("DESC", "place < ?") if backward else ("", "place + events > ?")
        query = f"SELECT place FROM blocks WHERE lines > 0 AND {beyond} ORDER BY place {order}"  # noqa: S608
        for (first,) in self._rows(query, place):
            block = self._around(first)[1]
            end = first + len(block)
            with self._wire():
                for at in reversed(range(first, min(place, end))) if backward else range(max(place, first), end):
                    said = block.said(at - first)
                    if said is not None and any(map(matches, said[1])):
                        return at
        return None

    def close(self) -> None:
        """Let go of the file."""
        self._unpacked.cache_clear()
        self._database.close()

    def _from(self, place: int) -> Iterator[tuple[int, bytes]]:
        """The blocks from the one with `place` on; each is looked up anew, since the recording may grow meanwhile."""
        query = "SELECT place, data, events FROM blocks WHERE place <= ? ORDER BY place DESC LIMIT 1"
        while (row := self._row(query, place)) is not None and place < row[0] + row[2]:
            yield row[0], row[1]
            place = row[0] + row[2]

    def _around(self, place: int) -> tuple[int, Block]:
        """The block with this place, and its first place."""
        row = self._row("SELECT place, data FROM blocks WHERE place <= ? ORDER BY place DESC LIMIT 1", place)
        block = self._unpacked(row[1]) if row is not None else None
        if row is None or block is None or place >= row[0] + len(block):
            raise damaged(self.path, f"event {place} is not there")
        return row[0], block

    @contextmanager
    def _wire(self) -> Iterator[None]:
        try:
            yield
        except WireError as error:
            raise damaged(self.path, error.message) from error
        except ValueError as error:
            raise damaged(self.path, error) from error

    def _checkpoint(self, place: int) -> tuple[int, State]:
        """The nearest state that is known at or before a place."""
        row = self._row("SELECT place, base, data FROM checkpoints WHERE place <= ? ORDER BY place DESC LIMIT 1", place)
        at, state = self._near
        if row is not None and self._usable and (at > place or row[0] > at):
            return row[0], self._state(*row)
        return (at, state) if at <= place else (0, State())

    def _state(self, place: int, base: int, data: bytes) -> State:
        try:
            if place == base:
                return decode_state(_unpack(data))
            raw = _unpack(self._one("SELECT data FROM checkpoints WHERE place = ?", base))
            near = zstandard.ZstdCompressionDict(raw, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
            return decode_state(_unpack(data, near))
        except (zstandard.ZstdError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise damaged(self.path, error) from error

    def _unpack(self, data: Any) -> Block:
        try:
            return unpack(_unpack(data))
        except (zstandard.ZstdError, ValueError) as error:
            raise damaged(self.path, error) from error

    def _rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._database.execute(query, values)
        except DAMAGE as error:
            raise damaged(self.path, error) from error

    def _row(self, query: str, *values: object) -> tuple[Any, ...] | None:
        return next(self._rows(query, *values), None)

    def _one(self, query: str, *values: object, default: Any = None) -> Any:
        row = self._row(query, *values)
        if row is None and default is None:
            raise damaged(self.path, "a block is missing")
        return default if row is None else row[0]


def _connect(path: Path) -> sqlite3.Connection:
    """Read-only; where not even a lock can be made, as the finished file that it then is."""
    for options in ("mode=ro", "mode=ro&immutable=1"):
        database = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{options}", uri=True, check_same_thread=False)
        with suppress(sqlite3.OperationalError):
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return database
        database.close()
    raise sqlite3.OperationalError("it cannot be opened")


def _unpack(data: Any, near: zstandard.ZstdCompressionDict | None = None) -> bytes:
    """A frame's bytes.

    Raises:
        ValueError: it is no frame, or says to be larger than any frame of a recording.
        zstandard.ZstdError: it is damaged.
    """
    if not isinstance(data, bytes) or not 0 <= zstandard.frame_content_size(data) <= MOST_BYTES:
        raise ValueError("a block is not a frame of a recording")
    return zstandard.ZstdDecompressor(dict_data=near).decompress(data)


def _joined(kept: Sequence[Said], count: int) -> tuple[int, list[str]]:
    """Lines in order, each once, and the number of the first; what a repeated piece holds already is left out."""
    lines: list[str] = []
    start = following = kept[0][0] if kept else 0
    for first, piece in kept:
        if first > following:
            lines, start = [], first
        lines += piece[max(0, following - first) if first <= following else 0 :]
        following = max(following, first + len(piece)) if lines else first
    cut = max(0, len(lines) - count)
    return start + cut, lines[cut:]
