"""Numbers, cells, layouts and themes: what holds for all of them."""

from dataclasses import replace
from pathlib import Path

import pytest
import rich.cells
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.errors import UsageError
from kimi_agent.model.reduce import fold
from kimi_console.source.base import Link
from kimi_console.tui import format as fmt
from kimi_console.tui.board import SPECS
from kimi_console.tui.cells import (
    LONGEST_WORD,
    Column,
    cell_len,
    crop,
    fit,
    left,
    right,
    set_cell_size,
    spread,
    table,
    to_ascii,
    width,
    wrap,
)
from kimi_console.tui.log_style import coloured, highlighted, parse_query
from kimi_console.tui.panes import header, why
from kimi_console.tui.panes.dump import DUMP
from kimi_console.tui.plan import PARTS, Situation, joints, plan, too_small
from kimi_console.tui.terminal import check_terminal, no_color
from kimi_console.tui.theme import load_themes, parse_theme
from kimi_console.tui.view import View

from . import scenes

WORDS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Cf", "Mn", "Me", "Zl", "Zp")), max_size=60)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 B"), (999, "999 B"), (1000, "0.98 KiB"), (1024, "1.00 KiB"), (76 << 30, "76.0 GiB"),
     (1_330_000_000_000, "1.21 TiB"), (1023 << 20, "1.00 GiB")],
)  # fmt: skip
def test_sizes(value: int | None, text: str) -> None:
    assert fmt.size(value) == text


@given(st.integers(0, 1 << 62))
def test_a_size_never_takes_more_than_eight_cells(value: int) -> None:
    assert len(fmt.size(value)) <= 8


@given(st.floats(0, 1e15))
def test_rates_and_short_numbers_keep_their_width(value: float) -> None:
    assert len(fmt.rate(value)) <= 5
    assert len(fmt.short(value)) <= 6


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0, "0:00"), (59.9, "0:59"), (348, "5:48"), (3599, "59:59"), (8047, "2:14:07")]
)
def test_durations(seconds: float | None, text: str) -> None:
    assert fmt.duration(seconds) == text


@given(st.integers(0, 500), st.integers(1, 500), st.integers(2, 40))
def test_a_bar_is_full_only_when_done_and_empty_only_when_nothing_is(part: int, whole: int, cells: int) -> None:
    full, empty = fmt.bar(part, whole, cells)
    assert len(full) + len(empty) == cells
    assert (not empty) == (part >= whole)
    assert (not full) == (part == 0)


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=80), st.integers(1, 60))
def test_a_missing_value_is_a_gap_in_the_line_and_nothing_else_is(values: list[float | None], cells: int) -> None:
    drawn = fmt.sparkline(values, cells)
    assert len(drawn) == cells
    recent = values[-cells:]
    assert [mark == fmt.GAP for mark in drawn[cells - len(recent) :]] == [value is None for value in recent]


def test_the_share_is_not_100_percent_before_all_is_done() -> None:
    assert fmt.share(9999, 10000) == "99 %"
    assert fmt.share(5, 5) == "100 %"
    assert fmt.share(0, 0) == "–"


def test_the_median_leaves_out_idle_and_missing() -> None:
    assert fmt.median([None, 0.0, 1.0, 3.0]) == 2.0
    assert fmt.median([None, 0.0]) is None


@given(WORDS | st.text(), st.integers(0, 40))
def test_text_is_measured_and_cut_as_the_terminal_does(text: str, cells: int) -> None:
    assert cell_len(text) == rich.cells.cell_len(text)
    assert set_cell_size(text, cells) == rich.cells.set_cell_size(text, cells)


@given(WORDS, st.integers(0, 40))
def test_fields_have_exactly_their_width(text: str, cells: int) -> None:
    assert cell_len(fit(text, cells)) <= cells
    assert cell_len(left(text, cells)) == cells
    assert cell_len(right(text, cells)) == cells


@given(st.lists(WORDS, max_size=6), WORDS, st.integers(1, 60))
def test_lines_are_never_wider_than_asked(texts: list[str], end: str, cells: int) -> None:
    line = [(text, "plain") for text in texts]
    assert width(crop(line, cells)) <= cells  # type: ignore[arg-type]
    assert width(spread(line, [(end, "plain")], cells)) <= max(cells, 0)  # type: ignore[arg-type]


@given(WORDS, st.integers(4, 60))
def test_wrapped_lines_fit_and_keep_words(text: str, cells: int) -> None:
    lines = wrap(text, cells)
    assert all(cell_len(line) <= cells for line in lines)
    if all(cell_len(word) <= cells for word in text.split()):
        assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    elif all(cell_len(word) <= cells * (LONGEST_WORD - 2) for word in text.split()):
        assert "".join("".join(lines).split()) == "".join(text.split())


def test_a_path_is_broken_and_what_has_no_end_is_cut() -> None:
    assert wrap("text: /a/very/long/path", 10) == ["text:", "/a/very/lo", "ng/path"]
    assert wrap("/a/very/long/path", 10, "  ") == ["/a/very/lo", "  ng/path"]
    endless = wrap("x" * 1000, 10)
    assert (len(endless), endless[-1]) == (LONGEST_WORD, "xxxxxxxxx…")


@given(WORDS)
def test_ascii_keeps_the_width(text: str) -> None:
    assert to_ascii(text).isascii()
    assert len(to_ascii(text)) == cell_len(text)


@given(st.integers(10, 90))
def test_columns_go_whole_and_in_their_order(cells: int) -> None:
    columns = [Column("a", 8), Column("b", 8, drop=1), Column("c", 8, drop=3), Column("d", 8, drop=2)]
    row = table(columns, [[(name, "plain") for name in ("1", "2", "3", "4")]], cells)[1]
    shown = [text.strip() for text, _ in row if text.strip()]
    assert shown in (["1", "2", "3", "4"], ["1", "2", "4"], ["1", "2"], ["1"])


