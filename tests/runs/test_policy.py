"""When a headless run ends or starts again by itself."""

from dataclasses import replace

import pytest

from kimi_agent.model.events import Event, HostSampled, RunStarted, StatusChanged, ThroughputSampled
from kimi_agent.model.reduce import reduce
from kimi_agent.model.state import State
from kimi_agent.policy import Keeper, Policy

RUN = "run-1"
STARTED = RunStarted(RUN, "n", "/m", ("x",), 1, 1, ("TP0",), "127.0.0.1", 1, "/l", "/p", "0.5.23", False, ())


class Scene:
    """A keeper and the state that it is shown."""

    def __init__(self, policy: Policy) -> None:
        self.keeper = Keeper(policy)
        self.state = State()
        self.seq = 0

    def at(self, time: float, body: object) -> str | None:
        self.seq += 1
        event = Event(self.seq, time, body)  # type: ignore[arg-type]
        self.state = reduce(self.state, event)
        return self.keeper.take(event, self.state.run)

    def begin(self, status: str = "READY") -> "Scene":
        self.at(0, STARTED)
        self.at(10, StatusChanged(RUN, status, ""))
        return self


def load(running: int | None, waiting: int | None = 0) -> ThroughputSampled:
    return ThroughputSampled(RUN, None, None, running, waiting, None, None, None, "loads")


def test_a_ready_server_without_requests_is_stopped_when_it_was_idle_long_enough() -> None:
    scene = Scene(Policy(idle_stop=30)).begin()
    assert [scene.at(time, load(0)) for time in (20, 40, 49)] == [None, None, None]
    assert scene.at(50, load(0)) == "idle"


@pytest.mark.parametrize("busy", [load(3), load(0, 1), load(None, None)])
def test_requests_and_what_is_not_known_count_as_busy(busy: ThroughputSampled) -> None:
    scene = Scene(Policy(idle_stop=30)).begin()
    assert scene.at(20, load(0)) is None
    assert scene.at(45, busy) is None
    assert scene.at(60, load(0)) is None
    assert scene.at(76, load(0)) == "idle"


def test_a_server_that_is_not_ready_is_never_idle() -> None:
    scene = Scene(Policy(idle_stop=1)).begin("HUNG")
    assert scene.at(100, load(0)) is None
    assert scene.at(200, load(0)) is None


def test_a_lifetime_ends_whatever_happens() -> None:
    scene = Scene(Policy(lifetime=60)).begin("STARTING")
    assert scene.at(59, load(0)) is None
    assert scene.at(60, HostSampled(1, 1, 0.0, 0.0, (), None)) == "lifetime"


@pytest.mark.parametrize(("restart", "due"), [("hung", "hung"), ("failed", None)])
def test_a_hang_that_lasts_is_due_only_where_that_is_wanted(restart: str, due: str | None) -> None:
    scene = Scene(Policy(restart=restart)).begin("HUNG")
    assert scene.at(69, load(0)) is None
    assert scene.at(71, load(0)) == due


def test_delays_grow_and_end() -> None:
    keeper = Keeper(Policy(restart="failed", restarts=9))
    assert [keeper.retry() for _ in range(10)] == [5, 10, 20, 40, 80, 160, 300, 300, 300, None]
    assert Keeper(Policy()).retry() is None


def test_a_long_good_life_forgets_failures() -> None:
    scene = Scene(replace(Policy(restart="failed"), restarts=1))
    assert scene.keeper.retry() == 5
    assert scene.keeper.retry() is None
    scene.begin()
    scene.at(700, load(1))
    assert scene.keeper.retry() == 5
