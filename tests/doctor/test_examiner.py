"""The examiner beside real processes: it looks when something stands still, and says what it could not see."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import kimi_agent
from kimi_agent.doctor.evidence import Evidence
from kimi_agent.doctor.examiner import Examiner, wants_facts, wants_stacks
from kimi_agent.doctor.facts import Deep
from kimi_agent.model import events as ev
from kimi_agent.model.state import RankState

SLEEPER = """
import sys, time
from pathlib import Path
from kimi_capture.control import Control, stacks
if sys.argv[1:]:
    import os
    Control(Path(sys.argv[1]) / f"cap-{os.getpid()}.sock", {"stacks": lambda request: {"stacks": stacks()}})
def waits_for_a_peer():
    print("ready", flush=True)
    time.sleep(60)
waits_for_a_peer()
"""
NOTHING = ev.Verdict("none", "")


@contextmanager
def sleeper(*arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    env = os.environ | {"PYTHONPATH": str(Path(kimi_agent.__file__).parents[1]), "http_proxy": "http://u:p@far:1"}
    command = [sys.executable, "-c", SLEEPER, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def started(pid: int) -> ev.RunStarted:
    return ev.RunStarted("r", "n", "/", (), pid, 1, ("TP0",), "127.0.0.1", 1, "l", "p", None, capture=False)


def stopped(pid: int, state: str = "T") -> Evidence:
    sample = ev.RankSample("TP0", pid, state, 0.0, 1, 0.0, 0.0, None, None)
    now = time.time()
    return Evidence(now, (RankState("TP0", "load weights", now - 5),), 5.0, samples=(sample,))


async def looked(examiner: Examiner, evidence: Evidence, *, twice: bool) -> Deep:
    """The close look that the evidence asks for, waited for."""
    examiner.consider(evidence, NOTHING)
    end = time.monotonic() + 20
    while True:
        deep = examiner.seen().deep
        if deep is not None and (deep.second or not twice):
            return deep
        assert time.monotonic() < end
        await asyncio.sleep(0.1)


async def test_stacks_come_from_the_plugin_where_py_spy_cannot_look(tmp_path: Path) -> None:
    with sleeper(str(tmp_path)) as process:
        examiner = Examiner(started(process.pid), time.time(), tmp_path)
        deep = await looked(examiner, stopped(process.pid), twice=True)
        assert [frame.partition(" ")[0] for frame in deep.second[0].frames[:2]] == ["waits_for_a_peer", "<module>"]
        assert deep.unmoved("TP0") is True
        assert examiner.seen().proxy == ("http_proxy", "far:1")
        await examiner.close()


async def test_a_look_that_may_not_see_stacks_says_why_and_brings_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no py-spy on it, and none beside this Python
    with sleeper() as process:
        examiner = Examiner(started(process.pid), time.time(), tmp_path)
        deep = await looked(examiner, stopped(process.pid), twice=False)
        assert deep.first == ()
        assert "py-spy" in (deep.why_not("stack") or "")
        assert {disk.what for disk in deep.disks} >= {"model", "/dev/shm"}
        await examiner.close()


async def test_closing_ends_a_look_that_is_under_way(tmp_path: Path) -> None:
    with sleeper(str(tmp_path)) as process:
        examiner = Examiner(started(process.pid), time.time(), tmp_path)
        await looked(examiner, stopped(process.pid), twice=False)
        began = time.monotonic()
        await examiner.close()
        assert time.monotonic() - began < 5


def test_only_what_stands_still_is_looked_at_closely() -> None:
    moving = replace(stopped(1, "S"), silent=1.0)
    assert not wants_stacks(moving, NOTHING)
    assert wants_stacks(stopped(1), NOTHING)
    assert wants_stacks(replace(moving, silent=46.0), NOTHING)
    assert not wants_stacks(replace(moving, silent=46.0), ev.Verdict("compiling", "x"))
    quiet = replace(moving, silent=16.0, quiet_since=moving.now - 11)
    assert wants_stacks(quiet, NOTHING)
    assert not wants_stacks(replace(quiet, stopping=True), NOTHING)
    assert not wants_facts(moving, NOTHING, first=False, began=0.0)
    assert wants_facts(moving, NOTHING, first=True, began=0.0)
    assert wants_facts(replace(moving, silent=16.0), NOTHING, first=False, began=0.0)
