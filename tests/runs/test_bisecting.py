"""The bisection's driver where nothing can be launched: which run it takes as its reference, and from which profile."""

import asyncio
from pathlib import Path
from typing import Any

from kimi_agent.errors import LaunchError
from kimi_agent.model.bisect import BisectChanged
from kimi_agent.model.events import Body, Event, PhaseEntered, RunExited, RunStarted, StatusChanged
from kimi_agent.model.reduce import reduce
from kimi_agent.model.state import State
from kimi_agent.paths import Home, private_dir
from kimi_agent.profile import Profile, parse
from kimi_agent.runs.bisecting import Bisector
from kimi_agent.runs.record import RunRecord, save
from kimi_agent.runs.supervisor import Supervisor

TABLES: dict[str, Any] = {
    "server": {"model": "/nowhere", "flags": ["--device", "cpu"]}, "capture": {"enabled": True, "layers": [3]},
}  # fmt: skip


class Host:
    """An agent's state and home, on a host where every launch is refused."""

    def __init__(self, directory: Path) -> None:
        self.home = Home(directory / "home")
        private_dir(self.home.root)
        self.state = State()
        self.refused: list[Profile] = []
        self.over = asyncio.Event()
        self.bisector = Bisector(
            self.home, launch=self.launch, running=lambda: None, emit=self.emit, state=lambda: self.state,
            growth=self.growth,
        )  # fmt: skip

    async def growth(self) -> None:
        await asyncio.Event().wait()

    async def launch(self, profile: Profile) -> Supervisor:
        self.refused.append(profile)
        raise LaunchError("no server can be started here")

    def emit(self, body: Body) -> None:
        self.state = reduce(self.state, Event(self.state.seq + 1, float(self.state.seq + 1), body))
        if isinstance(body, BisectChanged) and not body.active:
            self.over.set()

    def ran(self, profile: Profile, *, ready: bool = False, run: str = "run-1") -> None:
        """A run of before, which failed."""
        directory = self.home.run(run)
        directory.mkdir(parents=True)
        save(directory, RunRecord(run, 1, 1, "b", profile.to_dict(), (), None, True))
        self.emit(RunStarted(run, profile.name, "/m", (), 1, 1, ("TP0",), "h", 1, "l", "p", None, capture=True))
        self.emit(PhaseEntered(run, "TP0", "ready" if ready else "graphs"))
        self.emit(StatusChanged(run, "FAILED", "TP0 raised ValueError"))
        self.emit(RunExited(run, 1, False))

    async def bisected(self, **given: Any) -> BisectChanged:
        self.over.clear()
        await self.bisector.start(**given)
        await self.over.wait()
        assert self.state.bisect is not None
        return self.state.bisect


async def test_the_run_that_failed_is_the_reference_and_its_profile_the_start(tmp_path: Path) -> None:
    host = Host(tmp_path)
    base = parse(TABLES, "t", "kimi")
    host.ran(base)
    table = await host.bisected()
    first = table.attempts[0]
    assert (first.outcome, first.phase, first.run, first.why) == ("failed", "graphs", "run-1", "TP0 raised ValueError")
    assert table.target == "graphs"
    assert table.limit is not None
    assert [profile.capture.enabled for profile in host.refused] == [False, False], "only changes were tried"
    assert "no change that applies" in table.conclusion

    await asyncio.sleep(0)
    again = await host.bisected()
    assert again.profile == table.profile, "the same profile is taken, although the table's own starts came since"


async def test_a_run_of_another_profile_or_one_that_was_ready_is_no_reference(tmp_path: Path) -> None:
    other = Host(tmp_path / "other")
    other.ran(parse(TABLES, "t", "another name"))
    table = await other.bisected(profile=parse(TABLES, "t", "kimi").to_dict())
    assert table.attempts[0].outcome == "skipped", "nothing changed was tried first, and refused"
    ready = Host(tmp_path / "ready")
    ready.ran(parse(TABLES, "t", "kimi"), ready=True)
    table = await ready.bisected()
    assert table.attempts[0].run is None
