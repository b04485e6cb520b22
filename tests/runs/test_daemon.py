"""The daemon as a client meets it: greeting, requests, events, refusals, and who may come in."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import psutil
import pytest

from kimi_agent.daemon import connect, start_daemon
from kimi_agent.errors import Exit, KimiError
from kimi_agent.model.events import AgentStarted, HostSampled
from kimi_agent.paths import Home
from kimi_agent.runs.journal import Journal
from kimi_agent.wire.client import Client
from kimi_agent.wire.codec import decode_event

from .small_disk import SmallDisk

Dial = Callable[[], Client]


def raw(home: Home) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(str(home.socket))
    return sock


def test_greets_and_answers(dial: Dial) -> None:
    client = dial()
    assert client.hello["protocol"] == 1
    status = client.request("status")
    assert status["status"] == "IDLE"
    assert status["run"] is None
    assert client.request("ping") == {}


def test_its_first_events_say_who_and_where_it_is(dial: Dial) -> None:
    client = dial()
    where = client.request("subscribe", epoch=None, after=0)
    bodies = [decode_event(line).body for line in islice(client.events(), 2)]
    assert isinstance(bodies[0], AgentStarted)
    assert bodies[0].pid == client.hello["pid"]
    assert isinstance(bodies[1], HostSampled)
    assert bodies[1].memory_total > 0
    assert where["epoch"] == client.hello["epoch"]


def test_who_comes_while_an_agent_ends_gets_the_next_one(home: Home) -> None:
    ending = Journal(home.journal)  # its socket is gone already
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start_daemon, home)
        while not home.log.exists() or "another agent has" not in home.log.read_text():
            assert not starting.done()
        ending.close()
        client = starting.result(60)
    assert client.request("ping") == {}
    client.close()


def test_only_this_user_can_reach_it(dial: Dial, home: Home) -> None:
    dial()
    assert stat.S_IMODE(home.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.sockets.stat().st_mode) == 0o700
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700


def test_opens_no_tcp_port(dial: Dial) -> None:
    process = psutil.Process(dial().hello["pid"])
    assert process.net_connections(kind="inet") == []


@pytest.mark.parametrize(
    ("method", "params", "words"),
    [
        ("fly", {}, "no method fly"),
        ("launch", {}, "launch: .*profile"),
        ("launch", {"profile": {"server": {"model": "/m", "prt": 1}}}, "unknown key server.prt"),
        ("stop", {}, "no server is running"),
        ("dump_start", {}, "no server is running"),
        ("shards", {"dump": "../../etc"}, "there is no dump"),
        ("shards", {"dump": "none"}, "there is no dump 'none'"),
    ],
)
def test_refuses_in_words(dial: Dial, method: str, params: dict[str, object], words: str) -> None:
    with pytest.raises(KimiError, match=words):
        dial().request(method, **params)


def test_a_read_only_connection_changes_nothing(dial: Dial) -> None:
    client = dial()
    client.request("read_only")
    for method in ("launch", "stop", "dump_start", "dump_stop", "shutdown"):
        with pytest.raises(KimiError, match="read-only"):
            client.request(method)
    assert client.request("status")["status"] == "IDLE"


def test_noise_on_the_socket_hurts_nobody(dial: Dial, home: Home) -> None:
    client = dial()
    for data in (b"GET / HTTP/1.1\r\n\r\n", b'{"id":"x"}\n', b"\xff\xfe\n", b"[1,2]\n", b"{" * 5000 + b"\n"):
        with raw(home) as sock, sock.makefile("rb") as lines:
            assert json.loads(lines.readline())["hello"]
            sock.sendall(data)
            assert "error" in json.loads(lines.readline())
    with raw(home) as sock:
        try:
            sock.sendall(b"x" * (3 << 20))
            while sock.recv(1 << 16):
                pass
        except ConnectionError:
            pass
    assert client.request("ping") == {}


def test_an_agent_killed_and_started_again_keeps_its_history(dial: Dial, home: Home) -> None:
    first = dial()
    os.kill(first.hello["pid"], signal.SIGKILL)
    psutil.wait_procs([psutil.Process(first.hello["pid"])] if psutil.pid_exists(first.hello["pid"]) else [], 10)
    second = connect(home, start=True)
    assert second.hello["epoch"] == first.hello["epoch"]
    assert second.hello["pid"] != first.hello["pid"]
    second.request("subscribe", epoch=second.hello["epoch"], after=0)
    seqs = [decode_event(line).seq for line in islice(second.events(), second.hello["last"])]
    assert seqs == list(range(1, second.hello["last"] + 1))
    second.close()


def test_without_an_agent_the_sentence_says_what_to_do(home: Home) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kimi_agent", "attach", "--stdio", "--home", str(home.root)],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 6
    assert done.stderr.startswith(f"kimi-agent: no agent runs for {home.root}. Start one with")
    assert done.stderr.count("\n") == 1


def test_attach_is_the_same_protocol_on_stdio(dial: Dial, home: Home) -> None:
    dial()
    asked = b'{"id":1,"method":"ping","params":{}}\n'
    with subprocess.Popen(
        [sys.executable, "-m", "kimi_agent", "attach", "--stdio", "--read-only", "--home", str(home.root)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(asked)
        process.stdin.flush()
        assert "hello" in json.loads(process.stdout.readline())
        assert json.loads(process.stdout.readline()) == {"id": 1, "result": {}}
        process.stdin.write(b'{"id":2,"method":"stop","params":{}}\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["error"]["slug"] == "read_only"
        process.stdin.close()
        assert process.wait(10) == 0


def test_a_home_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "kimi_agent", "serve", "--home", str(file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert str(file) in done.stderr


@pytest.mark.parametrize("words", [("serve",), ("serve", "--detach"), ("attach", "--stdio", "--start")])
def test_a_home_on_a_full_disk_is_one_sentence(disk: SmallDisk, home: Home, words: tuple[str, ...]) -> None:
    disk.fill()
    done = subprocess.run(
        [sys.executable, "-m", "kimi_agent", *words, "--home", home.root], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode in (Exit.FAILED, Exit.UNAVAILABLE)
    assert (done.stderr + done.stdout).count("\n") == 1
    assert str(home.root) in done.stderr + done.stdout
    assert "Free space there" in done.stderr + done.stdout


def test_a_client_that_never_reads_costs_nothing_and_stalls_nobody(dial: Dial, home: Home) -> None:
    reader = dial()
    agent = psutil.Process(reader.hello["pid"])
    before = agent.memory_info().rss
    with raw(home) as lazy:
        lazy.settimeout(2)
        asked = b'{"id":1,"method":"status","params":{}}\n' * 10_000
        with contextlib.suppress(TimeoutError):
            for _ in range(20):
                lazy.sendall(asked)
            pytest.fail("the agent read 200,000 requests of a client that takes no answer", pytrace=False)
        begun = time.monotonic()
        assert reader.request("ping") == {}
        assert time.monotonic() - begun < 10
    assert agent.memory_info().rss - before < 8 << 20


def as_nobody(act: Callable[[], object]) -> str:
    """What comes of it when another user of this machine does something: what is returned, or the error's name."""
    if os.geteuid() != 0:
        pytest.fail("This test becomes another user: run it as root, in a container.", pytrace=False)
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            told = repr(act())
        except OSError as error:
            told = type(error).__name__
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


def test_another_user_can_neither_connect_nor_read(dial: Dial, home: Home, tmp_path: Path) -> None:
    dial()
    place = str(home.socket)

    def greeting() -> bytes:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10)
            sock.connect(place)
            return sock.recv(9)

    for above in (tmp_path, *tmp_path.parents):
        above.chmod(above.stat().st_mode | 0o055)
    assert as_nobody(greeting) == "PermissionError"
    for path in (home.journal, home.log, next(home.journal.glob("*.ndjson"))):
        assert as_nobody(partial(os.open, path, os.O_RDONLY)) == "PermissionError", path
    # Were the modes ever loosened, the agent still asks the kernel who is there.
    for directory in (home.root, home.sockets, home.sockets.parent):
        directory.chmod(0o755)
    home.socket.chmod(0o666)
    assert as_nobody(greeting) in ("b''", "ConnectionResetError")
    assert greeting() == b'{"hello":'
