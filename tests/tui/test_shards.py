"""The shard browser over real dump directories, read by the agent's own inspector."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from textual.app import App
from textual.pilot import Pilot

from kimi_agent.errors import KimiError
from kimi_agent.shards.inspect.desk import Desk
from kimi_capture.format import COMMITS, MANIFEST, Commit, Manifest, Sample, conventions, encode_commit
from kimi_capture.parts import write_shard
from kimi_console.tui.app import KimiApp
from kimi_console.tui.board import Board
from kimi_console.tui.rows import Rows
from kimi_console.tui.screens.beside import Report, boundary_match
from kimi_console.tui.screens.sample import SampleScreen
from kimi_console.tui.screens.shards import ShardBrowser
from kimi_console.tui.screens.steps import Paged
from kimi_console.tui.token_grid import TokenGrid, shade
from kimi_console.tui.window import KEPT, PAGE, Window

from . import scenes
from .test_board import app_of, settle, until

Seen = Callable[[App[Any]], str]
Same = Callable[[str, str], None]
BOUNDARIES = (3, 31, 59)
HIDDEN = 8


class DumpControl:
    """A `Control` that hands requests about dumps to the inspector itself, over the dumps below a directory."""

    read_only = True

    def __init__(self, root: Path) -> None:
        self.desk = Desk(root)
        self.root = root
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def request(self, method: str, **params: Any) -> Any:
        """Answer as the agent does, with what goes on between two requests done at once."""
        self.asked.append((method, dict(params)))
        if method == "dumps":
            return self.desk.do("dumps", {"roots": [str(self.root)]})
        answer = self.desk.do(method, self._found(params))
        while self.desk.work(1.0):
            pass
        return answer

    def redial(self) -> None:
        """There is no link."""

    def _found(self, params: dict[str, Any]) -> dict[str, Any]:
        """Dumps by their directories instead of their names."""
        other = params.get("other")
        if isinstance(other, dict):
            params["other"] = self._found(dict(other))
        elif other is not None:
            params["other"] = str(self.root / other)
        return {"directory": str(self.root / params.pop("dump")), **params}


def write(
    directory: Path, lengths: tuple[tuple[int, ...], ...], change: Callable[[int, Any], None] | None = None
) -> Path:
    """A dump of one shard for each tuple of sample lengths."""
    directory.mkdir(parents=True)
    manifest = Manifest(
        dump=directory.name, run="r", created=scenes.T0, boundaries=BOUNDARIES, conventions=conventions(BOUNDARIES, 0),
        dtype="bfloat16", hidden_size=HIDDEN, num_layers=61, last_hidden_norm="post",
        model={"path": "/models/Kimi-K2.5"}, tokenizer=None, sglang="0.5.23", plugin="0.1.0", argv=(),
        parallel={"tp": 8},
    )  # fmt: skip
    (directory / MANIFEST).write_bytes(manifest.encode())
    for number, held in enumerate(lengths):
        add(directory, number, held, change)
    return directory


def add(
    directory: Path, number: int, lengths: tuple[int, ...], change: Callable[[int, Any], None] | None = None
) -> Path:
    """One more committed shard."""
    rows = sum(lengths)
    random = np.random.default_rng(number)
    states = random.normal(size=(rows, 4, HIDDEN)).astype(np.float32)
    states = (states.view(np.uint32) >> 16).astype(np.uint16)
    tensors: dict[str, Any] = {
        "aux_hidden_states": states[:, :3], "last_hidden_state": states[:, 3],
        "token_ids": random.integers(100, 999, rows), "positions": np.concatenate([np.arange(n) for n in lengths]),
        "sample_offsets": np.cumsum([0, *lengths]),
    }  # fmt: skip
    if change is not None:
        change(number, tensors)
    samples = tuple(
        Sample(f"req-{number}-{place:04}", length - 1, 2, length, "stop") for place, length in enumerate(lengths)
    )
    path = directory / f"shard-TP0-{number:06}.safetensors"
    size, digest = write_shard(
        path, tensors, dump=directory.name, dtype="BF16", boundaries=BOUNDARIES, samples=samples
    )  # fmt: skip
    rids = tuple(sample.rid for sample in samples)
    with (directory / COMMITS).open("ab") as file:
        file.write(encode_commit(Commit(path.name, size, rows, len(lengths), digest, scenes.T0 + number, rids)))
    return path


def spoil(number: int, tensors: Any) -> None:
    """In shard 1, the second sample (rows 40 on): one value not finite, one row zero, one large."""
    if number == 1:
        tensors["last_hidden_state"][45, 2] = 0x7F81
        tensors["aux_hidden_states"][50, 1] = 0
        values = (tensors["aux_hidden_states"][60, 0].astype(np.uint32) << 16).view(np.float32) * 30
        tensors["aux_hidden_states"][60, 0] = (values.view(np.uint32) >> 16).astype(np.uint16)


@pytest.fixture
def control(tmp_path: Path) -> DumpControl:
    write(tmp_path / "dumps" / "nightly", ((30, 40), (40, 40), (20,)), spoil)
    return DumpControl(tmp_path / "dumps")


def side(text: str) -> str:
    """What stands beside the list, unwrapped."""
    return " ".join(" ".join(line.rpartition("│")[2] for line in text.splitlines()).split())


async def walk(pilot: Pilot[None], seen: Seen, *steps: str) -> None:
    """From the board on: press a key, wait for a text, press the next one."""
    await settle(pilot)
    for key, text in zip(steps[::2], steps[1::2], strict=True):
        await pilot.press(key)
        await until(pilot, partial(lambda wanted: wanted in seen(pilot.app), text))


def browser_of(app: App[Any]) -> ShardBrowser:
    screen = app.screen
    assert isinstance(screen, ShardBrowser)
    return screen


async def test_from_dumps_to_tokens_and_back_with_the_path_in_view(
    control: DumpControl, seen: Seen, same: Same
) -> None:
    app = app_of(scenes.ready(), control)
    async with app.run_test(size=(120, 36)) as pilot:
        await walk(pilot, seen, "i", "nightly", "enter", "shard-TP0-000001")
        assert "boundary 31 = input of block 31" in seen(app)
        assert "1 shard has rows that cannot be right" in side(seen(app))
        await pilot.press("down", "enter")
        await until(pilot, lambda: "req-1-0001" in seen(app))
        assert "nightly › shard-TP0-000001.safetensors" in seen(app)
        await pilot.press("down", "enter")
        await until(pilot, lambda: "✓ the shard is as it was committed" in seen(app))
        assert "nightly › shard-TP0-000001.safetensors › req-1-0001" in seen(app)
        await pilot.press("n")
        await until(pilot, lambda: "not finite at last" in seen(app))
        await pilot.press("n")
        await until(pilot, lambda: "all zero at 31" in seen(app))
        await pilot.press("left_square_bracket", "left_square_bracket")
        await until(pilot, lambda: "boundary 31 = input of block 31 = output of block 30 · flag 31" in seen(app))
        same("sample-120x36", seen(app).replace(str(control.root), "/data"))
        await pilot.press("n")
        await until(pilot, lambda: "norm over 4 times its median at 3" in side(seen(app)))
        await pilot.press("N")
        await until(pilot, lambda: "all zero at 31" in seen(app))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, ShardBrowser))
        await pilot.press("escape", "escape", "escape")
        await until(pilot, lambda: isinstance(app.screen, Board))


async def test_a_sample_on_a_small_screen_and_in_ascii(control: DumpControl, seen: Seen, same: Same) -> None:
    app = app_of(scenes.ready(), control, ascii=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await walk(pilot, seen, "i", "nightly", "a", "req-2-0000")
        await pilot.press("end", "up", "enter")
        await until(pilot, lambda: isinstance(app.screen, SampleScreen) and "all samples > req-1-0001" in seen(app))
        await pilot.press("n")
        await until(pilot, lambda: "not finite at last" in seen(app))
        assert seen(app).isascii()
        assert "!" in seen(app)
        same("sample-80x24-ascii", seen(app))


async def test_orders_and_search_ask_for_what_is_shown_and_no_more(control: DumpControl, seen: Seen) -> None:
    write(control.root / "long", tuple((2,) * 50 for _ in range(8)))
    app = app_of(scenes.ready(), control)
    async with app.run_test(size=(120, 36)) as pilot:
        await walk(pilot, seen, "i", "long")
        await pilot.press("down" if browser_of(app).step.draw(80)[0][1][1][0].startswith("nightly") else "up", "a")
        await until(pilot, lambda: "req-0-0000" in seen(app))
        assert "all samples  400" in seen(app)
        assert {params["first"] for method, params in control.asked if method == "samples"} == {0}
        await pilot.press("end")
        await until(pilot, lambda: "req-7-0049" in seen(app))
        assert {params["first"] for method, params in control.asked if method == "samples"} == {0, 300}
        await pilot.press("slash")
        await pilot.press(*"5-004", "enter")
        await until(pilot, lambda: "all samples  10 of 400" in seen(app))
        assert "req-5-0049" in seen(app)
        assert "req-7-0049" not in seen(app)
        await pilot.press("o", "o", "o")
        await until(pilot, lambda: "o by worst" in seen(app))
        await pilot.press("O")
        await until(pilot, lambda: "o by worst reversed" in seen(app))
        assert control.asked[-1][1]["reverse"] is True
        await pilot.press("slash", "x", "enter")
        await until(pilot, lambda: "none has 'x' in its name" in seen(app))


async def test_the_row_under_the_cursor_is_asked_for_before_it_is_drawn(
    control: DumpControl, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list scrolls after the next refresh, and may be drawn there only after all else that waits for it."""
    write(control.root / "long", tuple((2,) * 50 for _ in range(8)))
    app = app_of(scenes.ready(), control)
    async with app.run_test(size=(120, 36)) as pilot:
        await walk(pilot, seen, "i", "long")
        await pilot.press("down" if browser_of(app).step.draw(80)[0][1][1][0].startswith("nightly") else "up", "a")
        await until(pilot, lambda: "req-0-0000" in seen(app))
        monkeypatch.setattr(Rows, "scroll_to", lambda self, **where: None)
        monkeypatch.setattr(Paged, "grows", False)  # or the next look at what grows would ask for it too
        await pilot.press("end")
        await until(pilot, lambda: control.asked[-1][1].get("first") == 300)


