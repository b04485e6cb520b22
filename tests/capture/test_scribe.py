"""Shards written by a process of their own: it reads the rows where they are, and its end is never a silent one."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from kimi_capture import scribe
from kimi_capture.arena import Arena
from kimi_capture.claim import StoreError
from kimi_capture.scribe import Scribe
from kimi_capture.store import Store

from .conftest import PYTHON
from .dumping import Dumping, finished, manifest
from .test_writer import check

TESTS = Path(__file__).parents[1]


def scribe_of(store: Store) -> Scribe:
    assert isinstance(store._committer, Scribe)
    return store._committer


def dumping(directory: Path, arena: Arena) -> Dumping:
    return Dumping(directory, Store(directory, "TP0", manifest(), start=partial(Scribe, arena)))


def test_rows_of_other_memory_are_sent_along(tmp_path: Path) -> None:
    there = dumping(tmp_path / "d", Arena())
    samples = [finished(f"r{number}", 7 + number, number) for number in range(30)]
    for sample in samples:
        there.writer.put(sample)
    there.writer.close(time.monotonic() + 30)
    there.writer.store.release()
    assert check(tmp_path / "d") == {sample.rid: len(sample.tokens) for sample in samples}
    assert (there.lost, there.guard.errors) == ({}, 0)
    assert scribe_of(there.writer.store)._process.returncode == 0


def test_a_killed_process_ends_the_dump_and_is_named(tmp_path: Path) -> None:
    there = dumping(tmp_path / "d", Arena())
    there.writer.put(finished("before", 50))
    there.writer.close(time.monotonic() + 30)
    again = Dumping(tmp_path / "d", there.writer.store)
    os.kill(scribe_of(there.writer.store).pid, signal.SIGKILL)
    again.writer.put(finished("after", 50))
    again.writer.close(time.monotonic() + 30)
    assert again.lost == {"dump failed": 50}
    assert "was killed by SIGKILL" in again.failures[0]
    assert check(tmp_path / "d") == {"before": 50}
    there.writer.store.release()


def test_a_full_disk_is_the_engines_to_know(tmp_path: Path) -> None:
    there = dumping(tmp_path / "d", Arena())
    limit = f"import resource; resource.prlimit({scribe_of(there.writer.store).pid}, resource.RLIMIT_FSIZE, (999, -1))"
    subprocess.run([sys.executable, "-c", limit], check=True)
    there.writer.put(finished("r", 50))
    there.writer.close(time.monotonic() + 30)
    assert "File too large" in there.failures[0]
    there.writer.store.release()
    assert (list((tmp_path / "d").glob("*.safetensors")), list((tmp_path / "d").glob(".*.tmp"))) == ([], [])


def test_the_locks_are_held_until_the_last_shard_is_written(tmp_path: Path) -> None:
    """The engine is killed while its scribe stands still: nobody else may write until that has ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "capture.dumping", tmp_path / "d", "scribe"],
        cwd=TESTS,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        pid = int(process.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        process.kill()
        process.wait()
    with pytest.raises(StoreError, match=f"being written by process {process.pid}"):
        Store(tmp_path / "d", "TP0", manifest(), resume=True)
    os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + 30
    while True:
        try:
            Store(tmp_path / "d", "TP0", manifest(), resume=True).release()
            break
        except StoreError:
            assert time.monotonic() < deadline
            threading.Event().wait(0.02)
    check(tmp_path / "d")


def test_a_process_that_never_gets_ready_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = tmp_path / "python"
    stuck.write_text("#!/bin/sh\nexec sleep 600\n")
    stuck.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(stuck))
    monkeypatch.setattr(scribe, "STARTING", 0.2)
    monkeypatch.setattr(scribe, "PATIENCE", 0.2)
    with pytest.raises(OSError, match=r"the process that writes shards, \d+, does not answer") as failure:
        dumping(tmp_path / "d", Arena())
    assert not psutil.pid_exists(int(str(failure.value).split()[-4].rstrip(",")))


@pytest.mark.engine
def test_rows_in_shared_memory_are_read_where_they_are() -> None:
    result = subprocess.run(
        [PYTHON, "-m", "capture.shared_rows"], cwd=TESTS, check=False, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(TESTS.parent / "agents")},
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, "equal\n"), result.stderr[-2000:]
