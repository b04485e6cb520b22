"""Bisections of the real server: a fault that only capture brings is named, one that is always there is not pinned."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest

from kimi_agent.bundle import ensure_bundle
from kimi_agent.model.bisect import BisectChanged
from kimi_agent.paths import Home
from kimi_agent.wire.client import Client
from kimi_agent.wire.codec import decode_event
from kimi_console.demo.engine import Engine
from kimi_console.demo.profile import demo_profile, free_port

pytestmark = pytest.mark.engine

STOPS = """
import os, signal, setproctitle
rename = setproctitle.setproctitle
def stop_when_a_rank(title):
    rename(title)
    if title.startswith("sglang::scheduler"):
        os.kill(os.getpid(), signal.SIGSTOP)
if {condition}:
    setproctitle.setproctitle = stop_when_a_rank
"""
"""A module that Python imports by itself: where the condition holds, a rank stops as soon as it is one."""


class Machine:
    """A GPU host's command line: `kimi-agent` in the engine's Python, with one agent and one profile."""

    def __init__(self, engine: Engine, home: Home, directory: Path, condition: str) -> None:
        (directory / "fault").mkdir()
        (directory / "fault" / "sitecustomize.py").write_text(STOPS.format(condition=condition))
        profile = demo_profile(engine, free_port())
        profile["server"]["tp"] = 1
        profile["env"]["SGLANG_CPU_OMP_THREADS_BIND"] = "0"
        profile["env"]["PYTHONPATH"] = f"{directory / 'fault'}{os.pathsep}{profile['env']['PYTHONPATH']}"
        self.profile = directory / "profile.toml"
        self.profile.write_text(_toml(profile))
        self.model = profile["server"]["model"]
        self.home = home
        self._start = [str(engine.python), "-m", "kimi_agent"]
        self._env = os.environ | {"PYTHONPATH": str(ensure_bundle()), "KIMI_AGENT_HOME": str(home.root)}

    def command(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen([*self._start, *arguments], env=self._env, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)  # fmt: skip

    def servers(self) -> list[psutil.Process]:
        """Processes of servers with this home's run directories, alive or stopped."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and str(self.home.root / "runs") in process.cwd():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def table(self) -> BisectChanged | None:
        """What a console that comes now sees of the bisection."""
        client = Client(self.home.socket)
        last = client.request("subscribe", epoch=None, after=0)["last"]
        bodies = [decode_event(line).body for line in islice(client.events(), last) if b"bisect" in line]
        client.close()
        return next((body for body in reversed(bodies) if isinstance(body, BisectChanged)), None)

    def until(self, factor: str, outcome: str, timeout: float = 200.0) -> None:
        """Wait until the table says so of a factor, and its server runs if it is to run."""
        deadline = time.monotonic() + timeout
        while True:
            table = self.table() if self.home.socket.exists() else None
            row = table.attempt(factor) if table is not None else None
            if row is not None and row.outcome == outcome and (outcome != "running" or self.servers()):
                return
            assert time.monotonic() < deadline, f"{factor} is not {outcome}: {table}"
            time.sleep(0.2)


def _toml(profile: dict[str, Any]) -> str:
    lines = []
    for section, table in profile.items():
        if isinstance(table, dict):
            lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join([f"name = {json.dumps(profile['name'])}", *lines])


@pytest.fixture
def left_alone(servers_memory: Callable[[], set[Path]]) -> Iterator[None]:
    before = servers_memory()
    yield
    assert servers_memory() <= before


@pytest.mark.usefixtures("left_alone")
def test_a_hang_that_only_the_plugin_brings_is_named_and_an_interrupt_leaves_nothing(
    engine: Engine, home: Home, tmp_path: Path
) -> None:
    machine = Machine(engine, home, tmp_path, '"KIMI_CAPTURE_SOCKETS" in os.environ')
    given = ("bisect", str(machine.profile), "--factors", "plugin", "--limit", "300")
    broken_off = machine.command(*given)
    machine.until("nothing", "running")
    broken_off.send_signal(signal.SIGINT)
    broken_off.communicate(timeout=60)
    assert broken_off.returncode == 130
    assert machine.servers() == []
    table = machine.table()
    assert table is not None
    assert (table.state, table.attempts[0].outcome) == ("stopped", "stopped")

    command = machine.command(*given, "--resume", "--json")
    out, err = command.communicate(timeout=500)
    assert command.returncode == 0, err
    found = json.loads(out)
    assert found["bisect"] == table.bisect, "it went on with the same table"
    rows = {one["factor"]: one for one in found["attempts"]}
    assert {name: row["outcome"] for name, row in rows.items()} == {"nothing": "hung", "plugin": "passed"}, err
    assert found["culprits"] == ["plugin"]
    assert "plugin" in found["conclusion"]
    assert found["target"] == rows["nothing"]["phase"]
    assert "TP0" in rows["nothing"]["why"]
    assert rows["plugin"]["seconds"] < 300, "it was stopped as soon as it had passed the phase"
    assert [line.split()[1] for line in err.splitlines() if line.startswith(("✓", "✖"))] == list(rows)
    assert machine.servers() == []
    late = machine.table()
    assert late is not None
    assert late.conclusion == found["conclusion"], "a console that comes later sees it"


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("left_alone")
def test_a_hang_that_is_always_there_is_not_pinned_on_a_factor_and_a_killed_agent_leaves_nothing(
    engine: Engine, home: Home, tmp_path: Path
) -> None:
    machine = Machine(engine, home, tmp_path, "True")
    command = machine.command("bisect", str(machine.profile), "--json")
    out, err = command.communicate(timeout=1000)
    assert command.returncode == 4, err
    found = json.loads(out)
    assert {one["outcome"] for one in found["attempts"]} <= {"hung", "skipped"}
    assert found["culprits"] == []
    assert "without the capture plugin too" in found["conclusion"]
    assert machine.servers() == []

    orphaned = machine.command("bisect", str(machine.profile))
    machine.until("plugin", "running")
    client = Client(home.socket)
    os.kill(client.hello["pid"], signal.SIGKILL)
    client.close()
    assert machine.servers(), "a killed agent does not end a server"
    assert "closed the connection" in orphaned.communicate(timeout=60)[1]
    machine.command("serve", "--detach").communicate(timeout=60)
    table = machine.table()
    assert table is not None
    assert table.state == "stopped"
    assert machine.servers() == [], "the next agent does, when it is a bisection's"