async def test_next_bad_goes_over_the_dump_to_the_sample_that_has_it(control: DumpControl, seen: Seen) -> None:
    app = app_of(scenes.ready(), control)
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await walk(pilot, seen, "i", "nightly", "a", "req-0-0000")
        await pilot.press("B")
        await until(pilot, lambda: isinstance(app.screen, SampleScreen) and "not finite at last" in seen(app))
        assert "nightly › all samples › req-1-0001" in seen(app)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, ShardBrowser))
        await pilot.press("end", "B")
        await until(pilot, lambda: "no sample after this one has rows that cannot be right" in seen(app))


async def test_a_dump_that_grows_is_seen_to_grow(control: DumpControl, seen: Seen, monkeypatch: Any) -> None:
    directory = control.root / "nightly"
    (directory / ".shard-TP0.lock").write_text('{"pid": 1, "host": "elsewhere"}')
    monkeypatch.setattr("kimi_console.tui.screens.shards.AGAIN", 0.01)
    app = app_of(scenes.ready(), control)
    async with app.run_test(size=(120, 36)) as pilot:
        await walk(pilot, seen, "i", "nightly", "a", "all samples  5  live")
        assert "process 1 on elsewhere writes into it" in side(seen(app))
        add(directory, 3, (9, 9))
        await until(pilot, lambda: "all samples  7  live" in seen(app))
        assert "req-3-0001" in seen(app)


