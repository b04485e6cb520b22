"""Shards are there if and only if they are committed: after a kill, on a full disk, in a taken directory."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kimi_capture import writer
from kimi_capture.chunk import Chunk, Rows
from kimi_capture.claim import StoreError
from kimi_capture.format import COMMITS, file_xxh3, read_commits, read_shard
from kimi_capture.rows import Piece
from kimi_capture.store import Store
from kimi_capture.writer import Finished

from .conftest import AGENTS
from .dumping import Dumping, finished, manifest

SCRIPT = Path(__file__).with_name("dumping.py")


def check(directory: Path) -> dict[str, int]:
    """Every committed shard is whole; the rows of each sample."""
    rows: dict[str, int] = {}
    commits, unreadable = read_commits(directory)
    assert unreadable == 0
    for commit in commits:
        shard = read_shard(directory / commit.shard)
        assert file_xxh3(shard.path) == commit.xxh3
        assert shard.corrupt() == []
        rows |= {sample.rid: sample.rows for sample in shard.meta.samples}
    return rows


def test_samples_are_grouped_into_shards_and_committed(tmp_path: Path) -> None:
    dumping = Dumping(tmp_path / "d")
    samples = [finished(f"r{number}", 7 + number, number) for number in range(30)]
    for sample in samples:
        dumping.writer.put(sample)
    dumping.writer.close(time.monotonic() + 30)
    assert check(tmp_path / "d") == {sample.rid: len(sample.tokens) for sample in samples}
    assert 1 < dumping.writer.shards < 30
    assert dumping.writer.committed == sum(len(sample.tokens) for sample in samples)
    assert dumping.writer.bytes == sum(path.stat().st_size for path in (tmp_path / "d").glob("*.safetensors"))
    assert (dumping.lost, dumping.guard.errors) == ({}, 0)


def test_a_shard_has_the_samples_that_come_nearest_to_its_size(tmp_path: Path) -> None:
    dumping = Dumping(tmp_path / "d")
    for number in range(12):
        dumping.writer.put(finished(f"r{number}", 34, number))  # 17,952 bytes each: two make 0.9 of a shard, three 1.35
    dumping.writer.close(time.monotonic() + 30)
    assert len(check(tmp_path / "d")) == 12
    assert [commit.samples for commit in read_commits(tmp_path / "d")[0]] == [2] * 6


def test_rows_that_are_not_the_requests_own_are_never_written(tmp_path: Path) -> None:
    dumping = Dumping(tmp_path / "d")
    good, swapped, shifted = finished("good", 6, 1), finished("swapped", 6, 2), finished("shifted", 6, 3)
    first = shifted.pieces[0].rows
    assert isinstance(first, Rows)
    first.arrays["positions"] += 1
    for sample in (
        replace(swapped, tokens=good.tokens), shifted, replace(good, rid="hole", pieces=[Piece(0, 6, 0)]), good
    ):  # fmt: skip
        dumping.writer.put(sample)
    dumping.writer.close(time.monotonic() + 30)
    assert check(tmp_path / "d") == {"good": 6}
    assert dumping.lost == {"token mismatch": 12, "rows missing": 6}


class Late(Chunk):
    """Rows that are on the host when `there` says so."""

    def __init__(self, sample: Finished) -> None:
        layout: Any = None
        super().__init__(layout, sample.pieces, 0, None)
        self.there = threading.Event()
        self._rows = [piece.rows for piece in sample.pieces]
        for piece in sample.pieces:
            piece.rows = None

    @property
    def bytes(self) -> int:
        return 1000

    @property
    def ready(self) -> bool:
        return self.there.is_set()

    def settle(self) -> None:
        for piece, rows in zip(self.pieces, self._rows, strict=True):
            piece.rows = rows


def test_a_request_that_has_ended_does_not_wait_for_a_step_that_hangs(tmp_path: Path) -> None:
    dumping, sample = Dumping(tmp_path / "d"), finished("r", 6)
    own, hanging = Late(sample), Late(finished("other", 6))
    for item in (own, hanging, sample):
        dumping.writer.put(item)
    own.there.set()
    began = time.monotonic()
    assert dumping.writer.close(began + 30)
    assert time.monotonic() - began < 20, "the step that hangs was waited for"
    assert check(tmp_path / "d") == {"r": 6}
    assert (dumping.lost, dumping.guard.errors, dumping.writer.idle) == ({}, 0, True)


def test_a_request_whose_rows_the_device_keeps_does_not_keep_the_dump_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "HOLD", 0.2)
    monkeypatch.setattr(writer, "RETRY", 0.1)
    dumping, sample = Dumping(tmp_path / "d"), finished("r", 6)
    for item in (finished("before", 8), Late(sample), sample):
        dumping.writer.put(item)
    dumping.writer.close(time.monotonic() + 30)
    assert check(tmp_path / "d") == {"before": 8}
    assert dumping.lost == {"dump failed": 6}
    assert dumping.guard.last_error == "the device does not hand over the rows of a request that has ended"


def test_killed_at_any_moment_all_that_was_reported_is_there(tmp_path: Path) -> None:
    for lines in (1, 7, 40):
        directory = tmp_path / str(lines)
        process = subprocess.Popen(
            [sys.executable, SCRIPT, directory], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(AGENTS)}
        )
        assert process.stdout is not None
        with process.stdout:
            reports = [json.loads(process.stdout.readline()) for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
            process.wait()
        reported = reports[-1]["committed"]
        assert sum(check(directory).values()) >= reported
        # A writer that comes back takes what is committed, and what is whole, and goes on.
        before = check(directory)
        store = Store(directory, "TP0", manifest(), resume=True)
        assert set(directory.glob("*.safetensors")) == {directory / c.shard for c in read_commits(directory)[0]}
        assert list(directory.glob(".*.tmp")) == []
        assert not (directory / store.new_name()).exists()
        assert check(directory).items() >= before.items()
        assert store.rids == set(check(directory))


@pytest.mark.skipif(shutil.which("unshare") is None, reason="a full disk needs a mount namespace")
def test_a_full_disk_pauses_the_dump_and_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    prepare = f"mount -t tmpfs -o size=1m tmpfs {disk} && head -c 900000 /dev/zero > {disk}/filler && exec "
    command = f"{sys.executable} {SCRIPT} {disk}/d {disk}/filler 400 2>&1"
    result = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", prepare + command],
        check=False, capture_output=True, text=True, timeout=120, env=os.environ | {"PYTHONPATH": str(AGENTS)},
    )  # fmt: skip
    if "mount" in result.stderr or "unshare" in result.stderr:
        pytest.skip(f"no mount namespace here: {result.stderr.strip()}")
    reports = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert len(reports) == 2, result.stdout
    assert "No space left" in reports[0]["paused"]
    assert reports[0]["committed"] < 400
    assert (reports[1]["committed"], reports[1]["paused"], reports[1]["lost"]) == (400, None, {})


def test_a_disk_that_is_gone_ends_the_dump_and_says_so(tmp_path: Path) -> None:
    dumping = Dumping(tmp_path / "d")
    shutil.rmtree(tmp_path / "d")
    dumping.writer.put(finished("r", 50))
    dumping.writer.close(time.monotonic() + 30)
    assert dumping.lost == {"dump failed": 50}
    assert "could not be written: No such file" in dumping.failures[0]
    assert dumping.guard.last_error == dumping.failures[0]


def test_a_taken_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    Store(tmp_path / "d", "TP0", manifest())
    with pytest.raises(StoreError, match="already holds dump d of run run"):
        Store(tmp_path / "d", "TP0", manifest(run="later"))
    with pytest.raises(StoreError, match="already holds"):
        Store(tmp_path / "d", "TP0", manifest(dump="other"))
    Store(tmp_path / "d", "DP1 TP0", manifest())
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="no manifest"):
        Store(tmp_path / "foreign", "TP0", manifest())
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["notes.txt"]


def test_a_torn_line_spoils_no_later_commit(tmp_path: Path) -> None:
    store = Store(tmp_path, "TP0", manifest())
    arrays = {name: np.concatenate([part.rows.arrays[name] for part in finished("r", 4).pieces]) for name in ROWS}  # type: ignore[attr-defined]
    arrays["sample_offsets"] = np.zeros(1, np.int64)
    empty = {name: array[:0] if name != "sample_offsets" else array for name, array in arrays.items()}
    (tmp_path / COMMITS).write_bytes(b'{"shard":"shard-TP0-0000')
    commit = store.commit(store.new_name(), empty, ())
    assert read_commits(tmp_path) == ([commit], 0)


ROWS = ("aux_hidden_states", "last_hidden_state", "token_ids", "positions")
