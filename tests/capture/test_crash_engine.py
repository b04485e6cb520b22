"""The real server loses its disk, its writer and its life while it dumps; every request is accounted for in the end."""

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from kimi_capture.format import read_commits, read_shard

from .conftest import Launch, Server, ask
from .test_engine import prompts

pytestmark = [pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(600)]
FLAGS = ("--disable-radix-cache", "--chunked-prefill-size", "512")
REQUESTS = [(f"q{number:03}", prompt, 6) for number, prompt in enumerate(prompts(*[300] * 60, seed=11))]
ROWS = 300 + 6 - 1


def shards(*arguments: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "kimi_agent", "shards", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, timeout=60)


def status(server: Server) -> dict[str, Any]:
    dump: dict[str, Any] = ask(server.writers()[0], {"op": "status"})["status"]["dump"]
    return dump


def until(server: Server, holds: Callable[[dict[str, Any]], bool], limit: float = 60) -> dict[str, Any]:
    deadline = time.monotonic() + limit
    while not holds(found := status(server)):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def start(server: Server, directory: Path, *, resume: bool = False) -> dict[str, Any]:
    request = {"op": "start", "dump": directory.name, "directory": str(directory), "resume": resume}
    return ask(server.writers()[0], request)


def send(server: Server, request: tuple[str, list[int], int]) -> None:
    """One request, whose answer may never come."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        server.generate(*request)


def held(directory: Path) -> Counter[str]:
    """How often each request is in the dump."""
    found: Counter[str] = Counter()
    for commit in read_commits(directory)[0]:
        samples = read_shard(directory / commit.shard).meta.samples
        assert all(sample.rows == ROWS for sample in samples)
        found.update(sample.rid for sample in samples)
    return found


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of 4 MiB in memory."""
    if os.geteuid() != 0:
        pytest.fail("A full disk needs root, to mount a small one: run this test as root.", pytrace=False)
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(path: Path) -> None:
    """Take the disk's last byte."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"\0" * 4096):
            pass


def check_full_disk(server: Server) -> None:
    """The dump pauses and says why, the server serves on, and with space again nothing is missing."""
    with small_disk(server.root / "small") as disk:
        assert start(server, disk / "d")["ok"]
        fill(disk / "filler")
        for request in REQUESTS[:10]:
            send(server, request)
        paused = until(server, lambda dump: dump["state"] == "paused")
        assert "No space left" in paused["reason"]
        errors = paused["write_errors"]
        assert errors >= 1
        assert len(server.generate("served-while-full", REQUESTS[0][1], 6)) == 6
        assert server.get("/health") == 200
        assert until(server, lambda dump: dump["write_errors"] > errors)["state"] == "paused"
        (disk / "filler").unlink()
        until(server, lambda dump: dump["state"] == "writing")
        (dump,) = server.stop_dump()
        assert (dump["state"], dump["missing"], dump["errors"]) == ("stopped", {}, [])
        assert dump["served"] == dump["captured"] == dump["committed"] == 11 * ROWS
        assert held(disk / "d") == dict.fromkeys([rid for rid, _, _ in REQUESTS[:10]] + ["served-while-full"], 1)
        done = shards("verify", disk / "d")
        assert done.returncode == 0, done.stdout


def crash(server: Server, kill: Callable[[], None]) -> dict[str, Any]:
    """Send every request and kill while some are committed and some in flight; the last status before."""
    with ThreadPoolExecutor(6) as pool:
        sent = [pool.submit(send, server, request) for request in REQUESTS]
        last = until(server, lambda dump: dump["committed"] > 0)
        assert not sent[-1].done()
        kill()
        for waiting in sent:
            waiting.cancel()
    server.process.wait(120)
    return last


def test_every_request_is_there_once_after_a_full_disk_and_two_crashes(launch: Launch) -> None:
    server = launch("tiny-llama", 1, [1, 3, 5], *FLAGS, dtype="bfloat16")
    check_full_disk(server)

    directory, root = server.root / "life", server.root
    assert start(server, directory)["ok"]
    writer = int(server.writers()[0].stem.removeprefix("cap-"))
    refused = shards("repair", directory)
    assert (refused.returncode, b"NOT TOUCHED" in refused.stdout) == (5, True)
    before = crash(server, lambda: os.kill(writer, signal.SIGKILL))
    repaired = shards("repair", directory, "--json")
    assert repaired.returncode == 0, repaired.stdout
    assert orjson.loads(repaired.stdout)["dumps"][0]["lost"] == []
    assert shards("verify", directory).returncode == 0
    first = held(directory)
    assert before["committed"] <= ROWS * first.total() < ROWS * len(REQUESTS)

    server = launch("tiny-llama", 1, [1, 3, 5], *FLAGS, dtype="bfloat16", root=root)
    assert start(server, directory)["slug"] == "directory-taken"
    assert start(server, directory, resume=True)["ok"]
    crash(server, lambda: os.killpg(server.process.pid, signal.SIGKILL))
    second = held(directory)
    assert second.total() > first.total()
    assert second >= first

    server = launch("tiny-llama", 1, [1, 3, 5], *FLAGS, dtype="bfloat16", root=root)
    assert start(server, directory, resume=True)["ok"]
    server.generate_all(REQUESTS)
    (dump,) = server.stop_dump()
    assert held(directory) == dict.fromkeys((rid for rid, _, _ in REQUESTS), 1)
    known = dump["missing"].pop("already in the dump")
    assert known >= ROWS * second.total()
    assert (dump["missing"], dump["served"]) == ({}, ROWS * len(REQUESTS))
    assert dump["committed"] == dump["served"] - known
    verified = shards("verify", directory, "--json")
    assert verified.returncode == 0, verified.stdout
    assert orjson.loads(verified.stdout)["dumps"][0]["uncommitted"] == []
    assert len((directory / "runs.jsonl").read_bytes().splitlines()) == 3
