"""A newcomer's session in a real terminal: watch the start, dump with one key, read a captured sample's tokens."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kimi_console.demo.engine import Engine
from kimi_console.demo.traffic import SEVERAL

from .conftest import Terminal

START = 480.0
"""Seconds that a start on two busy cores may take."""
READY, WRITING, STOPPED = r"READY", r"writing", r"stopped"


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_a_newcomer_at_two_sizes(
    built: Engine, state: dict[str, str], nothing_left: None, terminal: Callable[..., Terminal]
) -> None:
    console = terminal("demo", "--yes", env=state, columns=120, rows=40)
    watch_the_start(console)
    dump(console)
    read_tokens(console)
    console.resize(80, 24)
    console.press("7")
    dump(console)
    read_tokens(console)
    console.press("q")
    last = console.until(r"exit=\d+", 120)
    assert "exit=0" in last
    assert "stops its server" in last


def watch_the_start(console: Terminal) -> None:
    """The server comes up rank by rank, and the first line says when it is ready."""
    console.until(r"STARTING", 60)
    console.until(r"load weights", START)
    console.until(r"TP0[\s\S]*TP1", START)
    console.until(READY, START)


def dump(console: Terminal) -> None:
    """One key starts a dump, tokens arrive, the same key ends it."""
    console.press("D")
    console.until(WRITING, 30)
    console.until(r"captured [1-9]", 60)
    console.press("D")
    console.until(STOPPED, 60)


def read_tokens(console: Terminal) -> None:
    """Dumps, shards, samples, tokens: each one Enter away, and the text is what was sent."""
    console.press("i")
    console.until(r"Shards\s+dumps")
    console.until(r"\d{8}-\d{6}-\S+\s+\d+\s+\d+\s+\d+\s+\d")
    console.press("Enter")
    console.until(r"shard-TP0-000000")
    console.press("Enter")
    console.until(r"demo-[0-9a-f]{6}-\d{6}")
    console.press("Enter")
    console.until_true(shows_a_prompt, "the tokens of a prompt")
    console.press("q")
    console.until(READY)


def shows_a_prompt(screen: str) -> bool:
    """Whether the row of tokens that the cursor is in is how a prompt begins that the demo sends."""
    row = next((line for line in screen.splitlines() if line.startswith("▸")), "")
    text = row.removeprefix("▸").partition("│")[0].partition("…")[0].replace("·", "").replace(" ", "")
    return len(text) > 3 and any(prompt.replace(" ", "").startswith(text) for prompt in SEVERAL)


def test_a_missing_engine_is_offered_and_no_is_an_answer(
    state: dict[str, str], tmp_path: Path, terminal: Callable[..., Terminal]
) -> None:
    console = terminal("demo", env=state | {"XDG_CACHE_HOME": str(tmp_path / "empty")}, columns=80, rows=24)
    offer = console.until(r"Build it now\? \[Y/n\]")
    assert "6 GB" in offer
    console.press("n", "Enter")
    assert "kimi-console demo --yes" in console.until(r"exit=6")
    assert not (tmp_path / "empty" / "kimi-console").exists()
