"""Two starts beside each other: where they part, what took longer, what only one says."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from kimi_console.compare.files import compare_files
from kimi_console.compare.normal import normal_form
from kimi_console.tui.cells import width
from kimi_console.tui.screens.comparison import comparison_lines

LOGS = Path(__file__).parent.parent / "logs"
GOOD = LOGS / "cpu-llama-tp2-ready.log"


def cut(path: Path, lines: int) -> Path:
    """A start that stopped in the middle."""
    path.write_text("".join(GOOD.read_text().splitlines(keepends=True)[:lines]))
    return path


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[2026-11-29 13:20:05 TP1] Load weight end. in 1.2 s", "[2026-11-28 01:00:00 TP0] Load weight end. in 31 s"),
        ("loaded /a/b/c/model.safetensors at 0x7f00aa", "loaded /home/x/model.safetensors at 0x1"),
        ("Loading: 10%|# | 1/10 [00:01<00:09]", "Loading: 90%|#########| 9/10 [00:01<00:09]"),
        ("server_args={'port': 1}", "server_args={'port': 2, 'x': 3}"),
    ],
)  # fmt: skip
def test_the_same_line_of_two_runs_says_the_same(one: str, other: str) -> None:
    assert normal_form(one) == normal_form(other)


def test_different_lines_stay_different() -> None:
    assert len({normal_form(line) for line in GOOD.read_text().splitlines()}) > 60


def test_a_start_that_stopped_parts_where_its_log_ends(tmp_path: Path) -> None:
    lines = GOOD.read_text().splitlines()
    found = compare_files(cut(tmp_path / "hung.log", 40), GOOD)
    assert found.parting is not None
    assert found.parting.a is None
    assert found.parting.b in lines[40:]
    assert found.only_a == ()
    assert {line.line for line in found.only_b} <= set(lines[40:])
    assert (found.a.lines, found.b.lines) == (40, len(lines))
    assert found.a.last == lines[39]
    assert found.phases[0].phase == "import"


def test_a_start_against_itself_differs_in_nothing() -> None:
    found = compare_files(GOOD, GOOD)
    assert (found.parting, found.only_a, found.only_b, found.slower) == (None, (), (), None)
    assert all(pair.a == pair.b for pair in found.phases)


def test_a_failed_start_parts_with_what_only_it_says() -> None:
    found = compare_files(LOGS / "cpu-hook-exception.log", GOOD)
    assert found.a.status == "FAILED"
    assert "disk full" in found.a.verdict
    assert found.only_a


@pytest.mark.parametrize("cells", [60, 78, 120, 200])
def test_the_sheet_fits_its_width(cells: int, tmp_path: Path) -> None:
    for pair in ((LOGS / "cpu-hook-exception.log", GOOD), (cut(tmp_path / "a.log", 40), GOOD), (GOOD, GOOD)):
        for line in comparison_lines(compare_files(*pair), cells):
            assert width(line) <= cells + 1


def test_the_command_prints_one_object(tmp_path: Path) -> None:
    hung = cut(tmp_path / "hung.log", 40)
    command = [sys.executable, "-m", "kimi_console", "replay", str(hung), "--against", str(GOOD)]
    done = subprocess.run([*command, "--json"], capture_output=True, check=True, timeout=60)
    told = orjson.loads(done.stdout)
    assert set(told) == {"a", "b", "phases", "slower", "parting", "only_a", "only_b"}
    assert told["a"]["lines"] == 40
    text = subprocess.run([*command, "--headless"], capture_output=True, check=True, timeout=60, text=True).stdout
    assert "they part in" in text
