"""The canary: asked for, within its deadline, and what its fate says of a scheduler that has fallen silent."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kimi_agent.doctor.evidence import Evidence, Seen
from kimi_agent.doctor.facts import Answer
from kimi_agent.doctor.rules import heartbeat
from kimi_agent.model.events import ThroughputSampled
from kimi_agent.model.state import RankState
from kimi_agent.profile import parse
from kimi_agent.runs.canary import Canary
from kimi_agent.runs.plan import Plan


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
