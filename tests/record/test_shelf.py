"""A directory of recordings keeps what it has room and time for, and never drops what is being written."""

import os
import time
from pathlib import Path

from kimi_agent.record.shelf import DAY, Limits, Shelf


def put(directory: Path, name: str, size: int, age: float) -> Path:
    path = directory / f"{name}.kimirec"
    path.write_bytes(b"x" * size)
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def test_what_is_too_old_goes_first_and_then_what_is_too_much(tmp_path: Path) -> None:
    ancient = put(tmp_path, "run-1", 10, 40 * DAY)
    (tmp_path / "run-1.kimirec-wal").write_bytes(b"")
    old, newer, newest = (put(tmp_path, f"run-{n}", 400, (9 - n) * 3600) for n in (2, 3, 4))
    shelf = Shelf(tmp_path, Limits(total_bytes=1000, age=30 * DAY))
    assert shelf.prune() == [ancient, old]
    assert sorted(tmp_path.iterdir()) == [newer, newest]


def test_the_recording_that_is_written_stays(tmp_path: Path) -> None:
    current = put(tmp_path, "run-9", 5000, 90 * DAY)
    other = put(tmp_path, "run-8", 10, 3600)
    assert Shelf(tmp_path, Limits(total_bytes=1000)).prune(keep=current) == [other]
    assert current.exists()


def test_a_full_part_goes_on_in_the_next_file(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, Limits(part_bytes=100))
    assert shelf.current("run-1").name == "run-1.kimirec"
    put(tmp_path, "run-1", 50, 0)
    assert shelf.current("run-1").name == "run-1.kimirec"
    put(tmp_path, "run-1", 150, 0)
    assert shelf.current("run-1").name == "run-1.2.kimirec"
    for part in range(2, 12):
        put(tmp_path, f"run-1.{part}", 150, 0)
    put(tmp_path, "run-10", 10, 0)
    assert shelf.current("run-1").name == "run-1.12.kimirec"
    assert [path.name for path in shelf.parts("run-1")][-1] == "run-1.11.kimirec"
