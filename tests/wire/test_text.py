"""Untrusted text cannot act on a terminal once it is clean."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kimi_agent.text import MAX_LINE, clean

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=80)
SPICED = st.lists(
    st.sampled_from(
        ["\x1b", "[", "]", "P", "\x9b", "\x90", "\x9c", "\x07", "\\", "0;", "31m", " ", "\x7f", "\u202e", "ü", "x"]
    )
).map("".join)
BIDI = {"\u061c", "\u200e", "\u200f", *"\u202a\u202b\u202c\u202d\u202e", *"\u2066\u2067\u2068\u2069"}


@given(ANY_TEXT | SPICED)
@example("\x1b\x1b[0m[0m")
@example("a\u2028b\u2029c")
@example("\u200fabc\u061c")
@example("\ud800")
def test_clean_text_holds_no_control_escape_or_hiding_character(text: str) -> None:
    cleaned = clean(text)
    assert not {unicodedata.category(character) for character in cleaned} & {"Cc", "Cs", "Zl", "Zp"}
    assert not BIDI & set(cleaned)
    assert len(cleaned.splitlines()) <= 1


@given(ANY_TEXT | SPICED)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_plain_text_is_left_alone(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;owned\x07title", "title"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\tb\nc\rd", "a    b c d"),
        ("Größe 你好 👩‍🚀", "Größe 你好 👩‍🚀"),
        ("bell\x07", "bell\ufffd"),
        ("rm \u202efdp.exe", "rm \ufffdfdp.exe"),
    ],
)
def test_escapes_go_and_text_stays(raw: str, shown: str) -> None:
    assert clean(raw) == shown


@pytest.mark.parametrize("start", ["", "\x1b]0;", "\x1b[", "\x1bP"])
def test_a_long_line_is_cut_and_says_by_how_much(start: str) -> None:
    cleaned = clean(start + "x" * (MAX_LINE + 5 - len(start)))
    assert cleaned.endswith("… [5 characters cut]")
    assert len(cleaned) < MAX_LINE + 40
