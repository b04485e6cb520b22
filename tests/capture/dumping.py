"""Plain rows for the writer, and a process that writes them until it is killed: dumping.py DIRECTORY [scribe]."""

import json
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np

from kimi_capture.arena import Arena
from kimi_capture.chunk import Rows
from kimi_capture.format import Array, Manifest, conventions
from kimi_capture.guard import Guard
from kimi_capture.rows import Piece
from kimi_capture.scribe import Scribe
from kimi_capture.store import Store
from kimi_capture.writer import Finished, Writer

HIDDEN = 64
BOUNDARIES = (2, 3, 4)
ROW_BYTES = 4 * HIDDEN * 2 + 16
SHARD = 40_000
FINITE = (0x3C00, 0x4100)
"""Bits of bfloat16 values from 0.0078 to 8."""


def manifest(dump: str = "d", run: str = "run") -> Manifest:
    return Manifest(
        dump, run, 0.0, BOUNDARIES, conventions(BOUNDARIES, 0), "bfloat16", HIDDEN, 6, "post", {}, None, "0.5.23",
        "0.1.0", (), {},
    )  # fmt: skip


def finished(rid: str, rows: int, seed: int = 0) -> Finished:
    """A request of that many rows, in two pieces."""
    source = np.random.default_rng(seed)
    tokens = source.integers(0, 500, rows)
    pieces = []
    for start, length in ((0, rows // 2), (rows // 2, rows - rows // 2)):
        arrays: dict[str, Array] = {
            "aux_hidden_states": source.integers(*FINITE, (length, 3, HIDDEN), dtype=np.uint16),
            "last_hidden_state": source.integers(*FINITE, (length, HIDDEN), dtype=np.uint16),
            "token_ids": tokens[start : start + length],
            "positions": np.arange(start, start + length),
        }
        pieces.append(Piece(start, length, 0, Rows(arrays)))
    return Finished(rid, rows, 1, "length", tokens, pieces)


class Dumping:
    """A writer with the accounts of what it lost."""

    def __init__(self, directory: Path, store: Store | None = None) -> None:
        self.guard = Guard()
        self.lost: Counter[str] = Counter()
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self.writer = Writer(
            store or Store(directory, "TP0", manifest()), row_bytes=ROW_BYTES, shard_bytes=SHARD, limit=4 * SHARD,
            guard=self.guard, lost=self._lose, on_failure=self._fail,
        )  # fmt: skip

    def _lose(self, rows: int, reason: str, problem: str | None) -> None:
        with self._lock:
            self.lost[reason] += rows

    def _fail(self, reason: str) -> None:
        self.failures.append(reason)
        self.writer.fail(reason)

    def report(self) -> dict[str, object]:
        writer = self.writer
        return {"committed": writer.committed, "shards": writer.shards, "paused": writer.paused, "lost": self.lost}


def until(condition: object, dumping: Dumping) -> None:
    """Wait until `condition` (a callable) holds, and print the report."""
    assert callable(condition)
    while not condition():
        time.sleep(0.01)
    print(json.dumps(dumping.report()), flush=True)


def write_for_ever(directory: Path) -> None:
    dumping = Dumping(directory)
    number = 0
    while True:
        dumping.writer.put(finished(f"r{number}", 20, number))
        dumping.writer.hold_back()
        number += 1
        print(json.dumps(dumping.report()), flush=True)


def write_apart(directory: Path) -> None:
    """As `write_for_ever`, by a process of its own, whose pid is printed; only then is anything written."""
    dumping = Dumping(directory, Store(directory, "TP0", manifest(), start=partial(Scribe, Arena())))
    scribe = dumping.writer.store._committer
    assert isinstance(scribe, Scribe)
    print(scribe.pid, flush=True)
    for number in range(1 << 30):
        dumping.writer.put(finished(f"r{number}", 20, number))
        dumping.writer.hold_back()


def fill_and_free(directory: Path, filler: Path, rows: int) -> None:
    """On a nearly full disk: write until paused, free the disk, and commit all."""
    dumping = Dumping(directory)
    for number in range(rows // 20):
        dumping.writer.put(finished(f"r{number}", 20, number))
    until(lambda: dumping.writer.paused, dumping)
    began = time.monotonic()
    dumping.writer.hold_back()
    assert time.monotonic() - began < 4, "a full disk must not hold back the engine"
    filler.unlink()
    dumping.writer.close(time.monotonic() + 60)
    print(json.dumps(dumping.report()), flush=True)


if __name__ == "__main__":
    if sys.argv[2:] == ["scribe"]:
        write_apart(Path(sys.argv[1]))
    elif len(sys.argv) == 2:
        write_for_ever(Path(sys.argv[1]))
    else:
        fill_and_free(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
