"""What a wrong profile gets: one sentence on stderr that names what and what to do, a fitting code, nothing running."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kimi_agent.bundle import ensure_bundle
from kimi_agent.paths import Home
from kimi_agent.wire.client import Client
from kimi_console.demo.engine import Engine
from kimi_console.demo.profile import demo_profile, free_port

pytestmark = pytest.mark.engine

Run = Callable[[dict[str, Any]], "subprocess.CompletedProcess[str]"]


def toml(tables: dict[str, Any]) -> str:
    lines = [f"name = {tables['name']!r}"]
    for section in ("server", "env", "capture", "limits"):
        lines.append(f"[{section}]")
        lines += [f"{key} = {_value(value)}" for key, value in tables[section].items()]
    return "\n".join(lines)


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


@pytest.fixture
def run(engine: Engine, home: Home, tmp_path: Path) -> Run:
    """`kimi-agent run` on a profile, in the engine's Python."""

    def run_profile(tables: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
        path = tmp_path / "profile.toml"
        path.write_text(toml(tables))
        return subprocess.run(
            [engine.python, "-m", "kimi_agent", "run", path, "--home", home.root, "--timeout", "100"],
            env=os.environ | {"PYTHONPATH": str(ensure_bundle())}, capture_output=True, text=True, check=False,
            timeout=120,
        )  # fmt: skip

    return run_profile


@pytest.fixture
def profile(engine: Engine) -> dict[str, Any]:
    return demo_profile(engine, free_port())


def refused(done: "subprocess.CompletedProcess[str]", home: Home, *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("kimi-agent: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr
    assert not list(home.root.glob("runs/*"))
    if home.socket.exists():
        client = Client(home.socket)
        assert client.request("status")["run"] is None
        client.close()


def test_missing_model(run: Run, profile: dict[str, Any], home: Home) -> None:
    profile["server"]["model"] = "/models/none"
    refused(run(profile), home, "there is no model at /models/none", "server.model")


def test_taken_port(run: Run, profile: dict[str, Any], home: Home) -> None:
    with socket.create_server(("127.0.0.1", profile["server"]["port"])):
        words = (f"port {profile['server']['port']} on 127.0.0.1 is taken by pid {os.getpid()}", "server.port")
        refused(run(profile), home, *words)


def test_unknown_flag(run: Run, profile: dict[str, Any], home: Home) -> None:
    profile["server"]["flags"] += ["--chunked-prefil-size", "64"]
    refused(run(profile), home, "--chunked-prefil-size", "--chunked-prefill-size")


def test_python_without_sglang(run: Run, profile: dict[str, Any], home: Home) -> None:
    profile["server"]["python"] = sys.executable
    refused(run(profile), home, f"{sys.executable} has no SGLang", "server.python")


def test_no_python(run: Run, profile: dict[str, Any], home: Home) -> None:
    profile["server"]["python"] = "/opt/none/python"
    refused(run(profile), home, "there is no Python at /opt/none/python")


def test_unknown_key(run: Run, profile: dict[str, Any], home: Home) -> None:
    profile["server"]["tensor_parallel"] = 2
    refused(run(profile), home, "profile.toml", "unknown key server.tensor_parallel")


def test_prefix_cache_with_capture(run: Run, profile: dict[str, Any], home: Home) -> None:
    profile["server"]["flags"].remove("--disable-radix-cache")
    refused(run(profile), home, "--disable-radix-cache")


def test_unreadable_profile(engine: Engine, tmp_path: Path) -> None:
    done = subprocess.run(
        [engine.python, "-m", "kimi_agent", "run", tmp_path / "none.toml"],
        env=os.environ | {"PYTHONPATH": str(ensure_bundle())}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"kimi-agent: cannot read profile {tmp_path / 'none.toml'}: No such file")
    assert done.stderr.count("\n") == 1


def test_resume_without_a_dump(engine: Engine, profile: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "profile.toml").write_text(toml(profile))
    done = subprocess.run(
        [engine.python, "-m", "kimi_agent", "run", "--resume", tmp_path / "profile.toml"],
        env=os.environ | {"PYTHONPATH": str(ensure_bundle())}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "kimi-agent: --resume needs --dump. Name the dump to go on with.\n")
