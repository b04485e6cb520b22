"""The server belongs to the agent: consoles come and go, are killed, and come back to the whole history."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kimi_agent.daemon import connect
from kimi_agent.paths import Home
from kimi_console.demo.engine import Engine
from kimi_console.demo.profile import demo_profile, free_port

from .conftest import Terminal

START = 480.0


@pytest.fixture
def home(tmp_path: Path, end_agent: Callable[[Home], None]) -> Iterator[Home]:
    """An agent's home; agent and server end with the test."""
    home = Home(tmp_path / "home")
    yield home
    end_agent(home)


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_a_killed_console_leaves_the_server_and_the_next_one_finds_its_history(
    built: Engine,
    state: dict[str, str],
    nothing_left: None,
    home: Home,
    tmp_path: Path,
    terminal: Callable[..., Terminal],
) -> None:
    profile = write_profile(tmp_path / "tiny.toml", demo_profile(built, free_port(), tmp_path / "dumps"))
    arguments = ("local", "--home", str(home.root), "--profile", str(profile))
    first = terminal(*arguments, env=state)
    first.until(r"IDLE", 60)
    first.press("l")
    first.until(r"sglang\.launch_server", 90)
    first.press("Enter")
    first.until(r"STARTING", 60)
    first.until(r"READY", START)
    server = running(home)
    os.kill(first.command_pid(), signal.SIGKILL)
    first.until(r"exit=137")
    assert psutil.Process(server).is_running()

    second = terminal(*arguments, env=state)
    second.until(r"READY", 60)
    assert running(home) == server
    second.press("E")
    second.until_true(lambda screen: "STARTING" in screen and "READY" in screen, "the events before this console")
    second.press("Escape")
    second.until_true(lambda screen: "Events" not in screen, "the board")
    second.press("s")
    second.until(r"y ")
    second.press("y")
    second.until(r"IDLE", 90)
    assert not psutil.pid_exists(server)
    second.press("q")
    second.until(r"exit=0")


def running(home: Home) -> int:
    """The pid of the server that the agent runs."""
    client = connect(home, start=False)
    run = client.request("status")["run"]
    client.close()
    assert run["alive"]
    return int(run["pid"])


def write_profile(path: Path, tables: dict[str, object]) -> Path:
    """A profile as TOML; strings, numbers and lists of them are written as in JSON."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for key, table in tables.items():
        if isinstance(table, dict):
            lines += ["", f"[{key}]", *(f"{name} = {json.dumps(value)}" for name, value in table.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
