"""The feed's screen: a form, the progress of what goes on, and what it came to."""

from collections.abc import Callable
from typing import Any

import pytest
from textual.app import App
from textual.widgets import Input

from kimi_agent.errors import UsageError
from kimi_console.tui.board import Board
from kimi_console.tui.screens.feed import FeedScreen

from . import scenes
from .test_board import app_of, settle, until

Seen = Callable[[App[Any]], str]
Same = Callable[[str, str], None]
NONE = {"state": "none"}
FEEDING: dict[str, Any] = {
    "state": "feeding", "dataset": "/data/chats.jsonl", "dump": "nightly", "seconds": 92.0,
    "rows": {"rows": 2000, "requests": 1990, "duplicates": 8, "unusable": 2, "tokens": 1_204_000},
    "forecast": {"requests": 1990, "bytes": 69_000_000_000, "free": 1_300_000_000_000},
    "progress": {"turn": 1, "done": 312, "of": 1990, "tokens_per_second": 1840.0, "bytes": 10 << 30,
                 "bytes_to_come": 54 << 30, "free": 1_290_000_000_000, "seconds_left": 512.0, "in_flight": 256,
                 "waiting": 12},
    "summary": None, "missing": [], "error": "",
}  # fmt: skip
DONE = FEEDING | {
    "state": "done",
    "summary": {"ok": False, "rows": 2000, "captured": 1988, "duplicates": 8,
                "missing": {"too long": 3, "malformed": 1}},
    "missing": [{"row": 6, "kind": "too long", "why": "it has 300,000 tokens, the server takes 262,144"}],
    "error": "",
}  # fmt: skip


class Feeder:
    """The agent's side: one feed, in the state that the test gives it."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.control = scenes.TableControl(
            {"feed": lambda p: self.answer, "feed_start": self.start, "feed_stop": self.stop}
        )

    def start(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["dataset"] == "/no":
            raise UsageError("there is no file '/no' here", "Give its whole path on this host.")
        self.answer = FEEDING
        return self.answer

    def stop(self, params: dict[str, Any]) -> dict[str, Any]:
        self.answer = FEEDING | {"state": "stopping"}
        return self.answer


async def test_a_feed_is_begun_followed_stopped_and_accounted_for(
    seen: Seen, same: Same, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kimi_console.tui.screens.feed.AGAIN", 0.01)
    feeder = Feeder(NONE)
    app = app_of(scenes.ready(), feeder.control)
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("F")
        await until(pilot, lambda: "a new dump's name" in seen(app))
        await pilot.press(*"/no", "enter", *"d1", "enter")
        await until(pilot, lambda: "there is no file '/no' here" in seen(app))
        app.screen.query_one("#dataset", Input).value = "/data/chats.jsonl"
        await pilot.press("ctrl+g")
        await until(pilot, lambda: "given answers: made anew" in seen(app))
        app.screen.query_one("#longest", Input).focus()
        await pilot.press(*"-6x4", "tab", *"/t.jinja")
        await pilot.press("enter")
        await until(pilot, lambda: "312 of 1,990 requests" in seen(app))
        started = [params for method, params in feeder.control.asked if method == "feed_start"][-1]
        assert started == {"dataset": "/data/chats.jsonl", "dump": "d1", "regenerate": True,
                           "max_new_tokens": 64, "chat_template": "/t.jinja"}  # fmt: skip
        for fact in ("1.84k tok/s", "10.0 GiB written, 54.0 GiB to come", "8:32 left", "256 in flight, 12 queued"):
            assert fact in seen(app)
        same("feed-120x36", seen(app))
        await pilot.press("s")
        await until(pilot, lambda: "stopping" in seen(app))
        feeder.answer = DONE
        await until(pilot, lambda: "1,988 of 2,000 rows captured, 8 the same as another, 4 missing" in seen(app))
        assert "row 7 too long: it has 300,000 tokens" in seen(app)
        assert "n feed another" in seen(app)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, Board))


async def test_what_goes_on_is_seen_by_whoever_comes_and_left_alone_when_he_leaves(seen: Seen) -> None:
    feeder = Feeder(FEEDING)
    app = app_of(scenes.dumping(), feeder.control)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("F")
        await until(pilot, lambda: "312 of 1,990 requests" in seen(app))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, Board))
    assert "feed_stop" not in {method for method, _ in feeder.control.asked}


async def test_a_read_only_link_sees_and_begins_nothing(seen: Seen) -> None:
    feeder = Feeder(NONE)
    feeder.control.read_only = True
    app = app_of(scenes.ready(), feeder.control)
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("F")
        await until(pilot, lambda: "nothing is fed" in seen(app))
        await pilot.press("s", "escape")
        await until(pilot, lambda: not isinstance(app.screen, FeedScreen))
    assert [method for method, _ in feeder.control.asked] == ["feed"]
