"""A player's clock: what has been played is what the recording holds up to there, however it got there."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kimi_agent.model.reduce import fold
from kimi_agent.record.reader import Recording
from kimi_console.source.player import Player
from kimi_console.source.session import Session

from . import recordings

EVENTS = [*recordings.a_run(60), *recordings.a_run(60, "r2", first=200, begin=1200.0)]


class Playing:
    """A session over a player that plays by itself."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.session = Session(player)
        self.changed = asyncio.Event()
        self.session.on_change(self.changed.set)
        self.task = asyncio.create_task(self.session.run())

    async def until(self, what: Callable[[], object]) -> None:
        """Let it play until something is so."""
        async with asyncio.timeout(20):
            while not what():
                self.changed.clear()
                await self.changed.wait()

    async def at(self, place: int) -> None:
        """Let it come to a place, and hold its state against the events before it."""
        await self.until(lambda: self.player.place == place and self.session.state.seq == seq_before(place))
        assert self.session.state.run == (fold(EVENTS[:place]).run if place else None)
        run = self.session.state.run
        assert len(self.session.log) == (run.log_lines if run else 0)


def seq_before(place: int) -> int:
    return EVENTS[place - 1].seq if place else 0


@pytest.fixture
async def playing(tmp_path: Path) -> AsyncIterator[Playing]:
    player = Player(Recording(recordings.record(tmp_path / "r.kimirec", EVENTS)), "r", speed=math.inf)
    playing = Playing(player)
    yield playing
    await player.close()
    await playing.task
    playing.session.log.close()


async def test_it_plays_all_and_stays_on_the_last_event(playing: Playing) -> None:
    await playing.at(len(EVENTS))
    assert playing.player.ended
    assert playing.player.link.state == "ended"
    assert playing.player.now == EVENTS[-1].time


async def test_stepping_goes_one_event_either_way(playing: Playing) -> None:
    await playing.at(len(EVENTS))
    playing.player.step(-1)
    await playing.at(len(EVENTS) - 1)
    assert playing.player.link.state == "replay"
    playing.player.step(-1)
    await playing.at(len(EVENTS) - 2)
    playing.player.step(1)
    await playing.at(len(EVENTS) - 1)
    playing.player.step(1)
    await playing.at(len(EVENTS))


async def test_jumps_land_where_the_clock_says(playing: Playing) -> None:
    await playing.at(len(EVENTS))
    playing.player.toggle()
    playing.player.playing = False
    for then in (1000.0, 1010.2, 1100.0, 1200.0, 1230.0, 5000.0):
        playing.player.go(then)
        await playing.at(sum(1 for event in EVENTS if event.time <= then))
    playing.player.jump(-60)
    then = playing.player.now
    assert then == EVENTS[-1].time - 60
    await playing.at(sum(1 for event in EVENTS if event.time <= then))


async def test_marks_are_visited_in_order_both_ways(playing: Playing) -> None:
    await playing.at(len(EVENTS))
    playing.player.playing = False
    playing.player.go_behind(-1)
    await playing.at(0)
    seen = []
    while (mark := playing.player.mark(1)) is not None:
        await playing.at(mark.place + 1)
        seen.append(mark)
    assert seen == playing.player.marks
    assert [mark.kind for mark in seen].count("launch") == 2
    back = []
    while (mark := playing.player.mark(-1)) is not None:
        await playing.at(mark.place + 1)
        back.append(mark)
    assert back == seen[-2::-1]


async def test_a_search_goes_on_through_the_whole_recording(playing: Playing) -> None:
    await playing.at(len(EVENTS))
    playing.player.playing = False
    playing.player.go_behind(-1)
    await playing.at(0)
    found = []
    pattern = re.compile("line 1[78]$")
    while (place := await playing.player.find(pattern.search)) is not None:
        playing.player.go_behind(place)
        await playing.at(place + 1)
        found.append(playing.session.log.line(len(playing.session.log) - 1))
    assert found == ["r1 line 17", "r1 line 18", "r2 line 17", "r2 line 18"]
    assert await playing.player.find(pattern.search, backward=True) is not None


async def test_speeds_go_from_a_quarter_to_no_waiting(playing: Playing) -> None:
    speeds = {playing.player.speed}
    for _ in range(12):
        playing.player.faster(-1)
        speeds.add(playing.player.speed)
    assert speeds == {0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, math.inf}
    assert playing.player.speed == 0.25


async def test_at_a_speed_the_clock_runs_and_events_come_in_time(tmp_path: Path) -> None:
    recording = Recording(recordings.record(tmp_path / "r.kimirec", EVENTS))
    playing = Playing(Player(recording, "r", speed=32.0, at=1005.0))
    await playing.until(lambda: playing.player.place > 20)
    assert playing.player.now >= playing.session.state.time  # type: ignore[operator]
    playing.player.toggle()
    held = playing.player.now
    await asyncio.sleep(0.05)
    assert playing.player.now == held
    await playing.player.close()
    await playing.task
    playing.session.log.close()
