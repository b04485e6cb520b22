"""A ready server whose scheduler stops: READY goes, a canary is sent that no dump holds, and the ring keeps it all."""

import asyncio
import os
import signal
import subprocess

import pytest

from kimi_agent.bundle import ensure_bundle
from kimi_agent.model.reduce import fold
from kimi_agent.model.state import State
from kimi_agent.paths import Home
from kimi_agent.wire.client import Client
from kimi_console.demo.engine import Engine
from kimi_console.demo.profile import demo_profile, free_port

from .asking import history, wait_for
from .test_canary import one_token


def state_of(home: Home) -> State:
    """What a client that comes now knows."""
    return fold(history(home))


@pytest.mark.engine
def test_ready_goes_when_the_scheduler_stops_and_what_was_stays_readable(engine: Engine, home: Home) -> None:
    subprocess.run(
        [engine.python, "-m", "kimi_agent", "serve", "--detach", "--home", home.root],
        env=os.environ | {"PYTHONPATH": str(ensure_bundle())}, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    client = Client(home.socket)
    profile = demo_profile(engine, free_port())
    profile["limits"]["canary"] = 3.0
    client.request("launch", profile=profile)
    wait_for(client, "ready", lambda run: run["status"] == "READY", 400)
    client.request("dump_start", name="quiet")
    started = state_of(home).run
    assert started is not None
    assert started.unmatched is None, "a line of this very version reads like a phase and is not known"
    assert {phase for phase, _ in started.silences} >= {"import", "load weights"}

    ranks = [sample.pid for sample in started.samples if sample.rank in ("TP0", "TP1")]
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)
    wait_for(client, "hung", lambda run: run["status"] == "HUNG", 20)
    wait_for(client, "canary", lambda _: any("canary, one token, did not" in e.text for e in state_of(home).ring), 30)
    for pid in ranks:
        os.kill(pid, signal.SIGCONT)
    wait_for(client, "ready again", lambda run: run["status"] == "READY", 30)
    answer = asyncio.run(one_token({**profile, "limits": {"canary": 30.0}}))
    assert answer.status == 200, answer.why
    dump = wait_for(client, "dump", lambda run: run["dump"], 10)["dump"]
    assert (dump["served"], dump["captured"], dump["missing"]) == (0, 0, [])
    ring = [entry.text for entry in state_of(home).ring]
    assert any(text.startswith("READY → HUNG: TP") for text in ring)
    assert any(text.startswith("cleared: ") for text in ring)
    assert any(text.startswith("HUNG → READY") for text in ring)

    client.request("stop")
    client.request("launch", profile=profile)
    again = state_of(home).run
    assert again is not None
    assert again.baseline is not None
    assert dict(again.baseline.silences).keys() == dict(started.silences).keys()
    client.request("stop")
    client.close()
