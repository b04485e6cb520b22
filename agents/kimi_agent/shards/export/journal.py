"""What an export has done so far: `export.jsonl` in its directory, whose first line says what is exported there."""

import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from kimi_agent.errors import KimiError, UsageError
from kimi_agent.shards.export.base import Entry, Piece
from kimi_capture.directory import append_durably, cut_torn_line, fsync_directory

JOURNAL: Final = "export.jsonl"
TEMPORARY: Final = ".tmp"
"""In the export's directory: files that are being written, and what a killed export left of them."""


@dataclass(slots=True)
class Journal:
    """The files of an export by number, each durable before its line is written."""

    out: Path
    identity: dict[str, Any]
    """What is exported: an export with another identity cannot go on in the same directory."""
    pieces: dict[int, Piece] = field(default_factory=dict)
    done: dict[str, set[int]] = field(default_factory=dict)
    """By shard, the numbers of its samples that are exported."""
    lock: int = -1
    """The descriptor whose closing lets another export into the directory."""

    def close(self) -> None:
        """Let go of the directory."""
        os.close(self.lock)

    @property
    def entries(self) -> list[Entry]:
        """All exported samples, in order."""
        return [entry for _, piece in sorted(self.pieces.items()) for entry in piece.entries]

    def take(self, pieces: Sequence[Piece], shard: str, place: Callable[[int], str]) -> None:
        """Move a shard's written files to their places and note them all at once. Raises OSError."""
        lines = b""
        for piece in pieces:
            number = len(self.pieces)
            target = self.out / place(number)
            target.parent.mkdir(parents=True, exist_ok=True)
            piece.path.rename(target)
            self.keep(number, Piece(Path(place(number)), piece.entries), shard)
            samples = [asdict(entry) for entry in piece.entries]
            lines += orjson.dumps({"number": number, "file": place(number), "shard": shard, "samples": samples}) + b"\n"
        if lines:
            fsync_directory(target.parent)
            append_durably(self.out / JOURNAL, lines)

    def keep(self, number: int, piece: Piece, shard: str) -> None:
        """Remember a file that is in its place."""
        self.pieces[number] = piece
        self.done.setdefault(shard, set()).update(entry.place for entry in piece.entries)


def open_journal(out: Path, identity: dict[str, Any], place: Callable[[int], str]) -> Journal:
    """Begin an export in a directory, or go on with the one that is there; `place` is where a numbered file lies.

    Raises:
        UsageError: the directory holds something else, or another export.
        KimiError: its journal is damaged, or a file that it names is gone.
    """
    path = out / JOURNAL
    if out.is_dir() and not path.exists() and any(entry.name != TEMPORARY for entry in out.iterdir()):
        raise UsageError(f"{out} has files in it that are no export's", "Give a directory of its own.")
    out.mkdir(parents=True, exist_ok=True)
    journal = Journal(out, identity, lock=_hold(out))
    try:
        _resume(journal, path, place)
    except BaseException:
        journal.close()
        raise
    return journal


def _hold(out: Path) -> int:
    lock = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise UsageError(f"another export is writing into {out}", "Wait until it has ended.") from error
    return lock


def _resume(journal: Journal, path: Path, place: Callable[[int], str]) -> None:
    shutil.rmtree(journal.out / TEMPORARY, ignore_errors=True)
    (journal.out / TEMPORARY).mkdir()
    cut_torn_line(path)
    if not path.exists() or not path.stat().st_size:
        append_durably(path, orjson.dumps({"export": journal.identity}) + b"\n")
        fsync_directory(journal.out)
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            _read(journal, path, number, line)
    number = len(journal.pieces)
    while (left := journal.out / place(number)).exists():  # moved, but not noted: a reader would take it for a sample
        left.unlink()
        number += 1


def _read(journal: Journal, path: Path, place: int, line: bytes) -> None:
    try:
        value = orjson.loads(line)
        if place == 1:
            held = value["export"]
        else:
            fields = [entry | {"offsets": tuple(entry["offsets"])} for entry in value["samples"]]
            piece = Piece(Path(value["file"]), tuple(Entry(**entry) for entry in fields))
            journal.keep(int(value["number"]), piece, str(value["shard"]))
            (journal.out / piece.path).stat()
            return
    except FileNotFoundError as error:
        hint = "Export into another directory."
        raise KimiError(f"{path} names a file that is gone: {error.filename}", hint, slug="export") from error
    except (ValueError, KeyError, TypeError) as error:
        hint = "Export into another directory."
        raise KimiError(f"{path}: line {place} is damaged", hint, slug="export") from error
    if held != journal.identity:
        other = sorted(key for key in {*held, *journal.identity} if held.get(key) != journal.identity.get(key))
        raise UsageError(
            f"{journal.out} holds another export: {', '.join(f'{key} is {held.get(key)} there' for key in other)}",
            "Give a directory of its own.",
        )
