"""Keys that come at once, as over a slow link: each goes where those before it have led."""

from typing import Any

import pytest
from textual import events
from textual.app import App
from textual.widgets import Input

from kimi_console.tui import keys
from kimi_console.tui.board import Board
from kimi_console.tui.screens.confirm import Confirm
from kimi_console.tui.screens.feed import FeedScreen

from . import scenes
from .test_board import app_of, settle, until


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that takes long because the machine is busy is waited for."""
    monkeypatch.setattr(keys, "PATIENCE", 60.0)


def type_at_once(app: App[Any], *pressed: str) -> None:
    """All of it is read from the terminal before any of it is dealt with."""
    for key in pressed:
        for name in [key] if len(key) == 1 or key in ("enter", "escape", "tab", "slash", "space") else key:
            character = {"slash": "/", "space": " ", "enter": "\r", "escape": "\x1b", "tab": "\t"}.get(name, name)
            app.post_message(events.Key(name, character))


async def test_what_is_searched_for_is_never_taken_for_commands() -> None:
    control = scenes.TableControl({})
    app = app_of(scenes.ready(), control)
    async with app.run_test(size=(120, 40)) as pilot:
        board = await settle(pilot)
        type_at_once(app, "slash", "stop", "space", "Dumps", "enter")
        await until(pilot, lambda: board.log_pane.view.query_search is not None)
        assert board.log_pane.view.query_search is not None
        assert board.log_pane.view.query_search.text == "stop Dumps"
        assert control.asked == []
        assert isinstance(app.screen, Board)


async def test_a_key_after_one_that_opens_a_screen_belongs_to_that_screen() -> None:
    control = scenes.TableControl({"stop": lambda _: {"run": "r", "left": []}})
    app = app_of(scenes.ready(), control)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        type_at_once(app, "s", "escape", "s")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        assert len(app.screen_stack) == 2, "the first question was answered before the second was asked"
        assert control.asked == []


async def test_a_form_filled_in_at_once_is_filled_in_as_typed() -> None:
    control = scenes.TableControl({"feed": lambda _: {"state": "none"}})
    app = app_of(scenes.ready(), control)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("F")
        await until(pilot, lambda: isinstance(app.screen, FeedScreen) and isinstance(app.focused, Input))
        type_at_once(app, "data", "enter", "d1", "tab", "64", "tab", "x")
        await until(pilot, lambda: app.screen.query_one("#template", Input).value == "x")
        assert {field.id: field.value for field in app.screen.query(Input)} == {
            "dataset": "data", "dump": "d1", "longest": "64", "template": "x",
        }  # fmt: skip


async def test_a_paste_goes_where_the_key_before_it_led() -> None:
    app = app_of(scenes.ready(), scenes.TableControl({}))
    async with app.run_test(size=(120, 40)) as pilot:
        board = await settle(pilot)
        type_at_once(app, "slash")
        app.post_message(events.Paste("from a clipboard"))
        type_at_once(app, "enter")
        await until(pilot, lambda: board.log_pane.view.query_search is not None)
        assert board.log_pane.view.query_search is not None
        assert board.log_pane.view.query_search.text == "from a clipboard"


async def test_a_key_that_is_never_done_holds_nothing_up_for_long(monkeypatch: Any) -> None:
    monkeypatch.setattr(keys, "PATIENCE", 0.5)
    app = app_of(scenes.ready(), scenes.TableControl({}))
    async with app.run_test(size=(120, 40)) as pilot:
        board = await settle(pilot)
        monkeypatch.setattr(type(app), "_follow", lambda *_: None)
        type_at_once(app, "slash", "ab")
        field = board.log_pane.query_one("#prompt", Input)
        for _ in range(3):
            await pilot.pause(keys.PATIENCE)
        await until(pilot, lambda: field.value == "ab")
