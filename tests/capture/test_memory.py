"""Host memory stays within the budget when the disk is far too slow, and the time that this costs is shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import by_engine

BUDGET, RATE, TOTAL = 32, 20, 160
"""MiB, MiB a second, MiB: more than ten times as much as the disk takes meanwhile."""
WINDOWS = 40
"""MiB of buffers that the writers fill besides."""


def throttled(directory: Path, rate: int) -> dict[str, Any]:
    """What the process in `throttled.py` reports."""
    result = by_engine("throttled.py", directory, BUDGET, rate, TOTAL)
    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


@pytest.mark.engine
def test_a_disk_ten_times_too_slow_holds_the_engine_back_and_takes_no_more_memory(tmp_path: Path) -> None:
    report = throttled(tmp_path / "d", RATE)
    assert report["grown_mib"] < BUDGET + WINDOWS
    assert (report["committed"], report["missing"], report["errors"]) == (report["served"], {}, [])
    # All but what memory took at once waits for the disk, and that is what the status says.
    assert report["held_back"] > 0.5 * (TOTAL - 2 * BUDGET) / RATE
