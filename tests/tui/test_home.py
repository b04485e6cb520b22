"""The start screen, and several hosts in one process, each a real live source."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.app import App

from kimi_agent.errors import UnavailableError
from kimi_agent.model.reduce import fold
from kimi_agent.model.state import State
from kimi_console.hosts import last_seen, remember
from kimi_console.places import HOST_KEYS, places, remember_recording
from kimi_console.source.base import Link
from kimi_console.source.client import Dial, Transport
from kimi_console.source.watching import Watching
from kimi_console.tui.board import Board
from kimi_console.tui.hosts_app import HostsApp
from kimi_console.tui.panes.launch import LAUNCH
from kimi_console.tui.panes.why import WHY
from kimi_console.tui.screens.home import NO_HOSTS, host_line
from kimi_console.tui.view import View

from . import scenes
from .test_board import until

Seen = Callable[[App[Any]], str]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def unreachable(host: str) -> Dial:
    async def dial() -> Transport:
        raise UnavailableError(f"{host} refuses connections", "Check that sshd runs there.")

    return dial


def app_for(hosts: list[str], problem: str = "") -> HostsApp:
    return HostsApp(places(hosts), Watching(unreachable), problem=problem)


def test_every_place_has_one_key_and_what_is_remembered_is_told(state: Path) -> None:
    remember("gpu-08", "READY", "/models/Kimi-K2.5")
    remember("by-address", "IDLE")
    recording = state / "night.kimi"
    recording.write_bytes(b"x")
    remember_recording(recording)
    remember_recording(state / "gone.kimi")
    found = places(["gpu-07", "gpu-08"])
    assert [(place.kind, place.key, place.name) for place in found] == [
        ("host", "1", "gpu-07"), ("host", "2", "gpu-08"), ("host", "3", "by-address"),
        ("recording", "4", str(recording)), ("demo", "d", "demo"),
    ]  # fmt: skip
    assert found[1].words == "READY Kimi-K2.5"
    assert found[0].when is None


def test_more_hosts_than_keys_are_still_listed() -> None:
    names = [f"gpu-{number}" for number in range(60)]
    found = places(names)
    assert [place.name for place in found[:-1]] == names
    keys = [place.key for place in found if place.key]
    assert len(keys) == len(set(keys)) == len(HOST_KEYS) + 1


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_an_empty_list_says_what_to_type(seen: Seen, size: tuple[int, int]) -> None:
    app = app_for([])
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "Where to?" in seen(app))
        assert NO_HOSTS[:70] in seen(app)
        await pilot.press("d")
        await until(pilot, lambda: not app.is_running)
    assert app.return_value is not None
    assert app.return_value.kind == "demo"


async def test_hosts_are_opened_by_their_keys_kept_open_and_switched(seen: Seen) -> None:
    remember("gpu-08", "HUNG", "/models/Kimi-K2.5")
    app = app_for(["gpu-07", "gpu-08"])
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "HUNG Kimi-K2.5, just now" in seen(app))
        await pilot.press("1")
        await until(pilot, lambda: "gpu-07 refuses connections" in seen(app))
        assert isinstance(app.screen, Board)
        first = app.screen
        await pilot.press("H")
        await until(pilot, lambda: "1 open" in seen(app))
        await pilot.press("2")
        await until(pilot, lambda: "gpu-08 refuses connections" in seen(app))
        await pilot.press("H")
        await until(pilot, lambda: "2 open" in seen(app))
        await pilot.press("1")
        assert app.screen is first
        await pilot.press("H")
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.screen is app.boards["gpu-08"])
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)
    assert app.return_value is None


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        ("slow", "SLOW"), ("hung", "HUNG"), ("ready", "READY"), ("dumping", "READY"),
    ],
)  # fmt: skip
def test_a_host_is_one_line_with_the_worst_that_is_known_of_it(scene: str, words: str) -> None:
    journal = getattr(scenes, scene)()
    view = View("gpu-07", fold(journal.events), Link("live"), journal.last)
    line = "".join(text for text, _ in host_line(view, 100))
    assert words in line
    assert "Kimi-K2.5" in line
    run = view.run
    assert run is not None
    if run.verdict is not None and run.verdict.kind != "none":
        assert run.verdict.summary[:20] in line
    if scene == "dumping":
        assert "29.4k tok/s" in line
    for cells in range(20, 100, 7):
        assert sum(len(text) for text, _ in host_line(view, cells)) <= cells


def test_a_host_that_was_lost_says_why() -> None:
    journal = scenes.ready()
    link = Link("lost", "the host gave no sign of life", journal.last)
    line = "".join(text for text, _ in host_line(View("x", fold(journal.events), link, journal.last + 65), 100))
    assert "LOST" in line
    assert "the host gave no sign of life" in line


async def test_how_a_host_is_gets_remembered_for_the_next_time() -> None:
    watching = Watching(unreachable)
    session = watching.open("gpu-07")
    assert watching.open("gpu-07") is session
    for event in scenes.ready().events:
        session.state = fold([event], session.state)
    for listener in session._listeners:
        listener()
    await asyncio.sleep(0)
    await watching.close()
    assert (last_seen()["gpu-07"].status, last_seen()["gpu-07"].model) == ("READY", "/models/Kimi-K2.5")


def test_nothing_is_said_of_a_host_that_has_not_been_heard_yet() -> None:
    view = View("gpu-07", State(), Link("connecting"), 0.0)
    assert view.status == ("–", None)
    drawn = [LAUNCH.draw(view, 60, 11), WHY.draw(view, 60, 11)]
    assert all("nothing is known of this host yet" in "".join(text for text, _ in one.lines[0]) for one in drawn)
    assert View("gpu-07", State(), Link("live"), 0.0).status == ("IDLE", None)