@pytest.mark.parametrize(
    ("damage", "words"),
    [(lambda path: path.unlink(), "is committed, but the file is not there"),
     (lambda path: path.write_bytes(path.read_bytes()[:-9]), "truncated: ")],
)  # fmt: skip
async def test_a_damaged_shard_says_what_is_wrong_and_what_to_do(
    control: DumpControl, seen: Seen, damage: Callable[[Path], None], words: str
) -> None:
    damage(control.root / "nightly" / "shard-TP0-000000.safetensors")
    app = app_of(scenes.ready(), control)
    async with app.run_test(size=(120, 36)) as pilot:
        await walk(pilot, seen, "i", "nightly", "a", "✖ damaged")
        assert "kimi-agent shards verify" in side(seen(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, SampleScreen) and words in side(seen(app)))


async def test_flipped_bits_are_said_while_their_rows_are_shown(control: DumpControl, seen: Seen) -> None:
    path = control.root / "nightly" / "shard-TP0-000000.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    app = app_of(scenes.ready(), control)
    async with app.run_test(size=(120, 40)) as pilot:
        await walk(pilot, seen, "i", "nightly", "a", "req-0-0000")
        await pilot.press("enter")
        await until(pilot, lambda: "last_hidden_state changed after it was committed" in side(seen(app)))


async def test_an_answer_that_fails_is_told_and_read_again_on_demand(seen: Seen) -> None:
    class Failing(scenes.TableControl):
        failed = False

        async def request(self, method: str, **params: Any) -> Any:
            if not self.failed:
                self.failed = True
                raise KimiError("reading /data took longer than 30 s", "Its disk is slow")
            return await super().request(method, **params)

    app: KimiApp = app_of(scenes.ready(), Failing({"dumps": lambda params: []}))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("i")
        await until(pilot, lambda: "took longer than 30 s" in side(seen(app)))
        await pilot.press("r")
        await until(pilot, lambda: "no dump yet" in seen(app))


