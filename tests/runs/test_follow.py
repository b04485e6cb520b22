"""Following a log: every line once, by whoever comes next, from a noted place or from the start."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_agent.runs import follow
from kimi_agent.runs.follow import LogFollower
from kimi_agent.runs.secrets import Secrets

NOTHING = Secrets([])


def everything(follower: LogFollower) -> list[str]:
    found: list[str] = []
    while lines := follower.read():
        found += lines
        follower.note()
    return found


@given(
    first=st.lists(st.text("ab\r\n é", max_size=30), max_size=40),
    then=st.lists(st.text("ab\r\n é", max_size=30), max_size=40),
    wanted=st.integers(0, 80),
)
@settings(max_examples=150)
def test_who_skips_to_a_noted_place_reads_the_same_lines_from_there(
    tmp_path_factory: pytest.TempPathFactory, first: list[str], then: list[str], wanted: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "server.log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "MARK_EVERY", 3)
        follower = LogFollower(path, NOTHING)
        seen: list[str] = []
        for part in (first, then):
            with path.open("ab") as file:
                file.write("\n".join(part).encode())
            seen += everything(follower)
        seen += follower.rest()
        other = LogFollower(path, NOTHING)
        other.skip(wanted)
        assert other.count <= wanted
        at = other.count
        assert [*everything(other), *other.rest()] == seen[at:]


def test_notes_that_make_no_sense_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("a\nb\n")
    for text in ("", "{}", "[1, 2]", '[["x", 1]]', "[[1]]"):
        (tmp_path / "follow.json").write_text(text)
        follower = LogFollower(path, NOTHING)
        follower.skip(2)
        assert follower.read() == ["a", "b"]
