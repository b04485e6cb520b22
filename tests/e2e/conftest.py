"""A real terminal (tmux), and what must not be left behind."""

import itertools
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kimi_agent.paths import Home
from kimi_console.demo.engine import Engine, wanted_engine

PERIOD = 0.2
"""Seconds between two looks at a screen."""
CONSOLE = str(Path(sys.executable).with_name("kimi-console"))


def os_environment(state: dict[str, str]) -> dict[str, str]:
    """This process' environment with the console's places moved."""
    return os.environ | state


class Terminal:
    """One command in a tmux of its own."""

    def __init__(self, name: str, argv: list[str], env: dict[str, str], columns: int, rows: int) -> None:
        self._tmux = ["tmux", "-L", name, "-f", "/dev/null"]
        settings = [f"{key}={value}" for key, value in env.items()]
        # The shell outlives the command, so that its last words and its exit code can be read.
        command = f"env {shlex.join([*settings, *argv])}; echo exit=$?; exec cat"
        size = ["-x", str(columns), "-y", str(rows)]
        self._run("new-session", "-d", *size, command)

    def screen(self) -> str:
        """What a person sees now."""
        return self._run("capture-pane", "-p", "-J")

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names."""
        self._run("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size."""
        self._run("resize-window", "-x", str(columns), "-y", str(rows))

    def until(self, pattern: str, seconds: float = 30.0) -> str:
        """The screen once `pattern` is on it."""
        return self.until_true(lambda screen: re.search(pattern, screen) is not None, pattern, seconds)

    def until_true(self, holds: Callable[[str], bool], what: str, seconds: float = 30.0) -> str:
        """The screen once `holds` is true of it."""
        deadline = time.monotonic() + seconds
        while not holds(screen := self.screen()):
            if time.monotonic() > deadline:
                pytest.fail(f"{what!r} was not on the screen within {seconds:.0f} s:\n{screen}", pytrace=False)
            time.sleep(PERIOD)
        return screen

    def command_pid(self) -> int:
        """The pid of the console."""
        shell = psutil.Process(int(self._run("display-message", "-p", "#{pane_pid}")))
        (child,) = (child for child in shell.children() if "kimi-console" in " ".join(child.cmdline()))
        return int(child.pid)

    def close(self) -> None:
        """End the tmux server and everything in it."""
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)

    def _run(self, *arguments: str) -> str:
        # readline, which pytest imports, sets COLUMNS and LINES behind os.environ; they would overrule the pane's size.
        env = dict(os.environ)
        done = subprocess.run([*self._tmux, *arguments], check=True, capture_output=True, text=True, env=env)
        return done.stdout


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Open a terminal of a size and run the console in it: `terminal("demo", env=…, columns=80, rows=24)`."""
    opened: list[Terminal] = []
    numbers = itertools.count()

    def open_one(*arguments: str, env: dict[str, str], columns: int = 120, rows: int = 40) -> Terminal:
        name = f"kimi-{os.getpid()}-{next(numbers)}"
        opened.append(Terminal(name, [CONSOLE, *arguments], env, columns, rows))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def built(engine: Engine) -> Engine:
    """The engine, which must be the one that the demo would use."""
    if engine.root.resolve() != wanted_engine().root.resolve():
        pytest.fail("The engine at .engine is of another recipe: run `make engine`.", pytrace=False)
    return engine


@pytest.fixture
def state(tmp_path: Path, end_agent: Callable[[Home], None]) -> Iterator[dict[str, str]]:
    """An environment in which the console and its agent keep everything below `tmp_path`; a demo left there ends."""
    yield {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "TERM": "screen-256color",
    }
    end_agent(Home(tmp_path / "state" / "kimi-console" / "demo"))


@pytest.fixture
def nothing_left(built: Engine) -> Iterator[None]:
    """Fail when the test leaves a process of the engine's interpreter that was not there before."""
    before = set(_engine_processes(built))
    yield
    left = set(_engine_processes(built)) - before
    assert not left, [psutil.Process(pid).cmdline() for pid in left if psutil.pid_exists(pid)]


def _engine_processes(engine: Engine) -> Iterator[int]:
    """Every process started with the engine's interpreter: agents, servers, ranks."""
    for process in psutil.process_iter(["cmdline", "environ"]):
        words = " ".join(process.info["cmdline"] or ()) + str((process.info["environ"] or {}).get("PYTHONPATH"))
        if str(engine.root.resolve()) in words:
            yield process.pid
