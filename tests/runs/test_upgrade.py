"""An agent replaced by another build while a server runs, agents shared, and bundles that nobody needs any more."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import psutil
import pytest

from kimi_agent.bundle import DIST_INFO, build_id, ensure_bundle, prune
from kimi_agent.daemon import connect
from kimi_agent.host import logind
from kimi_agent.host.procfs import boot_id, starttime
from kimi_agent.model.events import LogLines, RunStarted
from kimi_agent.model.reduce import fold
from kimi_agent.paths import Home, private_dir
from kimi_agent.runs.record import RunRecord, save
from kimi_agent.wire.client import Client
from kimi_agent.wire.codec import decode_event

RUN = "run-upgraded"


@pytest.fixture
def server(home: Home) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that logs a line every 10 ms, recorded as a run of the home."""
    private_dir(home.root)
    directory = private_dir(home.run(RUN))
    counting = "import itertools, time\nfor n in itertools.count():\n print(n, flush=True)\n time.sleep(0.01)"
    with (directory / "server.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-c", counting], stdout=log, start_new_session=True)
    ticks = starttime(process.pid)
    assert ticks is not None
    profile: dict[str, object] = {"name": "x", "server": {"model": "/", "port": 1}, "capture": {"enabled": False}}
    save(directory, RunRecord(RUN, process.pid, ticks, boot_id(), profile, ("x",), None))
    yield process
    process.kill()
    process.wait(10)


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A bundle of another build: the same code with a remark in it."""
    bundle = tmp_path / "older"
    shutil.copytree(ensure_bundle(), bundle, ignore=shutil.ignore_patterns("__pycache__"))
    with (bundle / "kimi_agent" / "text.py").open("a") as file:
        file.write("# older\n")
    return bundle


def start(bundle: Path, home: Home) -> Client:
    """The home's agent, run from a bundle."""
    argv = [sys.executable, "-m", "kimi_agent", "serve", "--detach", "--home", str(home.root)]
    subprocess.run(argv, env=os.environ | {"PYTHONPATH": str(bundle)}, check=True, stdout=subprocess.DEVNULL)
    return Client(home.socket)


def lines_after(home: Home, least: int) -> list[int]:
    """Every line of the run's log that is journaled, once there are so many."""
    client = Client(home.socket)
    client.request("subscribe", epoch=None, after=0)
    found: list[int] = []
    for line in client.events():
        event = decode_event(line)
        if isinstance(event.body, LogLines):
            found += map(int, event.body.lines)
        if len(found) > least:
            client.close()
            return found
    raise AssertionError


def test_another_build_takes_over_a_running_server(home: Home, server: "subprocess.Popen[bytes]", older: Path) -> None:
    old = start(older, home)
    assert old.hello["build"] != build_id()
    before = len(lines_after(home, 50))
    old.close()
    new = connect(home, start=True)
    assert (new.hello["build"], new.hello["epoch"]) == (build_id(), old.hello["epoch"])
    assert server.poll() is None
    run = new.request("status")["run"]
    assert (run["run"], run["alive"], run["pid"]) == (RUN, True, server.pid)
    lines = lines_after(home, before + 50)
    assert lines == list(range(len(lines)))
    new.request("subscribe", epoch=None, after=0)
    events = [decode_event(line) for line in islice(new.events(), new.hello["last"])]
    assert [event.body.adopted for event in events if isinstance(event.body, RunStarted)] == [True, True]
    assert fold(events).run is not None
    new.close()


def test_an_agent_that_another_operator_uses_is_shared(home: Home, older: Path) -> None:
    first = start(older, home)
    second = connect(home, start=True)
    assert second.hello["pid"] == first.hello["pid"]
    first.close()
    watching = connect(home, start=True, upgrade=False)
    assert watching.hello["pid"] == first.hello["pid"]
    for client in (second, watching):
        client.close()


def test_many_that_start_it_at_once_share_one_agent(home: Home) -> None:
    with ThreadPoolExecutor(4) as pool:
        clients = list(pool.map(lambda _: connect(home, start=True), range(4)))
    (agent,) = {client.hello["pid"] for client in clients}
    for client in clients:
        client.close()
    started = [one for one in psutil.Process().children() if one.pid != agent and started_for(one, home)]
    assert psutil.wait_procs(started, 30)[1] == [], "one that came too late would be the next agent"


def started_for(process: psutil.Process, home: Home) -> bool:
    """Whether a process is an agent of this home, or was to be one."""
    try:
        return str(home.root) in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def make_bundle(place: Path, name: str, age: float) -> Path:
    path = place / name
    (path / "kimi_agent").mkdir(parents=True)
    (path / DIST_INFO).mkdir()
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_old_bundles_go_but_not_those_in_use(tmp_path: Path) -> None:
    for number in range(6):
        make_bundle(tmp_path, f"build{number}", age=number * 100.0)
    make_bundle(tmp_path, ".part-left", age=7200.0)
    make_bundle(tmp_path, ".part-now", age=1.0)
    user = subprocess.Popen(["sleep", "60"], env={"PYTHONPATH": f"{tmp_path}/build5:/elsewhere"})
    try:
        while not Path(f"/proc/{user.pid}/environ").read_bytes():  # Popen returns in the middle of its exec
            assert user.poll() is None
        assert sorted(prune(tmp_path)) == [".part-left", "build3", "build4"]
    finally:
        user.send_signal(signal.SIGKILL)
        user.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".part-now", "build0", "build1", "build2", "build5"]
    assert prune(tmp_path) == ["build5"]


def root_with(tmp_path: Path, *files: str) -> Path:
    for file in files:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[Login]\nKillUserProcesses=yes\n" if file.endswith(".conf") else "")
    return tmp_path


def test_a_scope_of_the_users_systemd_is_used_only_where_it_lingers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "systemd-run").write_text("")
    (tmp_path / "bin" / "systemd-run").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    root = root_with(tmp_path / "root", "run/user/0/systemd/private")
    assert logind.scope_argv("kimi", 0, root) == []
    root_with(root, "var/lib/systemd/linger/root")
    assert logind.scope_argv("kimi", 0, root)[-2:] == ["--unit=kimi", "--"]


NOBODY = 65534


@pytest.mark.parametrize(
    ("files", "killed"),
    [
        ((), False),
        (("run/systemd/system/x",), False),
        (("run/systemd/system/x", "etc/systemd/logind.conf"), True),
        (("run/systemd/system/x", "etc/systemd/logind.conf.d/90-kill.conf"), True),
        (("run/systemd/system/x", "etc/systemd/logind.conf", "var/lib/systemd/linger/nobody"), False),
    ],
)
def test_a_logout_that_would_end_the_server_is_known(tmp_path: Path, files: tuple[str, ...], killed: bool) -> None:
    assert logind.ended_at_logout(NOBODY, root_with(tmp_path, *files)) is killed
