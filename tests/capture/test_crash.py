"""A dump outlives every crash: what was durable stays, a repair makes it whole, a resume neither repeats nor skips."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

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


def test_the_disk_is_cut_off_at_a_random_moment(tmp_path: Path) -> None:
    """As in a power cut: nothing more is written, and what was not synced is gone when the disk is back."""
    if os.geteuid() != 0:
        pytest.fail("Cutting a disk off needs root, to mount one: run this test as root.", pytrace=False)
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, disk], check=True)
    try:
        found = crash(tmp_path, ("power", 1, 25, disk, image))
    finally:
        subprocess.run(["umount", disk], check=True)
    assert found["crashes"] >= 25
