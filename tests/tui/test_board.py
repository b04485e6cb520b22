"""The board as an operator sees it."""

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console
from textual.app import App
from textual.pilot import Pilot

from kimi_agent.model import events as ev
from kimi_console.source.base import Control, Link
from kimi_console.source.session import Session
from kimi_console.tui.app import KimiApp
from kimi_console.tui.board import Board
from kimi_console.tui.clock import HostClock
from kimi_console.tui.pane import Pane

from . import scenes

Seen = Callable[[App[Any]], str]
Same = Callable[[str, str], None]
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:[349][0-7]|[34]8[;:][0-9;:]*)(?:;[0-9;]*)?m")
SIZES = [(120, 36), (80, 24)]


async def until(pilot: Pilot[None], what: Callable[[], object]) -> None:
    """Let the app work until something is so."""
    for _ in range(200):
        if what():
            return
        await pilot.pause()
    assert what()


async def settle(pilot: Pilot[None]) -> Board:
    """Until the session's batches are folded, and all is placed and drawn."""
    app = pilot.app
    assert isinstance(app, KimiApp)
    while app.session.version == 0:
        await pilot.pause()
    board = app.board
    for _ in range(4):
        board.draw()
        board.log_pane.view.tick()
        await pilot.pause()
    return board


def sent(app: App[Any]) -> str:
    """What is sent to the terminal, escapes included."""
    with io.StringIO() as text:
        console = Console(file=text, width=app.size.width, height=app.size.height, force_terminal=True,
                          color_system="truecolor", legacy_windows=False)  # fmt: skip
        console.print(app.screen._compositor.render_update(full=True))
        return text.getvalue()


def app_of(journal: scenes.Journal, control: Control | None = None, **options: Any) -> KimiApp:
    """An app over a journal, with the clock at its end."""
    return KimiApp(scenes.session(journal, control), clock=scenes.clock(journal), **options)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scene", ["slow", "hung", "dumping"])
async def test_the_screen_is_as_drawn(scene: str, size: tuple[int, int], seen: Seen, same: Same) -> None:
    app = app_of(getattr(scenes, scene)(), scenes.TableControl({}))
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        same(f"{scene}-{size[0]}x{size[1]}", seen(app))


async def test_a_screen_of_60_by_14_says_that_it_is_too_small_and_a_larger_one_shows_the_board(seen: Seen) -> None:
    app = app_of(scenes.slow())
    async with app.run_test(size=(60, 14)) as pilot:
        await settle(pilot)
        assert seen(app).strip() == "60 × 14 is too small: kimi-console needs 60 × 15"
        await pilot.resize_terminal(60, 15)
        await settle(pilot)
        assert "SLOW" in seen(app)
        assert "too small" not in seen(app)


async def test_before_any_run_the_screen_says_what_to_press(seen: Seen) -> None:
    journal = scenes.Journal().add(0, ev.AgentStarted("0.1.0", "gpu-07", 9, "/p", "0.5.23", "b", 4, scenes.GIB))
    app = app_of(journal, scenes.TableControl({}))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        text = seen(app)
        assert "○ IDLE" in text
        assert "press l to launch a profile" in text


async def test_a_start_stands_beside_the_last_good_one(seen: Seen) -> None:
    journal = scenes.launched()
    app = KimiApp(scenes.session(journal), clock=scenes.clock(journal))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        text = seen(app)
        assert "last good start 5:48" in text
        assert "graphs                        1:40" in text


async def test_when_the_link_is_lost_the_values_stay_and_say_their_age(seen: Seen) -> None:
    journal = scenes.dumping()
    source = scenes.MemorySource([journal.events])
    now = [journal.last]
    app = KimiApp(Session(source), clock=HostClock(lambda: now[0]))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        now[0] += 12
        source.link = Link("lost", "trying again in 4 s", journal.last)
        await settle(pilot)
        text = seen(app)
        assert "◌ LOST  0:12  was READY" in text
        assert "Ranks  12 s ago" in text
        assert "link lost: trying again in 4 s" in text
        assert "41230" in text


async def test_when_the_server_dies_its_last_values_stay(seen: Seen) -> None:
    journal = scenes.dumping()
    journal.add(360, ev.StatusChanged(scenes.RUN, "FAILED", "exit code -9")).add(
        360, ev.RunExited(scenes.RUN, -9, asked=False, left=("port 30000",))
    )
    app = app_of(journal)
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        text = seen(app)
        assert "✖ FAILED" in text
        assert "ended by itself, exit code -9" in text
        assert "left behind: port 30000" in text
        assert "ended, last values" in text
        assert "TP7    41237" in text


async def test_a_pane_is_drawn_again_only_when_its_part_of_the_state_changes() -> None:
    journal = scenes.dumping()
    source = scenes.MemorySource([journal.events[:]])
    app = KimiApp(Session(source), clock=scenes.clock(journal))
    async with app.run_test(size=(120, 36)) as pilot:
        board = await settle(pilot)
        drawn = {pane.spec.id: pane.drawn for pane in board.query(Pane)}
        event = ev.Event(len(journal.events) + 1, journal.last, ev.ThroughputSampled(
            scenes.RUN, 1.0, 2.0, 1, 0, 10, 100, 0.1, "loads"))  # fmt: skip
        source.give([event])
        while app.session.version < 2:
            await pilot.pause()
        await settle(pilot)
        again = {pane.spec.id for pane in board.query(Pane) if pane.drawn > drawn[pane.spec.id]}
        assert again == {"throughput"}


async def test_no_color_sends_no_colours_and_ascii_sends_only_ascii(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = app_of(scenes.hung(), ascii=True)
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        assert seen(app).isascii()
        assert not COLOUR.search(sent(app))


async def test_a_replay_says_so_and_offers_nothing_that_acts(seen: Seen) -> None:
    journal = scenes.slow()
    app = KimiApp(scenes.session(journal, state="replay"))
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await settle(pilot)
        text = seen(app)
        assert "▶ REPLAY  14:03:13" in text
        footer = text.splitlines()[-1]
        assert "stop" not in footer
        assert "inspect" not in footer
        await pilot.press("s")
        await until(pilot, lambda: "a recording cannot be acted on" in seen(app))
