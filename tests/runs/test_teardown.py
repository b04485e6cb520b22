"""Stop means stopped: exactly the run's own processes, ports, shared memory and temporary files go, and all of them."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from kimi_agent.daemon import connect
from kimi_agent.host.procfs import boot_id, starttime
from kimi_agent.model.events import GpuSample
from kimi_agent.paths import Home, private_dir
from kimi_agent.profile import parse
from kimi_agent.runs import launch, teardown
from kimi_agent.runs.plan import Plan, scratch
from kimi_agent.runs.record import RUN_VARIABLE, RunRecord, load, save
from kimi_agent.runs.teardown import Footprint

TREE = """
import mmap, os, signal, socket, sys, tempfile, time

def hold():
    sock = socket.create_server(("127.0.0.1", 0))
    name = tempfile.NamedTemporaryFile(delete=False).name
    server = socket.socket(socket.AF_UNIX)
    server.bind(name + ".ipc")
    file = open(f"/dev/shm/sgl_shm_{os.getpid()}", "w+b")
    file.truncate(4096)
    return sock, server, mmap.mmap(file.fileno(), 4096)

held = hold()
if os.fork() == 0:                      # a rank: like the server, it does not end at SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    held = hold()
    if os.fork() == 0:                  # one that leaves the session and is left to pid 1
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        held = hold()
        print("gone astray", os.getpid(), flush=True)
        time.sleep(600)
    os.wait()
    print("rank", os.getpid(), flush=True)
    time.sleep(600)
print("server", os.getpid(), flush=True)
time.sleep(600)
"""
"""What a server holds, in small."""


TAKING = """
import ctypes, mmap, os, signal, sys, time
if "gone" in sys.argv and os.fork() == 0:
    pass
elif "below" in sys.argv and os.fork() == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)      # PR_SET_PDEATHSIG: what SGLang's ranks ask for
elif len(sys.argv) > 1:
    os._exit(0) if "gone" in sys.argv else time.sleep(600)
print("takes", os.getpid(), flush=True)
held = []
while True:
    file = open(f"/dev/shm/sgl_shm_taking_{os.getpid()}_{len(held)}", "w+b")
    file.truncate(4096)
    held.append(mmap.mmap(file.fileno(), 4096))
    file.close()
    time.sleep(0.002)
"""
"""A start that takes one segment after another until it ends."""


DRAINING = """
import os, signal, sys, time
read, write = os.pipe()
def drain(*_):
    os.write(write, b"x")
    os.wait()
    sys.exit(0)
signal.signal(signal.SIGTERM, drain)
if os.fork() == 0:
    print("rank", os.getpid(), flush=True)
    os.read(read, 1)
    with open(sys.argv[1], "w") as file:
        file.write("the rank has drained")
    os._exit(0)
while True:
    time.sleep(600)
"""
"""A server that ends by itself once its rank has done its work."""


def script_plan(home: Home, *script: str) -> Plan:
    tables = {"name": "tree", "server": {"model": "/"}, "capture": {"enabled": False}}
    return Plan(
        parse(tables, "test"), (sys.executable, "-c", *script), {}, sys.executable, None, frozenset(), (), home.dumps
    )


def tree_plan(home: Home) -> Plan:
    return script_plan(home, TREE)


def pids_in(log: Path, count: int = 3) -> dict[str, int]:
    """The processes that have said that they stand, by what they are."""
    deadline = time.monotonic() + 20
    while len(found := [line.rsplit(" ", 1) for line in log.read_text().split("\n")[:-1]]) < count:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return {name: int(pid) for name, pid in found}


@pytest.fixture
def bystander() -> Iterator["subprocess.Popen[str]"]:
    """The same tree, but of nobody's run: another server of this user."""
    process = subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    pids = [int(process.stdout.readline().rsplit(" ", 1)[1]) for _ in range(3)]
    yield process
    for pid in pids:
        assert psutil.pid_exists(pid), "a process that is not of the run was killed"
        assert Path(f"/dev/shm/sgl_shm_{pid}").exists(), "shared memory that is not of the run was removed"
        os.kill(pid, signal.SIGKILL)
        Path(f"/dev/shm/sgl_shm_{pid}").unlink()
    process.communicate()


def gone(pid: int) -> bool:
    return starttime(pid) is None


def test_a_stop_releases_all_that_a_run_holds_and_nothing_else(
    tmp_path: Path, bystander: "subprocess.Popen[str]"
) -> None:
    home = Home(tmp_path / "home")
    plan = tree_plan(home)
    record, process = launch.spawn(plan, home)
    pids = pids_in(home.run(record.run) / "server.log")
    place = scratch(plan, record.run)
    assert len(list(place.iterdir())) == 6
    footprint = Footprint(record.run, record.pid, {record.pid: record.starttime})
    asyncio.run(teardown.stop(footprint, 0.5))
    process.wait(10)
    assert set(footprint.processes) >= set(pids.values())
    assert len(footprint.ports) == 3
    assert teardown.release(footprint, home.run_sockets(record.run), place) == ()
    assert all(gone(pid) for pid in pids.values())
    assert not place.exists()
    assert not any(Path(f"/dev/shm/sgl_shm_{pid}").exists() for pid in pids.values())
    for port in footprint.ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


