"""A ready server whose scheduler stops: READY goes, a canary is sent that no dump holds, and the ring keeps it all."""

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kimi_agent.bundle import ensure_bundle
from kimi_agent.doctor.evidence import Evidence, Seen
from kimi_agent.doctor.facts import Answer
from kimi_agent.doctor.rules import heartbeat
from kimi_agent.model.events import ThroughputSampled
from kimi_agent.model.reduce import fold
from kimi_agent.model.state import RankState, State
from kimi_agent.paths import Home
from kimi_agent.profile import parse
from kimi_agent.runs.canary import Canary
from kimi_agent.runs.plan import Plan
from kimi_agent.wire.client import Client
from kimi_agent.wire.codec import decode_event
from kimi_console.demo.engine import Engine
from kimi_console.demo.profile import demo_profile, free_port


def wait_for(client: Client, what: str, holds: Callable[[dict[str, Any]], object], timeout: float) -> dict[str, Any]:
    """Ask for the status until it `holds`."""
    deadline = time.monotonic() + timeout
    while True:
        run: dict[str, Any] = client.request("status")["run"]
        if holds(run):
            return run
        assert time.monotonic() < deadline, f"not {what} after {timeout} s: {run}"
        time.sleep(0.2)


def test_a_lost_canary_is_evidence_and_one_that_came_back_is_a_sign_of_life() -> None:
    ready = (RankState("TP0", "ready", 0.0),)
    loads = ThroughputSampled("r", None, None, 1, 0, None, None, 30.0, "loads")

    def judged(canary: Answer | None, age: float) -> str:
        seen = Seen(canary=canary, canary_time=95.0)
        verdict = heartbeat(Evidence(100.0, ready, None, throughput=loads, heartbeat=100.0 - age, seen=seen))
        return " ".join(verdict.evidence) if verdict is not None else ""

    lost = Answer("/generate", None, 3.0, "http://127.0.0.1:1/generate did not answer in 3 s")
    assert "the canary, one token, did not come back" in judged(lost, 30.0)
    assert "canary" not in judged(None, 30.0)
    assert "canary" not in judged(lost, 2.0), "an old one says nothing of a scheduler that was heard since"


def state_of(home: Home) -> State:
    """What a client that comes now and reads the whole journal knows."""
    client = Client(home.socket)
    last = client.request("subscribe", epoch=None, after=0)["last"]
    state = fold(decode_event(line) for line in islice(client.events(), last))
    client.close()
    return state


@pytest.mark.parametrize("listens", [True, False])
async def test_a_canary_that_nobody_answers_is_lost_within_its_deadline(listens: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not listens:
            server.close()
        profile = {"server": {"model": "/m", "port": port}, "limits": {"canary": 0.2}}
        answer = await one_token(profile)
    assert answer.status is None
    assert ("did not answer in 0.2 s" if listens else "refuses connections") in answer.why


async def test_no_canary_is_sent_that_nobody_asked_for_or_that_nothing_calls_for() -> None:
    told: list[object] = []
    silent = Evidence(100.0, (RankState("TP0", "ready", 0.0),), None, heartbeat=90.0)
    for limits, evidence in (
        ({}, silent),
        ({"canary": 1.0}, replace(silent, heartbeat=99.0)),
        ({"canary": 1.0}, replace(silent, heartbeat=None)),
        ({"canary": 1.0}, replace(silent, ranks=(RankState("TP0", "warm-up", 0.0),))),
    ):
        profile = parse({"server": {"model": "/m", "port": 9}, "limits": limits}, "test")
        canary = Canary(
            "r", Plan(profile, (), {}, "python", None, frozenset(), ("TP0",), Path("/nowhere")), told.append
        )
        canary.consider(evidence)
        await canary.close()
        assert canary.answer is None
    assert told == []


async def one_token(profile: dict[str, Any]) -> Answer:
    """What a canary brings back from a server whose scheduler is taken for silent."""
    plan = Plan(parse(profile, "test"), (), {}, "python", "0.5.23", frozenset(), ("TP0",), Path("/nowhere"))
    told = asyncio.Event()
    canary = Canary("r", plan, lambda _: told.set())
    canary.consider(Evidence(100.0, (RankState("TP0", "ready", 0.0),), None, heartbeat=90.0))
    await told.wait()
    await canary.close()
    assert canary.answer is not None
    return canary.answer


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
    wait_for(client, "ready", lambda run: run["status"] == "READY", 240)
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
