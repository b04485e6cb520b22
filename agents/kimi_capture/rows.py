"""Which row belongs to which request, and the accounts of every row. Plain data: no torch, no I/O.

A forward step computes rows for requests; `Ledger.step` says which of them are to be kept, `Ledger.finish` when a
request is complete. Every row that a dump should have is counted once as served, and is either captured or missing
for a named reason: served = captured + sum(missing) holds after every call.
"""

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final

from kimi_capture.modes import PROOF

HEALTH_CHECK: Final = "HEALTH_CHECK_"
"""How SGLang's own probes begin their request ids; their rows are nobody's data."""
STARTED_BEFORE: Final = "started before the dump"
PREFIX_HIT: Final = "prefix hit"
ABORTED: Final = "aborted"
DUMP_STOPPED: Final = "dump stopped"
DUMP_FAILED: Final = "dump failed"
STAGING_FULL: Final = "staging full"
DISK_FULL: Final = "disk full"
ROWS_MISSING: Final = "rows missing"
MISMATCH: Final = "token mismatch"
MULTIMODAL: Final = "multimodal request"
EMBEDDINGS: Final = "request of embeddings"
ALREADY: Final = "already in the dump"


@dataclass(slots=True, eq=False)
class Piece:
    """Consecutive rows of one request out of one step."""

    start: int
    """Position of the first row."""
    length: int
    offset: int
    """Row of the step at which they lie, or of the block that steps were gathered in."""
    rows: object | None = None
    """The rows themselves, filled in by who copies them."""
    at: int = 0
    """Row of `rows` at which they begin."""
    rid: str = ""


@dataclass(slots=True)
class Track:
    """One request in flight."""

    rid: str
    counted: bool
    """Whether its rows are in the dump's accounts."""
    reason: str | None = None
    """Why it is not kept; None while it is."""
    high: int = 0
    """Positions 0..high-1 have been computed, in this dump or before."""
    due: int = 0
    """Of those, how many are in the dump's accounts."""
    covered: int = 0
    """Positions 0..covered-1 lie in `pieces`."""
    pieces: list[Piece] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        return self.counted and self.reason is None

    def cut(self, end: int) -> None:
        """Forget the rows from position `end` on."""
        while self.pieces and self.pieces[-1].start >= end:
            self.pieces.pop()
        if self.pieces:
            last = self.pieces[-1]
            last.length = min(last.length, end - last.start)
        self.covered = min(self.covered, end)


class Ledger:
    """The requests in flight and the accounts of one dump after the other. Not thread-safe."""

    def __init__(self) -> None:
        self.served = 0
        self.captured = 0
        self.missing: Counter[str] = Counter()
        self.violations: list[str] = []
        """What went against the rules, in words; for the owner to take."""
        self._tracks: dict[str, Track] = {}
        self._open = False

    @property
    def in_flight(self) -> int:
        """Requests that are being kept and have not ended."""
        return sum(track.kept for track in self._tracks.values())

    def open(self) -> None:
        """A dump starts: accounts from zero; requests already in flight are missing from here on."""
        self.served, self.captured = 0, 0
        self.missing.clear()
        for track in self._tracks.values():
            track.counted, track.reason, track.due, track.covered = True, STARTED_BEFORE, 0, 0
            track.pieces.clear()
        self._open = True

    def close(self) -> None:
        """No new request is kept; those in flight go on."""
        self._open = False

    def give_up(self, reason: str) -> None:
        """End the accounts: what is in flight is missing for `reason`."""
        self._open = False
        for track in self._tracks.values():
            if track.kept:
                self._lose(track, reason)
            track.counted = False

    def step(
        self, entries: Iterable[tuple[str, int, int]], refuse: str | None = None, known: Container[str] = ()
    ) -> list[Piece]:
        """Book a forward step; returns the pieces whose rows are to be copied.

        `entries` are (request id, position of the first row, rows) in the order of the step's rows. `refuse` is why
        a request that begins now is not kept. Requests in `known` are in the dump already and not kept again.
        """
        pieces: list[Piece] = []
        offset = 0
        for rid, start, length in entries:
            if not rid.startswith((HEALTH_CHECK, PROOF)):
                track = self._tracks.get(rid) or self._begin(rid, start, ALREADY if rid in known else refuse)
                if self._book(track, start, length):
                    piece = Piece(start, length, offset, rid=rid)
                    track.pieces.append(piece)
                    pieces.append(piece)
            offset += length
        return pieces

    def finish(self, rid: str, prompt: int, output: int) -> list[Piece] | None:
        """A request ended well; returns the pieces of its prompt + output − 1 rows, or None when it is not kept.

        The last sampled token is never computed, so it has no row; a step launched after the end may have left extra
        rows, which are cut.
        """
        track = self._tracks.pop(rid, None)
        if track is None or not track.counted:
            return None
        rows = prompt + max(output, 1) - 1
        self._count(track, rows - track.high)
        if track.reason is not None:
            return None
        if track.covered < rows:
            self._lose(track, ROWS_MISSING)
            self.violations.append(f"request {rid} has {track.covered} rows, expected {rows}")
            return None
        track.cut(rows)
        return track.pieces

    def abort(self, rid: str, reason: str = ABORTED) -> None:
        """A request ended early; its rows are missing."""
        track = self._tracks.pop(rid, None)
        if track is not None and track.kept:
            self._lose(track, reason)

    def shed(self, rid: str, reason: str) -> None:
        """There is no room for a request's rows: it is not kept any more."""
        track = self._tracks.get(rid)
        if track is not None and track.kept:
            self._lose(track, reason)

    def drop(self, rows: int, reason: str) -> None:
        """Rows of a finished request turned out to be unusable."""
        self.captured -= rows
        self.missing[reason] += rows

    def _begin(self, rid: str, start: int, refuse: str | None) -> Track:
        track = self._tracks[rid] = Track(rid, counted=self._open)
        if self._open:
            track.reason = PREFIX_HIT if start > 0 else refuse
        return track

    def _book(self, track: Track, start: int, length: int) -> bool:
        end = start + length
        if track.kept and start > track.covered:
            self._lose(track, ROWS_MISSING)
            self.violations.append(f"request {track.rid} jumped from position {track.covered} to {start}")
        if not track.counted:
            track.high = max(track.high, end)
            return False
        self._count(track, max(0, end - track.high))
        if not track.kept:
            return False
        track.cut(start)
        track.covered = end
        return True

    def _count(self, track: Track, rows: int) -> None:
        """Add rows (or take back, when negative) to the accounts of a track."""
        rows = max(rows, -track.due)
        track.high += rows
        track.due += rows
        self.served += rows
        if track.reason is None:
            self.captured += rows
        else:
            self.missing[track.reason] += rows

    def _lose(self, track: Track, reason: str) -> None:
        self.drop(track.due, reason)
        track.reason = reason
        track.pieces.clear()
        track.covered = 0
