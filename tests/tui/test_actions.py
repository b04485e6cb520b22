"""Keys, footer, palette and help, all from one registry, and the requests that they lead to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.app import App

from kimi_agent.model.events import AgentStarted
from kimi_console.tui.actions import ACTIONS, PANES, footer_actions
from kimi_console.tui.app import KimiApp
from kimi_console.tui.board import SPECS, Board
from kimi_console.tui.palette import ActionProvider
from kimi_console.tui.screens.confirm import Confirm
from kimi_console.tui.screens.launch_form import LaunchForm
from kimi_console.tui.screens.sheet import Sheet

from . import scenes
from .test_board import app_of, settle, until

Seen = Callable[[App[Any]], str]
PREFLIGHT = {
    "problems": [{"slug": "port", "message": "port 30000 is taken by pid 4411", "hint": "Choose another port"}],
    "argv": ["/opt/python", "-m", "sglang.launch_server", "--model-path", "/models/Kimi K2.5"],
}


def idle() -> scenes.Journal:
    return scenes.Journal().add(0, AgentStarted("0.1.0", "gpu-07", 9, "/p", "0.5.23", "b", 4, scenes.GIB))


def profile(directory: Path, name: str = "kimi") -> Path:
    path = directory / f"{name}.toml"
    path.write_text('[server]\nmodel = "/models/Kimi K2.5"\ntp = 8\n', "utf-8")
    return path


async def test_every_action_has_its_own_key_and_id_and_something_that_does_it() -> None:
    assert len({action.key for action in ACTIONS}) == len(ACTIONS)
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)
    assert set(PANES) == {spec.id for spec in SPECS} | {"log"}
    app = app_of(idle())
    panes = {action.id for action in ACTIONS if action.id.startswith("pane_")}
    async with app.run_test(size=(80, 24)):
        replay = {action.id for action in ACTIONS if action.group == "replay"}
        assert set(app.board.doers()) | panes | replay == {action.id for action in ACTIONS}
    bound = {binding.id for binding in Board.BINDINGS if not isinstance(binding, tuple) and binding.id}
    assert bound == {action.id for action in ACTIONS}


@pytest.mark.parametrize("scene", ["slow", "dumping"])
async def test_the_footer_shows_what_applies_and_the_palette_explains_the_rest(scene: str, seen: Seen) -> None:
    app = app_of(getattr(scenes, scene)(), scenes.TableControl({}))
    async with app.run_test(size=(160, 40)) as pilot:
        board = await settle(pilot)
        footer = seen(app).splitlines()[-1]
        applying = footer_actions(board.session)
        for action in ACTIONS:
            if action.rank and action.id != "dump":
                assert (f" {action.shown} {action.label}" in footer) == (action in applying), action.id
        offered = {hit.text: hit.help or "" async for hit in ActionProvider(board).discover()}
        assert len(offered) == len(ACTIONS) - 1
        for action in ACTIONS:
            reason = action.why_not(board.session)
            if action.id != "palette":
                expected = f"not now: {reason}" if reason else action.help
                assert expected == offered[f"{action.shown:>3}  {action.label}"]


async def test_launch_shows_the_command_line_and_problems_and_asks_twice(tmp_path: Path, seen: Seen) -> None:
    control = scenes.TableControl({"preflight": lambda params: PREFLIGHT, "launch": lambda params: {"run": "run-0413"}})
    app = app_of(idle(), control, profiles=[profile(tmp_path)])
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("l")
        await until(pilot, lambda: "port 30000 is taken by pid 4411" in seen(app))
        assert "--model-path '/models/Kimi K2.5'" in seen(app)
        assert "Choose another port" in seen(app)
        await pilot.press("enter")
        await until(pilot, lambda: "Enter once more launches all the same" in seen(app))
        assert [method for method, _ in control.asked] == ["preflight"]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Board))
        method, params = control.asked[-1]
        assert method == "launch"
        assert params["profile"]["name"] == "kimi"
        assert params["profile"]["server"]["tp"] == 8


async def test_a_profile_that_is_wrong_says_where(tmp_path: Path, seen: Seen) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[server]\nmodle = 3\n", "utf-8")
    control = scenes.TableControl({})
    app = app_of(idle(), control, profiles=[wrong])
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("l")
        await until(pilot, lambda: "modle" in seen(app))
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, LaunchForm)
        assert not control.asked


async def test_stop_names_host_pid_and_model_and_only_y_stops(seen: Seen) -> None:
    control = scenes.TableControl({"stop": lambda params: {"run": scenes.RUN, "left": ["port 30000"]}})
    app = app_of(scenes.dumping(), control)
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await settle(pilot)
        await pilot.press("s")
        await until(pilot, lambda: "Stop this server?" in seen(app))
        for named in ("gpu-07", "pid 41200", "/models/Kimi-K2.5", "A dump is written"):
            assert named in seen(app)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Board))
        assert not control.asked
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: "left behind: port 30000" in seen(app))
        assert control.asked == [("stop", {})]


async def test_dump_starts_and_ends_with_the_same_key(seen: Seen) -> None:
    answers = {
        "dump_start": lambda params: {"dump": "nightly", "directory": "/data", "boundaries": [3, 31, 59]},
        "dump_stop": lambda params: {"dump": "nightly", "rows": 41_100_000, "samples": 20117, "shards": 2311},
    }
    for journal, method in ((scenes.ready(), "dump_start"), (scenes.dumping(), "dump_stop")):
        control = scenes.TableControl(answers)
        app = app_of(journal, control)
        async with app.run_test(size=(120, 36)) as pilot:
            await settle(pilot)
            await pilot.press("D")
            await until(pilot, control.asked.__len__)
            assert control.asked[0][0] == method


async def test_an_error_of_the_agent_is_told_and_the_console_goes_on(seen: Seen) -> None:
    app = app_of(scenes.dumping(), scenes.TableControl({}))
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await settle(pilot)
        await pilot.press("D")
        await until(pilot, lambda: "the agent knows no dump_stop" in seen(app))
        assert "Update the agent" in seen(app)
        assert app.is_running


async def test_a_read_only_link_offers_nothing_that_acts() -> None:
    app = app_of(scenes.dumping(), scenes.TableControl({}, read_only=True))
    async with app.run_test(size=(120, 36)) as pilot:
        board = await settle(pilot)
        offered = {action.id for action in footer_actions(board.session)}
        assert not offered & {"launch", "stop", "dump"}
        assert "inspect" in offered


@pytest.mark.parametrize(
    ("key", "shown"),
    [("question_mark", "Start a dump of hidden states"), ("E", "STARTING → READY"), ("d", "no problem seen"),
     ("c", "--model-path '/models/Kimi K2.5' --tp 8"), ("e", "following")],
)  # fmt: skip
async def test_sheets_open_and_close(key: str, shown: str, seen: Seen) -> None:
    app = app_of(scenes.ready(), scenes.TableControl({}))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press(key)
        await until(pilot, lambda: shown in seen(app))
        assert isinstance(app.screen, Sheet)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, Board))


async def test_the_doctor_shows_the_evidence_in_full(seen: Seen) -> None:
    app = app_of(scenes.hung(), scenes.TableControl({}))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("d")
        await until(pilot, lambda: "stack TP0: monitored_barrier" in seen(app))
        assert "compilation (no nvcc)" in seen(app)


async def test_numbers_choose_panes_z_zooms_and_escape_comes_back(seen: Seen) -> None:
    app = app_of(scenes.dumping(), scenes.TableControl({}))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("4")
        await until(pilot, lambda: "─ Throughput" in seen(app))
        await pilot.press("z")
        await until(pilot, lambda: "─ Log" not in seen(app))
        await pilot.press("escape")
        await until(pilot, lambda: "─ Log" in seen(app))


async def test_the_prompt_takes_keys_that_are_actions_elsewhere() -> None:
    control = scenes.TableControl({})
    app = app_of(scenes.slow(), control)
    async with app.run_test(size=(120, 36)) as pilot:
        board = await settle(pilot)
        await pilot.press("slash", "L", "o", "a", "d", "enter")
        await until(pilot, lambda: board.log_pane.view.hit is not None)
        assert board.log_pane.view.query_search is not None
        assert board.log_pane.view.query_search.text == "Load"
        assert not control.asked


async def test_redial_is_offered_while_the_link_is_lost() -> None:
    control = scenes.TableControl({})
    journal = scenes.ready()
    app = KimiApp(scenes.session(journal, control, state="lost"), clock=scenes.clock(journal))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("r")
        await until(pilot, lambda: control.redialled)
        assert control.redialled == 1


async def test_leaving_says_that_the_server_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    app = app_of(scenes.ready(), scenes.TableControl({}))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("q")
        await pilot.pause()
    assert "The server goes on: gpu-07, pid 41200, port 30000" in capfd.readouterr().err
