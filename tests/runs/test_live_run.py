"""One real run under the agent: ready, agent killed and back, a rank stopped and named, a rank killed and named."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kimi_agent.bundle import ensure_bundle
from kimi_agent.errors import KimiError
from kimi_agent.host.procfs import starttime
from kimi_agent.model.events import RunExited
from kimi_agent.model.reduce import fold
from kimi_agent.model.state import RunState
from kimi_agent.paths import Home
from kimi_agent.wire.client import Client
from kimi_console.demo.engine import Engine
from kimi_console.demo.profile import demo_profile, free_port

from .asking import history, wait_for
from .small_disk import SmallDisk

pytestmark = pytest.mark.engine


@pytest.fixture
def start_agent(engine: Engine, home: Home) -> Iterator[Callable[[], Client]]:
    """Start the home's agent in the engine's Python, as on a GPU host, and connect to it."""
    clients: list[Client] = []

    def start() -> Client:
        clients.append(_start(engine, home))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


def _start(engine: Engine, home: Home) -> Client:
    subprocess.run(
        [engine.python, "-m", "kimi_agent", "serve", "--detach", "--home", home.root],
        env=os.environ | {"PYTHONPATH": str(ensure_bundle())}, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return Client(home.socket)


def run_of(home: Home) -> RunState:
    """The run as a client that comes now sees it."""
    run = fold(history(home)).run
    assert run is not None
    return run


def pid_of(home: Home, rank: str) -> int:
    return next(sample.pid for sample in run_of(home).samples if sample.rank == rank)


def test_an_agent_whose_disk_is_full_starts_nothing_and_still_tells_the_truth(
    disk: SmallDisk, start_agent: Callable[[], Client], engine: Engine, home: Home, tmp_path: Path
) -> None:
    profile = demo_profile(engine, free_port(), tmp_path / "dumps")
    client = start_agent()
    disk.fill()
    with pytest.raises(KimiError, match=r"cannot write .*: No space left on device"):
        client.request("launch", profile=profile)
    assert not list((home.root / "runs").iterdir()), "nothing is left of a run that was not begun"
    assert not [line for line in Path("/proc").glob("[0-9]*/cmdline") if str(engine.models).encode() in read(line)]

    disk.free()
    run_id = client.request("launch", profile=profile)["run"]

    def told(words: str) -> bool:
        return words in str(history(home))

    def full(_: object) -> bool:
        disk.fill()
        return told("cannot be written (No space left on device)")

    wait_for(client, "full", full, 30)
    os.kill(client.request("status")["run"]["pid"], signal.SIGKILL)
    run = wait_for(client, "ended", lambda run: not run["alive"] and run["status"] == "FAILED", 60)
    assert (run["run"], run["verdict"]["kind"]) == (run_id, "storage")
    assert not told("is written again"), "all of it came from memory"

    disk.free()
    wait_for(client, "written", lambda _: told("is written again"), 10)
    os.kill(client.hello["pid"], signal.SIGKILL)
    again = start_agent()
    assert again.request("status")["run"]["status"] == "FAILED"
    assert sum(isinstance(event.body, RunExited) for event in history(home)) == 1, "its end is known, and told once"


def read(path: Path) -> bytes:
    """A file of a process that may be gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_run_from_launch_to_a_killed_rank(
    start_agent: Callable[[], Client], engine: Engine, home: Home, servers_memory: Callable[[], set[Path]]
) -> None:
    before = servers_memory()
    port = free_port()
    client = start_agent()
    run_id = client.request("launch", profile=demo_profile(engine, port))["run"]
    with pytest.raises(KimiError, match=f"run {run_id} is alive"):
        client.request("launch", profile=demo_profile(engine, port))
    run = wait_for(client, "ready", lambda run: run["status"] in ("READY", "FAILED"), 400)
    assert run["status"] == "READY"
    assert {rank["phase"] for rank in run["ranks"].values()} == {"ready"}
    assert len(list(home.baselines.iterdir())) == 1, "a good start is what the next one is held against"
    owned = {process.pid for process in [psutil.Process(run["pid"]), *psutil.Process(run["pid"]).children(True)]}

    os.kill(client.hello["pid"], signal.SIGKILL)
    again = start_agent()
    assert again.hello["pid"] != client.hello["pid"]
    run = wait_for(again, "ready again", lambda run: run["status"] == "READY", 20)
    assert run["run"] == run_id
    state = run_of(home)
    assert state.started.adopted is False
    assert state.exited is None
    log = Path(home.run(run_id) / "server.log").read_bytes()
    assert abs(state.log_lines - len(log.replace(b"\r", b"\n").split(b"\n"))) <= 2

    stopped = pid_of(home, "TP1")
    os.kill(stopped, signal.SIGSTOP)
    run = wait_for(again, "hung", lambda run: run["status"] == "HUNG", 15)
    assert run["verdict"]["rank"] == "TP1"
    assert "stopped" in run["verdict"]["summary"]
    os.kill(stopped, signal.SIGCONT)
    wait_for(again, "cleared", lambda run: run["status"] == "READY", 30)

    assert again.request("dump_start", name="cut-short")["boundaries"]
    os.kill(stopped, signal.SIGKILL)
    run = wait_for(again, "ended", lambda run: not run["alive"], 90)
    assert run["status"] == "FAILED"
    assert (run["verdict"]["kind"], run["verdict"]["rank"]) == ("dead_rank", "TP1")
    state = run_of(home)
    assert state.exited is not None
    assert state.exited.left == ()
    assert state.dump is not None
    assert (state.dump.dump, state.dump.state) == ("cut-short", "failed")
    assert state.dump.reason
    assert servers_memory() <= before
    assert not any(map(starttime, owned))
    assert not home.run_sockets(run_id).exists()
