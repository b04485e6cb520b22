"""A start is held against the last good one of the same launch, and of no other."""

from dataclasses import replace
from pathlib import Path

import pytest

from kimi_agent.model.events import Event, PhaseEntered, RunStarted
from kimi_agent.model.phases import PHASES
from kimi_agent.model.reduce import fold
from kimi_agent.model.state import RunState
from kimi_agent.profile import Profile, Server
from kimi_agent.runs.baseline import learn, recall
from kimi_agent.runs.plan import Plan


def plan(**server: object) -> Plan:
    profile = Profile(name="k", server=replace(Server(model="/m", tp=2, flags=("--a", "--b")), **server))  # type: ignore[arg-type]
    return Plan(profile, (), {}, "python", "0.5.23", frozenset(), ("TP0", "TP1"), Path("/dumps"))


def start(*, ready: bool = True) -> RunState:
    """Each phase takes ten seconds; TP1 enters each a second late."""
    launched = RunStarted("r", "k", "/m", (), 1, 2, ("TP0", "TP1"), "h", 1, "log", "python", "0.5.23", False)
    phases = PHASES[1:] if ready else PHASES[1:-1]
    events = [Event(1, 100.0, launched)]
    for index, phase in enumerate(phases, 1):
        events += [Event(0, 100.0 + 10 * index + rank, PhaseEntered("r", f"TP{rank}", phase)) for rank in range(2)]
    run = fold(events).run
    assert run is not None
    return run


def test_the_last_good_start_is_recalled_phase_by_phase(tmp_path: Path) -> None:
    learn(tmp_path, plan(), start())
    known = recall(tmp_path, plan(), "next")
    assert known is not None
    assert (known.run, known.time, known.total) == ("next", 100.0, 10.0 * (len(PHASES) - 1))
    assert dict(known.phases) == dict.fromkeys(PHASES[:-1], 11.0)


@pytest.mark.parametrize("other", [{"model": "/n"}, {"tp": 4}, {"flags": ("--a",)}])
def test_another_launch_is_no_measure(tmp_path: Path, other: dict[str, object]) -> None:
    learn(tmp_path, plan(), start())
    assert recall(tmp_path, plan(**other), "next") is None


def test_the_port_and_the_order_of_flags_do_not_matter(tmp_path: Path) -> None:
    learn(tmp_path, plan(), start())
    assert recall(tmp_path, plan(port=31000, flags=("--b", "--a")), "next") is not None


def test_nothing_is_learned_from_a_start_that_never_was_ready_nor_read_from_a_torn_file(tmp_path: Path) -> None:
    learn(tmp_path, plan(), start(ready=False))
    assert recall(tmp_path, plan(), "next") is None
    learn(tmp_path, plan(), start())
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    assert recall(tmp_path, plan(), "next") is None
