"""A dump's life: its accounts balance, a stop waits for what is in flight, a failure is named and final."""

import threading
from pathlib import Path

import pytest

from kimi_capture.dump import MIB, Dump, Limits, inside
from kimi_capture.guard import Guard
from kimi_capture.rows import DUMP_FAILED, DUMP_STOPPED, STAGING_FULL, Ledger
from kimi_capture.staging import Stager
from kimi_capture.store import Store

from .dumping import ROW_BYTES, finished, manifest
from .test_writer import check


class Rank:
    """A ledger and its dump, driven as the hooks drive them."""

    def __init__(self, directory: Path, memory: int = 64 * MIB) -> None:
        self.ledger = Ledger()
        self.lock = threading.Condition()
        self.guard = Guard()
        self.dump = Dump(
            self.ledger,
            self.lock,
            Store(directory, "TP0", manifest()),
            stager=Stager(),
            row_bytes=ROW_BYTES,
            limits=Limits(shard=MIB, waiting=4 * MIB, memory=memory),
            guard=self.guard,
        )
        self.guard.on_limit = self.dump.fail

    def begin(self, rid: str, rows: int) -> None:
        with self.lock:
            self.ledger.step([(rid, 0, rows)], self.dump.refusal())

    def end(self, rid: str, rows: int) -> None:
        with self.lock:
            if self.ledger.finish(rid, rows, 1) is not None:
                self.dump.put(finished(rid, rows))
            self.lock.notify_all()


def test_a_stop_waits_for_what_is_in_flight(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "d")
    rank.begin("slow", 9)
    stopping = threading.Thread(target=rank.dump.stop, args=(60,))
    stopping.start()
    while rank.dump.status()["state"] != "draining":
        assert stopping.is_alive()
    rank.begin("late", 5)
    rank.end("slow", 9)
    stopping.join(30)
    assert check(tmp_path / "d") == {"slow": 9}
    status = rank.dump.status()
    assert (status["state"], status["served"], status["committed"], status["missing"]) == ("stopped", 9, 9, {})


def test_what_outlasts_the_drain_time_is_missing(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "d")
    rank.begin("endless", 9)
    rank.begin("quick", 4)
    rank.end("quick", 4)
    rank.dump.stop(0)
    status = rank.dump.status()
    assert (status["served"], status["captured"], status["missing"]) == (13, 4, {DUMP_STOPPED: 9})
    assert check(tmp_path / "d") == {"quick": 4}


def test_repeated_failures_end_the_dump_and_say_why(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "d")
    rank.begin("a", 9)
    for _ in range(5):
        rank.guard.report("forward: ValueError: the step returned no hidden states")
    rank.begin("b", 2)
    rank.end("a", 9)
    status = rank.dump.status()
    assert (status["state"], status["missing"]) == ("failed", {DUMP_FAILED: 9})
    assert "the step returned no hidden states" in status["reason"]
    assert any("the step returned no hidden states" in problem for problem in status["errors"])
    rank.dump.stop(0)
    assert rank.dump.status()["state"] == "failed"


def test_without_memory_new_requests_are_not_kept(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "d", memory=10 * ROW_BYTES)
    rank.begin("first", 20)
    rank.begin("second", 3)
    rank.end("first", 20)
    rank.end("second", 3)
    rank.dump.stop(5)
    assert rank.dump.status()["missing"] == {STAGING_FULL: 3}
    assert check(tmp_path / "d") == {"first": 20}


@pytest.mark.parametrize(
    ("name", "allowed"), [("d", True), ("a/b", True), (".", False), ("../x", False), ("out", False)]
)
def test_a_dump_lies_under_the_root_symbolic_links_resolved(tmp_path: Path, name: str, allowed: bool) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").symlink_to(tmp_path)
    assert inside(root, root / name) is allowed
