"""The spool against a plain list of lines."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_console.store.filter import LogFilter
from kimi_console.store.spool import LogSpool

LINES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=30), max_size=40)


@given(st.lists(LINES, max_size=6), st.integers(-3, 250), st.integers(-3, 250))
def test_it_reads_back_what_was_appended(batches: list[list[str]], start: int, stop: int) -> None:
    spool, expected = LogSpool(), []
    for batch in batches:
        spool.append(batch)
        expected += batch
    assert len(spool) == len(expected)
    assert spool.lines(start, stop) == expected[max(0, start) : max(0, stop)]
    assert [spool.line(index) for index in range(len(expected))] == expected
    spool.close()


@given(LINES, st.sampled_from(["a", "0", " "]), st.integers(0, 60), st.booleans())
def test_search_finds_the_nearest_match(lines: list[str], wanted: str, start: int, backward: bool) -> None:
    spool = LogSpool()
    spool.append(lines)
    found = [index for index, line in enumerate(lines) if wanted in line]
    if backward:
        expected = max((index for index in found if index <= start), default=None)
    else:
        expected = min((index for index in found if index >= start), default=None)
    assert spool.search(re.compile(re.escape(wanted)), start, backward) == expected
    spool.close()


@given(st.lists(LINES, max_size=6), st.booleans(), st.integers(1, 20))
def test_a_filter_in_steps_finds_what_a_list_would(batches: list[list[str]], inverse: bool, step: int) -> None:
    spool = LogSpool()
    index = LogFilter(spool, re.compile("[a-m0-4]"), inverse=inverse)
    expected: list[str] = []
    for batch in batches:
        spool.append(batch)
        expected += batch
        index.advance(step)
    while index.advance(step):
        pass
    assert list(index.indices) == [i for i, line in enumerate(expected) if (not re.search("[a-m0-4]", line)) == inverse]
    spool.close()


def test_the_older_half_goes_above_the_limit_and_numbers_stay() -> None:
    spool = LogSpool(limit=2000)
    for batch in range(100):
        spool.append([f"line {batch * 10 + i:05d}" for i in range(10)])
    assert len(spool) == 1000
    assert 0 < spool.first < 1000
    assert spool.line(0) == ""
    assert spool.line(spool.first) == f"line {spool.first:05d}"
    assert spool.line(999) == "line 00999"
    assert spool.lines(spool.first - 2, spool.first + 1) == ["", "", f"line {spool.first:05d}"]
    assert spool.search(re.compile("line 00000"), 0) is None
    spool.close()


def test_clear_begins_again_and_a_filter_notices() -> None:
    spool = LogSpool()
    spool.append(["old"] * 5)
    index = LogFilter(spool, re.compile("o|n"))
    index.build()
    spool.clear()
    spool.append(["new"])
    index.build()
    assert list(index.indices) == [0]
    assert spool.line(0) == "new"
    spool.close()


def test_nothing_stays_in_the_directory(tmp_path: Path) -> None:
    spool = LogSpool(tmp_path)
    spool.append(["a"])
    assert not list(tmp_path.iterdir())
    spool.close()


def test_a_full_disk_loses_lines_and_says_how_many() -> None:
    spool = LogSpool()
    spool.append(["kept"])
    os.close(spool._segments[-1].fd)
    spool._segments[-1].fd = os.open("/dev/full", os.O_RDWR)
    spool.append(["lost"] * 3)
    assert spool.lost == 3
    assert len(spool) == 4
    spool.close()


def test_a_line_that_is_not_there_is_an_index_error() -> None:
    spool = LogSpool()
    with pytest.raises(IndexError):
        spool.line(0)
    spool.close()