SITUATIONS = st.builds(
    Situation, ranks=st.integers(0, 64), alarm=st.integers(0, 30), dump=st.integers(0, 5),
    chosen=st.sampled_from(PARTS), zoomed=st.booleans(),
)  # fmt: skip


@given(st.integers(1, 300), st.integers(1, 120), SITUATIONS)
def test_every_layout_covers_the_screen_once(cells: int, rows: int, now: Situation) -> None:
    boxes = plan(cells, rows, now)
    if too_small(cells, rows):
        assert not boxes
        return
    covered = [[0] * cells for _ in range(rows)]
    for box in boxes.values():
        assert box.width > 0
        assert box.height > 0
        for y in range(box.y, box.y + box.height):
            for x in range(box.x, box.x + box.width):
                covered[y][x] += 1
    assert all(cell == 1 for row in covered for cell in row)
    assert all(0 <= x < boxes[name].width for name, marks in joints(boxes).items() for x in marks)


@given(st.sampled_from(["slow", "hung", "dumping", "ready"]), st.integers(20, 220), st.integers(2, 50))
def test_no_pane_draws_beyond_its_box_and_numbers_are_whole(scene: str, cells: int, rows: int) -> None:
    journal = getattr(scenes, scene)()
    view = View("gpu-07", fold(journal.events), Link("live"), journal.last)
    assert width(header.draw(view, cells)) <= cells
    assert width(why.one_line(view, cells)) <= cells
    for spec in SPECS:
        drawing = spec.draw(view, cells, rows)
        assert len(drawing.lines) <= max(rows, 11), spec.id


def test_a_pause_and_failed_writes_are_on_the_screen() -> None:
    journal = scenes.dumping()
    run = fold(journal.events).run
    assert run is not None
    assert run.dump is not None
    full = "shard-TP0-000012.safetensors could not be written: No space left on device"
    journal.add(360, replace(run.dump, state="paused", reason=full, write_errors=17))
    drawing = DUMP.draw(View("gpu-07", fold(journal.events), Link("live"), journal.last), 100, 5)
    text = ["".join(word for word, _ in line) for line in (drawing.title, *drawing.lines)]
    assert text[0].startswith("◐ paused")
    assert any(full in line for line in text)
    assert any("17 writes failed" in line for line in text)


@pytest.mark.parametrize(
    ("query", "line", "found"),
    [("nccl", "NCCL timeout", True), ("NCCL", "nccl timeout", False), ("/t.?meout$/", "NCCL timeout", True),
     ("TP3", "[2025-11-29 14:00:00 TP3] x", True), ("TP3", "[2025-11-29 14:00:00 TP31] x", False),
     ("TP3", "[2025-11-29 14:00:00 DP1 TP3] x", True), ("TP3", "TP3 in the text", False), ("a.c", "abc", False)],
)  # fmt: skip
def test_queries(query: str, line: str, found: bool) -> None:
    assert bool(parse_query(query).pattern.search(line)) == found
    assert parse_query(f"!{query}").inverse


def test_a_wrong_expression_is_an_error_with_a_hint() -> None:
    with pytest.raises(UsageError, match="no regular expression"):
        parse_query("/(/")


@given(WORDS)
def test_colouring_and_marking_change_no_text(text: str) -> None:
    line = f"[2025-11-29 14:00:00 TP3] {text}"
    shown = "".join(part for part, _ in coloured(line))
    assert shown == f"14:00:00 TP3 {text}"
    marked = highlighted(coloured(line), parse_query("e").pattern)
    assert "".join(part for part, _ in marked) == shown


def test_the_shipped_themes_are_whole() -> None:
    themes = load_themes()
    assert not themes.warnings
    assert {"kimi-dark", "kimi-light", "high-contrast", "okabe-ito"} <= set(themes.found)
    assert not themes.found["kimi-light"].dark


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("primary = '#112233'", "name"), ("name = 'x'", "primary"), ("name = 'x'\nprimary = 'blueish'", "primary"),
     ("name = 'x'\nprimary = '#112233'\nprimry = '#112233'", "unknown key primry"), ("name =", "[Ii]nvalid")],
)  # fmt: skip
def test_a_bad_theme_names_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_theme(text)


def test_a_bad_theme_file_is_a_warning_and_the_others_load(tmp_path: Path) -> None:

    directory = tmp_path
    (directory / "bad.toml").write_text("name = 3", "utf-8")
    (directory / "good.toml").write_text("name = 'mine'\nprimary = '#336699'", "utf-8")
    themes = load_themes(directory)
    assert "mine" in themes.found
    assert len(themes.warnings) == 1
    assert "bad.toml" in themes.warnings[0]


class Terminal:
    def __init__(self, is_one: bool) -> None:
        self.is_one = is_one

    def isatty(self) -> bool:
        return self.is_one


def test_no_terminal_and_a_dumb_one_are_refused_in_words() -> None:
    check_terminal({"TERM": "xterm"}, Terminal(True), Terminal(True))
    with pytest.raises(UsageError, match="needs a terminal"):
        check_terminal({"TERM": "xterm"}, Terminal(True), Terminal(False))
    with pytest.raises(UsageError, match="TERM=dumb"):
        check_terminal({"TERM": "dumb"}, Terminal(True), Terminal(True))


def test_no_color_counts_only_when_it_is_not_empty() -> None:
    assert no_color({"NO_COLOR": "1"})
    assert not no_color({"NO_COLOR": ""})
    assert not no_color({})