@pytest.mark.parametrize("where", [(), ("below",), ("gone",)], ids=["main", "rank", "orphan"])
def test_what_is_taken_in_the_moment_of_the_stop_is_released_too(tmp_path: Path, where: tuple[str, ...]) -> None:
    home = Home(tmp_path / "home")
    plan = script_plan(home, TAKING, *where)
    record, process = launch.spawn(plan, home)
    taker = pids_in(home.run(record.run) / "server.log", 1)["takes"]
    while len(list(Path("/dev/shm").glob(f"sgl_shm_taking_{taker}_*"))) < 2:
        assert not gone(taker)
    footprint = Footprint(record.run, record.pid, {record.pid: record.starttime})
    asyncio.run(teardown.stop(footprint, 0.5))
    process.wait(10)
    assert gone(taker)
    assert teardown.release(footprint, home.run_sockets(record.run), scratch(plan, record.run)) == ()
    assert len(footprint.segments) > 1
    assert list(Path("/dev/shm").glob(f"sgl_shm_taking_{taker}_*")) == []


def test_a_stopped_server_drains_with_all_its_processes(tmp_path: Path) -> None:
    home, told = Home(tmp_path / "home"), tmp_path / "told"
    plan = script_plan(home, DRAINING, str(told))
    record, process = launch.spawn(plan, home)
    pids_in(home.run(record.run) / "server.log", 1)
    asyncio.run(teardown.stop(Footprint(record.run, record.pid, {record.pid: record.starttime}), 60))
    assert process.wait(10) == 0
    assert told.read_text() == "the rank has drained"


def test_a_temporary_directory_too_deep_for_sockets_is_left_as_it_is(tmp_path: Path) -> None:
    home, deep = Home(tmp_path / "home"), tmp_path / ("d" * 90)
    deep.mkdir()
    plan = replace(tree_plan(home), argv=("true",), env={"TMPDIR": str(deep)})
    record, process = launch.spawn(plan, home)
    process.wait(10)
    assert list(deep.iterdir()) == []
    assert not scratch(plan, record.run).exists()


def test_what_cannot_be_released_is_named(tmp_path: Path) -> None:
    stuck = subprocess.Popen(
        [sys.executable, "-c", "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
         "print(s.getsockname()[1], flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert stdout_of(stuck).isdecimal()
    ticks = starttime(stuck.pid)
    assert ticks is not None
    footprint = Footprint("run", stuck.pid, {stuck.pid: ticks})
    footprint.observe()
    (tmp_path / "scratch").write_text("not a directory")
    left = teardown.release(footprint, tmp_path / "none", tmp_path / "scratch")
    (port,) = footprint.ports
    assert left[0] == f"process {stuck.pid}"
    assert left[1].startswith(f"port {port}, held by pid {stuck.pid} (")
    assert left[2] == f"{tmp_path / 'scratch'} (it is not a directory of this user)"
    stuck.kill()
    stuck.communicate()


def stdout_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def gpu(index: int, used: int, *processes: tuple[int, int]) -> GpuSample:
    return GpuSample(index, "H200", used, 141 << 30, 0, 80.0, 700.0, 40, 300, 0, processes)


def test_memory_that_a_gpu_still_holds_is_named() -> None:
    footprint = Footprint("run", 1, {1: 5, 41: 6})
    gpus = [gpu(0, 500 << 20), gpu(1, 74 << 30, (41, 74 << 30)), gpu(2, 12 << 30), gpu(3, 9 << 30, (77, 9 << 30))]
    assert teardown.gpu_memory(gpus, footprint, [0, 1, 2, 3]) == (
        "74.0 GiB of GPU 1, held by process 41",
        "12.0 GiB of GPU 2, held by no process that is shown",
    )
    assert teardown.gpu_memory(gpus, footprint, [1])[1:] == ()


@pytest.mark.parametrize("rebooted", [False, True])
def test_a_run_that_ended_without_an_agent_is_cleaned_up_and_its_end_explained(home: Home, rebooted: bool) -> None:
    private_dir(home.root)
    directory = private_dir(home.run("run-lost"))
    (directory / "server.log").write_text("before the end\n")
    main = subprocess.Popen(["sleep", "600"], start_new_session=True)
    rank = subprocess.Popen(["sleep", "600"], env=os.environ | {RUN_VARIABLE: "run-lost"}, start_new_session=True)
    ticks = starttime(main.pid)
    assert ticks is not None
    profile: dict[str, object] = {"name": "x", "server": {"model": "/", "port": 1}, "capture": {"enabled": False}}
    record = RunRecord("run-lost", main.pid, ticks, boot_id(), profile, ("x",), None)
    save(directory, record)
    first = connect(home, start=True)
    assert first.request("status")["run"]["alive"]
    os.kill(first.hello["pid"], signal.SIGKILL)
    first.close()
    main.kill()
    main.wait()
    if rebooted:
        save(directory, replace(record, boot_id="the boot before"))
    second = connect(home, start=True)
    assert second.hello["epoch"] == first.hello["epoch"]
    told = second.request("status")["run"]
    second.close()
    assert (told["status"], told["alive"]) == ("FAILED", False)
    assert told["reason"] == ("the host was restarted" if rebooted else "it ended while no agent ran")
    assert load(directory).ended
    assert rank.wait(5) == -signal.SIGKILL, (
        "a process that was started for the run is of the run, whatever became of it"
    )
