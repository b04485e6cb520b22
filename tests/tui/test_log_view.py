"""The log under a reader: following, staying, searching, filtering; 100,000 lines."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

import kimi_console.tui
from kimi_console.store.file import FileLines
from kimi_console.store.lines import Lines
from kimi_console.store.spool import LogSpool
from kimi_console.tui.log_pane import LogPane
from kimi_console.tui.log_view import LogView
from kimi_console.tui.paint import ROLE_CLASSES
from kimi_console.tui.theme import ANSI_VARIABLES

Seen = Callable[[App[None]], str]
HOSTILE = "\x1b]0;owned\x07\x1b[2Jred \x1b[31malert\x1b[0m \x9b2K [bold]not markup[/bold] \u202edesrever"


class LogApp(App[None]):
    """Nothing but a log."""

    COMPONENT_CLASSES: ClassVar[set[str]] = set(ROLE_CLASSES)
    CSS_PATH = Path(kimi_console.tui.__file__).parent / "kimi.tcss"

    def __init__(self, spool: Lines) -> None:
        super().__init__()
        self.pane = LogPane(spool)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return ANSI_VARIABLES

    def compose(self) -> ComposeResult:
        yield self.pane


def numbered(start: int, stop: int) -> list[str]:
    return [f"[2025-11-29 14:00:00 TP{i % 8}] line {i}" for i in range(start, stop)]


@asynccontextmanager
async def opened(lines: Sequence[str]) -> AsyncIterator[tuple[Pilot[None], LogView, LogSpool]]:
    """A view of 10 lines over a spool."""
    spool = LogSpool()
    spool.append(lines)
    app = LogApp(spool)
    async with app.run_test(size=(60, 11)) as pilot:
        app.pane.view.focus()
        await settle(pilot, app.pane.view)
        yield pilot, app.pane.view, spool
    spool.close()


async def settle(pilot: Pilot[None], view: LogView) -> None:
    """Until the view has taken in what there is."""
    for _ in range(3):
        view.tick()
        await pilot.pause()
    for worker in list(view.workers):
        await worker.wait()
    view.tick()
    await pilot.pause()


async def until(pilot: Pilot[None], what: Callable[[], object]) -> None:
    """Let the app work until something is so."""
    for _ in range(600):
        if what():
            return
        await pilot.pause(0.01)
    assert what()


def top(view: LogView) -> int | None:
    return view.number(view.scroll_offset.y)


async def test_it_follows_100_000_lines_and_those_that_come(seen: Seen) -> None:
    async with opened(numbered(0, 100_000)) as (pilot, view, spool):
        assert "line 99999" in seen(pilot.app)
        assert "following  100,000 lines" in seen(pilot.app)
        spool.append(numbered(100_000, 101_000))
        await settle(pilot, view)
        assert "line 100999" in seen(pilot.app)


async def test_scrolling_up_stays_where_the_reader_is_until_end_is_pressed(seen: Seen) -> None:
    async with opened(numbered(0, 100_000)) as (pilot, view, spool):
        await pilot.press("pageup", "pageup", "up")
        await settle(pilot, view)
        reading = seen(pilot.app).splitlines()[1:]
        spool.append(numbered(100_000, 101_204))
        await settle(pilot, view)
        assert seen(pilot.app).splitlines()[1:] == reading
        assert "1,204 new below  101,204 lines" in seen(pilot.app)
        await pilot.press("end")
        await settle(pilot, view)
        assert "line 101203" in seen(pilot.app)
        assert "following" in seen(pilot.app)


async def test_scrolling_back_to_the_end_follows_again(seen: Seen) -> None:
    async with opened(numbered(0, 1000)) as (pilot, view, _spool):
        await pilot.press("up", "up")
        await settle(pilot, view)
        assert not view.follow
        await pilot.press("pagedown")
        await settle(pilot, view)
        assert view.follow


async def test_a_search_goes_to_the_nearest_match_before_the_end_and_on_with_n_and_shift_n(seen: Seen) -> None:
    lines = numbered(0, 100_000)
    lines[500] = lines[50_000] = "[2025-11-29 14:00:00 TP3] NCCL timeout"
    async with opened(lines) as (pilot, view, _spool):
        view.set_search("nccl")
        await settle(pilot, view)
        assert view.hit == 50_000
        assert "NCCL timeout" in seen(pilot.app)
        view.find_again(backward=True)
        await settle(pilot, view)
        assert view.hit == 500
        view.find_again(backward=False)
        await settle(pilot, view)
        assert view.hit == 50_000
        view.find_again(backward=False)
        await settle(pilot, view)
        assert view.hit == 500, "the search goes on from the other end"


async def test_what_matches_is_marked() -> None:
    async with opened([*numbered(0, 20), "a needle in hay"]) as (pilot, view, _spool):
        view.set_search("needle")
        await settle(pilot, view)
        strips = [view.render_line(y) for y in range(10)]
        marked = [segment.text for strip in strips for segment in strip if segment.style and segment.style.reverse]
        assert marked == ["needle"]


@pytest.mark.parametrize(
    ("query", "count"), [("TP3", 12_500), ("!TP3", 87_500), ("/line 9999\\d$/", 10), ("line 99999", 1), ("none", 0)]
)
async def test_a_filter_keeps_what_matches(query: str, count: int) -> None:
    async with opened(numbered(0, 100_000)) as (pilot, view, spool):
        view.set_filter(query)
        await settle(pilot, view)
        assert view.count == count
        spool.append(["[2025-11-29 14:00:00 TP3] one more"])
        await settle(pilot, view)
        assert view.count == count + (query == "TP3")
        view.set_filter("")
        await settle(pilot, view)
        assert view.count == 100_001


async def test_a_filter_keeps_the_line_that_was_being_read() -> None:
    async with opened(numbered(0, 100_000)) as (pilot, view, spool):
        view.action_lines(-5000)
        await settle(pilot, view)
        before = top(view)
        assert before is not None
        view.set_filter("TP3")
        await settle(pilot, view)
        after = top(view)
        assert after is not None
        assert 0 <= after - before < 8
        spool.append(numbered(100_000, 100_080))
        await settle(pilot, view)
        assert top(view) == after
        assert "10 new below" in "".join(text for text, _ in view.title)


async def test_escapes_and_markup_of_the_server_are_only_text(seen: Seen) -> None:
    async with opened([HOSTILE]) as (pilot, _view, _spool):
        text = seen(pilot.app)
        assert not any(character in text for character in "\x1b\x07\x9b\u202e")
        assert "red alert" in text
        assert "[bold]not markup[/bold]" in text


async def test_a_long_line_is_cut_and_scrolls_sideways(seen: Seen) -> None:
    async with opened(["x" * 200 + "END"]) as (pilot, _view, _spool):
        assert "xx…" in seen(pilot.app)
        for _ in range(10):
            await pilot.press("right")
        await pilot.pause()
        assert "END" in seen(pilot.app)


async def test_a_new_run_starts_the_log_again(seen: Seen) -> None:
    async with opened(numbered(0, 1000)) as (pilot, view, spool):
        await pilot.press("up")
        spool.clear()
        spool.append(["the second run"])
        await settle(pilot, view)
        assert "the second run" in seen(pilot.app)
        assert "following  1 line" in seen(pilot.app)


async def test_a_wrong_regular_expression_is_told_and_the_prompt_stays(seen: Seen) -> None:
    async with opened(numbered(0, 10)) as (pilot, view, _spool):
        pane = pilot.app.query_one(LogPane)
        pane.ask("search")
        await pilot.press("slash", "left_parenthesis", "slash", "enter")
        await pilot.pause()
        assert pane.asking
        assert view.query_search is None


@pytest.mark.parametrize("what", ["search", "filter"])
async def test_an_expression_that_would_take_for_ever_is_given_up_and_told(what: str) -> None:
    async with opened(["a" * 80 + "!"] * 3000) as (pilot, view, _):
        ask = view.set_search if what == "search" else view.set_filter
        ask("/(a|aa)+$/")
        await until(pilot, lambda: any("takes too long" in note.message for note in pilot.app._notifications))
        assert view.query_filter is None
        await pilot.press("up")
        assert not view.follow
        ask("/a!$/")
        await settle(pilot, view)
        assert view.hit is not None or view.count == 3000


async def test_a_whole_file_can_be_looked_through_beyond_what_has_been_played(tmp_path: Path, seen: Seen) -> None:
    path = tmp_path / "server.log"
    path.write_text("".join(f"{line}\n" for line in numbered(0, 5000)))
    lines = FileLines(path)
    lines._thread.join()
    lines.played(100)
    app = LogApp(lines)
    async with app.run_test(size=(60, 11)) as pilot:
        view = app.pane.view
        view.focus()
        await settle(pilot, view)
        assert top(view) == 90, "it follows what has been played"
        lines.played(200)
        await settle(pilot, view)
        assert top(view) == 190
        await pilot.press("pagedown", "pagedown")
        await settle(pilot, view)
        assert not view.follow
        assert "line 215" in seen(pilot.app)
        lines.played(300)
        await settle(pilot, view)
        assert "line 215" in seen(pilot.app), "a reader stays where he is"
        await pilot.press("end")
        await settle(pilot, view)
        assert top(view) == 290
    lines.close()
