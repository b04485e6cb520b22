"""Replay on the board: keys move the clock, the bar shows where it stands, nothing else differs."""

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from kimi_agent.record.format import Mark
from kimi_console.source.opening import Opened
from kimi_console.source.session import Session
from kimi_console.tui.actions import BY_ID
from kimi_console.tui.app import KimiApp
from kimi_console.tui.cells import Line, width
from kimi_console.tui.replay_bar import Position, draw

LOG = Path(__file__).parent.parent / "logs" / "cpu-hook-exception.log"


async def wait(pilot: Pilot[None], place: int, session: Session) -> None:
    """Until so many events are behind, and drawn."""
    for _ in range(400):
        if session.player is not None and session.player.place == place:
            break
        await pilot.pause(0.01)
    assert session.player is not None
    assert session.player.place == place
    await pilot.pause()


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_the_keys_move_the_clock(size: tuple[int, int], tmp_path: Path) -> None:
    opened = Opened(LOG, speed=float("inf"))
    player = await opened.open()
    session = Session(player)
    app = KimiApp(session)
    async with app.run_test(size=size) as pilot:
        assert isinstance(pilot.app, KimiApp)
        board = pilot.app.board
        await pilot.pause()
        for _ in range(400):
            if player.ended:
                break
            await pilot.pause(0.01)
        end = player.place
        assert session.state.run is not None
        assert session.state.run.status == "FAILED"
        await pilot.press("ctrl+home")
        await wait(pilot, 0, session)
        await pilot.press("full_stop", "full_stop")
        await wait(pilot, 2, session)
        await pilot.press("comma")
        await wait(pilot, 1, session)
        seen = []
        for _ in range(3):
            await pilot.press("m")
            await pilot.pause(0.05)
            seen.append(player.place)
        assert seen == sorted(set(seen))
        await pilot.press("slash")
        await pilot.pause()
        await pilot.press(*"disk", "space", *"full", "enter")
        await pilot.pause()
        await pilot.press("n")
        for _ in range(400):
            if any("disk full" in line for line in session.log.lines(0, len(session.log))):
                break
            await pilot.pause(0.01)
        else:
            pytest.fail("the match was not found")
        await pilot.press("x")
        await pilot.pause()
        ask = pilot.app.screen.query_one(Input)
        ask.value = f"{tmp_path}/out.log +0 +5 anonymise"
        await pilot.press("enter")
        for _ in range(400):
            if (tmp_path / "out.log").exists():
                break
            await pilot.pause(0.01)
        assert 0 < len((tmp_path / "out.log").read_text().splitlines()) < 200
        await pilot.press("right", "left", "ctrl+end")
        await wait(pilot, end, session)
        board.draw()
        footer = "".join(text for text, _ in board._bars["footer"].line)
        assert "max" in footer
        assert "✖" in footer
        assert BY_ID["launch"].why_not(session) == "a recording cannot be acted on: connect to a host"
    await opened.close()


def test_the_bar_never_overflows_and_keeps_the_clock() -> None:
    marks = [Mark(n, 1.79e9 + 37 * n, kind, "") for n, kind in enumerate(("launch", "phase", "error", "verdict"))]
    keys: Line = [(" space", "focus"), (" pause", "dim")]
    for cells in range(40, 200):
        for now in (1.79e9, 1.79e9 + 50, 1.79e9 + 111):
            line = draw(Position(True, False, 8.0, 1.79e9, now, 1.79e9 + 111, marks), keys, cells)
            assert width(line) <= cells
            assert "8x" in "".join(text for text, _ in line)
    wide = draw(Position(False, False, 0.25, 1.79e9, 1.79e9 + 50, 1.79e9 + 111, marks), [], 120)
    drawn = "".join(text for text, _ in wide)
    assert [drawn.count(shape) for shape in ("L", "✖", "▲", "●")] == [1, 1, 1, 1]
    assert drawn.startswith(" ‖ 0.25x")
