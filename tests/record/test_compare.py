"""Two starts beside each other: where they part, what took longer, what only one says."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_console.compare.arguments import arguments
from kimi_console.compare.files import compare_files
from kimi_console.compare.normal import normal_form
from kimi_console.compare.text import comparison_text
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


def test_the_arguments_that_differ_are_named() -> None:
    found = compare_files(LOGS / "cpu-soft-watchdog.log", GOOD)
    differing = {pair.name: (pair.a, pair.b) for pair in found.arguments}
    assert differing["soft_watchdog_timeout"] == ("8.0", "None")
    assert "model_path" not in differing
    assert "argument soft_watchdog_timeout: A 8.0, B None\n" in comparison_text(found)
    assert found.arguments[-1].name == "random_seed", "drawn at each start"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[2024-01-01] server_args=ServerArgs(model_path='/m, x', tp_size=8, stops=['a', 'b(c'])",
         {"model_path": "'/m, x'", "tp_size": "8", "stops": "['a', 'b(c']"}),
        ("INFO args: Namespace(model='/m', port=80, hf={'a': [1, 2]}, mode=<Mode.A: 1>)",
         {"model": "'/m'", "port": "80", "hf": "{'a': [1, 2]}", "mode": "<Mode.A: 1>"}),
        ("INFO non-default args: {'model': '/it\\'s', 'n': 2, 'o': None}",
         {"model": "'/it\\'s'", "n": "2", "o": "None"}),
        ("server_args={'model_path': '/m', 'tp_size': 8, 'cut in the", {}),
        ("server_args={}", {}),
        ("no arguments (a=1, b=2, c=3)", {}),
    ],
)  # fmt: skip
def test_arguments_are_read_as_each_server_writes_them(line: str, expected: dict[str, str]) -> None:
    assert arguments(line) == expected


WORDS = st.text("abc_", min_size=1, max_size=6)
VALUES = st.none() | st.integers() | st.text(max_size=8) | st.lists(st.text(max_size=4))


@given(st.dictionaries(WORDS, VALUES))
def test_any_arguments_come_back_as_they_are_written(given_: dict[str, object]) -> None:
    written = {name: repr(value) for name, value in given_.items()}
    assert arguments(f"server_args={given_!r}") == written
    assert arguments("server_args=ServerArgs(" + ", ".join(f"{k}={v}" for k, v in written.items()) + ")") == written


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
    assert set(told) == {"a", "b", "phases", "slower", "parting", "arguments", "only_a", "only_b"}
    assert told["a"]["lines"] == 40
    text = subprocess.run([*command, "--headless"], capture_output=True, check=True, timeout=60, text=True).stdout
    assert "they part in" in text
