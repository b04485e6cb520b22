"""Expressions that would take for ever on a line are given up, and nothing else waits for them."""

import re
import threading
import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.errors import UsageError
from kimi_console.store.expression import GIVEN_UP, LINE, Expression

ENDLESS = r"(a|aa)+$"
LINE_OF_A = "a" * 80 + "!"


def test_a_line_on_which_it_takes_too_long_has_no_match_and_too_many_end_it() -> None:
    endless = Expression(ENDLESS)
    assert endless.search("baaa") is not None
    began = time.monotonic()
    for _ in range(GIVEN_UP):
        assert endless.search(LINE_OF_A) is None
    assert time.monotonic() - began > GIVEN_UP * LINE / 2, "this one is not endless: the test shows nothing"
    with pytest.raises(UsageError, match="takes too long on too many lines"):
        endless.search(LINE_OF_A)
    assert list(Expression(ENDLESS).finditer(LINE_OF_A)) == []


def test_others_go_on_while_it_matches() -> None:
    endless, count = Expression(ENDLESS), 0
    thread = threading.Thread(target=lambda: [endless.search(LINE_OF_A) for _ in range(GIVEN_UP)])
    thread.start()
    while thread.is_alive():
        count += 1
        time.sleep(0.001)
    assert count > 20


@given(st.text("ab(){}[]*+?.|^$\\1", max_size=12), st.text("ab.{1", max_size=20))
def test_it_finds_what_python_finds(source: str, line: str) -> None:
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            expected = re.compile(source)
        found = Expression(source)
    except (re.error, UsageError):
        return
    assert (found.search(line) is None) == (expected.search(line) is None)
