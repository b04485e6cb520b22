"""`kimi-agent run` with the real SGLang: recorded, stopped when idle, started again when it fails, ended by SIGTERM."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from kimi_agent.bundle import ensure_bundle
from kimi_agent.errors import Exit
from kimi_agent.model.events import DumpSampled, RunExited, RunStarted, StatusChanged
from kimi_agent.paths import Home
from kimi_agent.wire.client import Client
from kimi_agent.wire.codec import decode_event
from kimi_console.demo.engine import Engine
from kimi_console.demo.profile import demo_profile, free_port
from kimi_console.source.replay import open_events

from .asking import history

pytestmark = pytest.mark.engine

SECRET = "sk-7f3a90c4d21b"
FAULTS = Path(__file__).parents[1] / "doctor" / "plugin"
Run = Callable[..., "subprocess.Popen[bytes]"]


def write(path: Path, tables: dict[str, Any]) -> Path:
    """A profile as TOML."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for key, table in tables.items():
        if isinstance(table, dict):
            lines += ["", f"[{key}]", *(f"{name} = {json.dumps(value)}" for name, value in table.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def run(engine: Engine, home: Home) -> Run:
    """Start `kimi-agent run` in the engine's Python."""

    def start(profile: Path, *options: str) -> "subprocess.Popen[bytes]":
        argv = [str(engine.python), "-m", "kimi_agent", "run", "--home", str(home.root), "--json", *options]
        env = os.environ | {"PYTHONPATH": str(ensure_bundle())}
        return subprocess.Popen([*argv, str(profile)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    return start


def scratch_left(run: str) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"kimi-{os.getuid()}-{run}"))


def test_a_run_is_recorded_and_stopped_when_nobody_asks_it_anything(
    run: Run, engine: Engine, home: Home, tmp_path: Path
) -> None:
    recording = tmp_path / "run.kimi"
    tables = demo_profile(engine, free_port())
    tables["server"]["flags"] = [*tables["server"]["flags"], "--api-key", SECRET]
    profile = write(tmp_path / "tiny.toml", tables)
    with run(profile, "--record", str(recording), "--idle-stop", "3", "--timeout", "480") as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if b'"READY"' in line:
                shown = [process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"])]
                assert not any(SECRET in word for argv in shown for word in argv)
                bodies = [event.body for event in history(home)]
                assert any(isinstance(body, RunStarted) for body in bodies)
                assert any(isinstance(body, StatusChanged) and body.status == "STARTING" for body in bodies)
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert process.wait(30) == Exit.OK
    assert said == "kimi-agent: stopping the server: it had no requests\n"
    events = [decode_event(line) for line in lines]
    exits = [event.body for event in events if isinstance(event.body, RunExited)]
    assert [(body.asked, body.left) for body in exits] == [(True, ())]
    assert list(open_events(recording)) == events
    (name,) = {event.body.run for event in events if isinstance(event.body, RunStarted)}
    assert scratch_left(name) == []
    assert SECRET.encode() not in b"".join(lines)
    assert not any(SECRET.encode() in path.read_bytes() for path in home.journal.iterdir() if path.is_file())
    assert any(SECRET.encode() in path.read_bytes() for path in home.root.glob("runs/*/server.log"))


@pytest.mark.long
def test_a_server_that_fails_is_started_again_and_sigterm_ends_it_all(
    run: Run, engine: Engine, home: Home, tmp_path: Path
) -> None:
    tables = demo_profile(engine, free_port())
    tables["env"] |= {"KIMI_TEST_FAULT": "load-raises", "PYTHONPATH": f"{tables['env']['PYTHONPATH']}:{FAULTS}"}
    profile = write(tmp_path / "broken.toml", tables)
    with run(profile, "--restart", "failed", "--restarts", "1", "--end-agent") as process:
        _, errors = process.communicate(timeout=200)
    first, second = errors.decode().splitlines()
    assert first.startswith("kimi-agent: FAILED")
    assert first.endswith("; starting again in 5 s (1 of 1)")
    assert second.startswith("kimi-agent: FAILED")
    assert process.returncode == Exit.FAILED
    assert not home.socket.exists(), "the agent ended with the command"

    with run(profile, "--restart", "failed") as process:
        assert process.stdout is not None
        while b'"k":"run"' not in (line := process.stdout.readline()):
            assert line, "it ended"
        process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        process.communicate(timeout=60)
        assert time.monotonic() - begun < 40
    assert process.returncode == Exit.OK
    bodies = [event.body for event in history(home)]
    assert [body.asked for body in bodies if isinstance(body, RunExited)] == [False, False, True]


@pytest.mark.long
def test_a_server_that_is_killed_comes_back_and_goes_on_with_its_dump(
    run: Run, engine: Engine, home: Home, tmp_path: Path
) -> None:
    tables = demo_profile(engine, free_port())
    dump = tmp_path / "dumps" / "kept"
    options = ("--restart", "failed", "--dump", str(dump), "--force", "--timeout", "500")
    with run(write(tmp_path / "tiny.toml", tables), *options) as process:
        assert process.stdout is not None
        starts: list[RunStarted] = []
        for line in process.stdout:
            body = decode_event(line).body
            if isinstance(body, RunStarted):
                starts.append(body)
            elif isinstance(body, DumpSampled) and body.state == "writing":
                if len(starts) == 2:
                    break
                os.kill(server_of(home), signal.SIGKILL)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == Exit.OK, errors
    assert len(starts) == 2
    assert list(dump.parent.iterdir()) == [dump], "the second run writes the first one's dump"


def server_of(home: Home) -> int:
    """Pid of the server's main process."""
    client = Client(home.socket)
    pid = int(client.request("status")["run"]["pid"])
    client.close()
    return pid
