"""A dump outlives every crash: what was durable stays, a repair makes it whole, a resume neither repeats nor skips."""

import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kimi_capture.directory import append_durably

from .crashing import cut_off, remount

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]
TESTS = Path(__file__).parents[1]


def crash(directory: Path, *batches: tuple[object, ...]) -> Counter[str]:
    """Batches of crashes side by side (see `crashing.py`); what they left, by kind, and the crashes themselves."""
    running = []
    for number, batch in enumerate(batches):
        place = directory / f"{batch[0]}-{number}" if len(batch) == 3 else Path(str(batch[3]))
        place.mkdir(exist_ok=True)
        running.append(subprocess.Popen(
            [sys.executable, "-m", "capture.crashing", *map(str, batch[:3]), place, *map(str, batch[4:])],
            cwd=TESTS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        ))  # fmt: skip
    found: Counter[str] = Counter()
    for process in running:
        out, err = process.communicate()
        assert process.returncode == 0, err[-3000:]
        for line in map(json.loads, out.splitlines()):
            found["crashes"] += line["crashes"]
            found.update(line["left"])
    return found


def test_killed_at_two_hundred_random_moments(tmp_path: Path) -> None:
    found = crash(tmp_path, ("kill", 1, 50), ("scribe", 1, 50), ("call", 1, 50), ("call", 1001, 50))
    assert found["crashes"] >= 200
    assert min(found[left] for left in ("unfinished", "no line", "torn line", "clean")) > 0, found


def test_files_may_not_grow_from_a_random_moment_on(tmp_path: Path) -> None:
    assert crash(tmp_path, ("limit", 1, 15), ("limit", 1001, 15))["crashes"] >= 30


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A disk of its own: its image, and where it is mounted as ext4."""
    if os.geteuid() != 0:
        pytest.fail("Cutting a disk off needs root, to mount one: run this test as root.", pytrace=False)
    image, mountpoint = tmp_path / "image", tmp_path / "disk"
    mountpoint.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mountpoint], check=True)
    yield image, mountpoint
    subprocess.run(["umount", mountpoint], check=True)


def test_the_disk_is_cut_off_at_a_random_moment(tmp_path: Path, disk: tuple[Path, Path]) -> None:
    """As in a power cut: nothing more is written, and what was not synced is gone when the disk is back."""
    image, mountpoint = disk
    assert crash(tmp_path, ("power", 1, 25, mountpoint, image))["crashes"] >= 25


def test_a_line_is_said_to_be_durable_only_when_a_disk_that_is_cut_off_has_it(disk: tuple[Path, Path]) -> None:
    """Several wait for one journal's commit when the disk goes: fsync tells some of them that all went well."""
    image, mountpoint = disk

    def append(path: Path) -> int:
        for said in itertools.count():
            try:
                append_durably(path, b"%d\n" % said)
            except OSError:
                return said
        raise AssertionError

    for number in range(40):
        directory = mountpoint / str(number)
        directory.mkdir()
        files = [directory / str(writer) for writer in range(6)]
        with ThreadPoolExecutor(len(files)) as pool:
            said = [pool.submit(append, file) for file in files]
            time.sleep(0.05)  # the moment of the cut: anywhere in one of some hundred commits
            cut_off(mountpoint)
        remount(image, mountpoint)
        there = [file.read_bytes().count(b"\n") if file.exists() else 0 for file in files]
        assert all(map(int.__le__, (future.result() for future in said), there)), (number, said, there)