async def test_two_samples_and_two_dumps_are_compared_with_what_is_marked(
    control: DumpControl, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kimi_console.tui.screens.beside.AGAIN", 0.01)
    write(control.root / "other", ((30, 40),))
    app = app_of(scenes.ready(), control)
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await walk(pilot, seen, "i", "other", "equals_sign", "with m first")
        await pilot.press("m", "down", "equals_sign")
        await until(pilot, lambda: "2 of 2 pairs compared" in seen(app))
        assert "2 samples are in both  2 by request id, 0 by their tokens" in seen(app)
        assert "✓ the same states, up to precision" in seen(app)
        await pilot.press("escape", "a")
        await until(pilot, lambda: "all samples" in seen(app) and "req-0-0000" in seen(app))
        await pilot.press("m", "down")
        await until(pilot, lambda: "= compare with req-0-0000" in seen(app))
        await pilot.press("equals_sign")
        await until(pilot, lambda: "first different token: 0" in seen(app))
        assert "nothing could be compared" in seen(app)
        assert control.asked[-1][0] == "compare"


async def test_which_boundary_it_is_is_asked_until_it_is_known(seen: Seen, same: Same) -> None:
    column = {"claimed": "boundary 31", "claimed_distance": 1.2, "fits": True}
    known = {
        "rid": "r", "shard": "s", "rows": 40, "model": "/models/Kimi-K2.5", "why": "",
        "columns": [column | {"layer": "31", "best": "boundary 32", "best_distance": 0.008, "right": False},
                    column | {"layer": "last", "best": "the state after the final norm", "best_distance": 0.004,
                              "right": True, "claimed_distance": 0.004}],
        "findings": ["layer identity: the boundaries are 32, labelled 31: 1 layer too late"],
    }  # fmt: skip
    answers = iter([{"running": 1.0}, {"running": 2.5}, known])
    control = scenes.TableControl({"boundary": lambda params: next(answers)})
    app = app_of(scenes.ready(), control)
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kimi_console.tui.screens.beside.AGAIN", 0.01)
            app.push_screen(Report("Which boundary is it?  r", control, "boundary", {"place": 0}, boundary_match))
            await until(pilot, lambda: "1 layer too late" in seen(app))
        assert len(control.asked) == 3
        same("boundary-120x36", seen(app))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, Board))


def test_what_cannot_be_known_of_a_boundary_says_why() -> None:
    answer = {"rid": "r", "shard": "s", "why": "the model's weights are needed: /m is not on this host", "rows": 0}
    text = "\n".join("".join(span for span, _ in line) for line in boundary_match(answer, 60))
    assert "not known: the model's weights are needed" in text


def test_a_window_makes_what_is_looked_at_and_says_what_is_missing() -> None:
    window = Window([[("head", "dim")]], lambda row: [(str(row), "plain")])
    window.total = 10**6
    assert len(window) == 10**6 + 1
    assert window[0] == [("head", "dim")]
    assert window[250 + 1] == [(" …", "dim")]
    assert window.missing == 200
    window.put(200, list(range(200, 200 + PAGE)), 10**6)
    assert window.missing is None
    assert window[251] == [("250", "plain")]
    for page in range(KEPT + 5):
        window.put(page * PAGE, [0] * PAGE, 10**6)
    assert window.row(0) is None
    assert window.row((KEPT + 4) * PAGE) == 0


@pytest.mark.parametrize(("value", "bar"), [(1.0, "▁"), (10.0, "▅"), (100.0, "█"), (0.01, "▁"), (1e9, "█"), (0.0, "▁")])
def test_a_shade_is_a_place_between_the_layer_s_norms(value: float, bar: str) -> None:
    assert shade(value, 1.0, 100.0)[0] == bar
    assert shade(None, 1.0, 100.0)[0] == "?"


async def test_the_grid_asks_for_the_tokens_in_view_only(tmp_path: Path, seen: Seen) -> None:
    control = DumpControl(tmp_path / "dumps")
    write(control.root / "long", ((5000,),))
    app = app_of(scenes.ready(), control)
    async with app.run_test(size=(120, 36)) as pilot:
        await walk(pilot, seen, "i", "long", "a", "req-0-0000")
        await pilot.press("enter")
        await until(pilot, lambda: "read 5,000" not in seen(app) and "position 0" in seen(app))
        await pilot.press("end")
        await until(pilot, lambda: "position 4,999" in seen(app))
        assert {params["first"] for method, params in control.asked if method == "tokens"} == {0, 4500}
        grid = app.screen.query_one(TokenGrid)
        assert grid.token == 4999
