"""When a server may be looked at less often: only when it is ready, idle and undisturbed."""

from dataclasses import replace

import pytest

from kimi_agent.model.events import Body, Event, RunStarted, StatusChanged, ThroughputSampled
from kimi_agent.model.reduce import fold
from kimi_agent.model.state import RunState
from kimi_agent.runs.supervisor import is_calm

IDLE = ThroughputSampled("r", 0.0, 0.0, 0, 0, 10, 100, 0.1, "loads")


@pytest.fixture
def ready() -> RunState:
    started = RunStarted("r", "n", "/m", ("x",), 1, 1, ("TP0",), "127.0.0.1", 1, "/l", "/p", "0.5.23", False, ())
    bodies: tuple[Body, ...] = (started, StatusChanged("r", "READY", ""), IDLE)
    run = fold([Event(number, float(number), body) for number, body in enumerate(bodies, 1)]).run
    assert run is not None
    return run


def test_a_ready_idle_server_is_calm(ready: RunState) -> None:
    assert is_calm(ready)


@pytest.mark.parametrize(
    "load", [replace(IDLE, running=1), replace(IDLE, waiting=2), replace(IDLE, running=None), None]
)
def test_requests_and_the_unknown_are_not(ready: RunState, load: ThroughputSampled | None) -> None:
    assert not is_calm(replace(ready, throughput=load))


@pytest.mark.parametrize("status", ["STARTING", "HUNG", "SLOW", "STOPPING", "FAILED"])
def test_no_other_status_is(ready: RunState, status: str) -> None:
    assert not is_calm(replace(ready, status=status))
