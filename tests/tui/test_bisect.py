"""The bisection on the screen: offered on a hung start, its table growing, broken off and gone on with."""

import base64
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.app import App

from kimi_agent.model.bisect import NOTHING, Attempt, BisectChanged
from kimi_agent.model.events import StatusChanged
from kimi_console.tui.board import Board
from kimi_console.tui.screens.bisect import BisectScreen

from . import scenes
from .test_board import app_of, settle, until

Seen = Callable[[App[Any]], str]

TABLE = BisectChanged(
    "bisect-1", "kimi-k25", "hash", "running",
    (
        Attempt(NOTHING, "nothing changed", "hung", "graphs", 131.0, scenes.RUN, "TP3 is stopped"),
        Attempt("plugin", "the capture plugin not loaded; SGLang's own capture flags stay", "running"),
        Attempt("p2p", "no peer-to-peer between GPUs (NCCL_P2P_DISABLE=1)"),
        Attempt("mmap", "weights read instead of mapped", "skipped", why="cannot matter in graphs"),
    ),
    "graphs", 250.0,
)  # fmt: skip


def hung(status: str = "HUNG") -> scenes.Journal:
    return scenes.slow().add(200, StatusChanged(scenes.RUN, status, "TP3 is stopped"))


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_a_hung_start_is_taken_apart_and_the_table_grows(size: tuple[int, int], seen: Seen) -> None:
    control = scenes.TableControl({"bisect": lambda params: {"bisect": "bisect-1"}, "bisect_stop": lambda params: {}})
    journal = hung()
    app = app_of(journal, control)
    async with app.run_test(size=size) as pilot:
        board = await settle(pilot)
        source = board.session.source
        assert isinstance(source, scenes.MemorySource)
        await pilot.press("b")
        await until(pilot, lambda: "is launched again and again" in seen(app))
        assert "b start" in seen(app)
        await pilot.press("b")
        await until(pilot, lambda: control.asked == [("bisect", {"resume": False})])

        source.give(journal.add(201, TABLE).events[-1:])
        await until(pilot, lambda: "plugin" in seen(app) and "running" in seen(app))
        for shown in (
            "nothing",
            "hung",
            "in graphs: TP3 is stopped",
            "p2p",
            "skipped",
            "cannot matter in graphs",
            "4:10",
        ):
            assert shown in seen(app), shown
        assert "s stop" in seen(app)
        await pilot.press("s")
        await until(pilot, lambda: control.asked[-1] == ("bisect_stop", {}))

        rows = list(TABLE.attempts)
        rows[1] = replace(rows[1], outcome="passed", phase="port", seconds=140.0, run="run-2")
        done = replace(
            TABLE, state="done", attempts=tuple(rows), culprits=("plugin",), conclusion="it hangs in graphs, …"
        )
        source.give(journal.add(202, done).events[-1:])
        await until(pilot, lambda: "passed" in seen(app) and "it hangs in graphs" in seen(app))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, Board))


async def test_a_table_that_was_broken_off_goes_on_and_a_refusal_is_shown(seen: Seen) -> None:
    control = scenes.TableControl({})
    journal = hung().add(201, replace(TABLE, state="stopped", conclusion="broken off: an operator stopped it"))
    app = app_of(journal, control)
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("b")
        await until(pilot, lambda: "broken off" in seen(app) and "b go on" in seen(app))
        await pilot.press("b")
        await until(pilot, lambda: "the agent knows no bisect" in seen(app))
        assert control.asked == [("bisect", {"resume": True})]


async def test_what_is_not_hung_is_not_taken_apart_and_says_why(seen: Seen) -> None:
    for journal, words in ((scenes.slow(), "only taken apart when it hangs"), (scenes.dumping(), "only taken apart")):
        app = app_of(journal, scenes.TableControl({}))
        async with app.run_test(size=(120, 36), notifications=True) as pilot:
            await settle(pilot)
            await pilot.press("b")
            await until(pilot, lambda words=words, app=app: words in seen(app))  # type: ignore[misc]
            assert not isinstance(app.screen, BisectScreen)


async def test_a_bundle_comes_over_in_pieces_into_the_operators_directory(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(1_300_000)
    monkeypatch.chdir(tmp_path)

    def piece(params: dict[str, Any]) -> dict[str, Any]:
        at = params["offset"]
        answer = {"data": base64.b64encode(data[at : at + 512_000]).decode(), "size": len(data)}
        assert len(json.dumps(answer)) < 1 << 20
        return answer

    made = {"bundle": "kimi-bundle-run-1.zip", "removed": {"secret": 3, "host": 2}}
    control = scenes.TableControl({"bundle": lambda params: made, "bundle_read": piece})
    app = app_of(hung(), control)
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await settle(pilot)
        await pilot.press("w")
        await until(pilot, lambda: "3 × secret" in " ".join(seen(app).split()))
        path = tmp_path / "kimi-bundle-run-1.zip"
        assert path.read_bytes() == data
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert control.asked[0] == ("bundle", {"run": None, "hosts": ["gpu-07"]})
        assert len(control.asked) == 4
        await pilot.press("w")
        await until(pilot, lambda: "exists already" in " ".join(seen(app).split()))
        assert path.read_bytes() == data
