"""The journal: what was appended is what a reader gets, in order, once, over restarts, crashes and rotation."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kimi_agent.errors import KimiError
from kimi_agent.model.events import Event, Gap, Note
from kimi_agent.runs.journal import Journal
from kimi_agent.wire.codec import decode_event, encode_event


def texts(journal: Journal, after: int = 0) -> list[str]:
    return [event.body.text for event in journal.events(after) if isinstance(event.body, Note)]


def note(number: int, size: int = 0) -> Note:
    return Note("info", f"{number}{'x' * size}")


@given(sizes=st.lists(st.integers(0, 900), max_size=60), cut=st.integers(0, 60))
@settings(max_examples=40)
def test_reads_back_everything_over_a_restart(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cut: int
) -> None:
    directory = tmp_path_factory.mktemp("journal")
    expected = [f"{number}{'x' * size}" for number, size in enumerate(sizes)]
    journal = Journal(directory, segment_bytes=2048)
    epoch = journal.epoch
    for number, size in enumerate(sizes):
        if number == cut:
            journal.close()
            journal = Journal(directory, segment_bytes=2048)
        journal.append(note(number, size))
    assert journal.epoch == epoch
    assert texts(journal) == expected
    assert [event.seq for event in journal.events()] == list(range(1, len(sizes) + 1))
    for after in range(len(sizes) + 1):
        assert texts(journal, after) == expected[after:]
    journal.close()


@given(torn=st.integers(1, 200))
@settings(max_examples=30)
def test_a_torn_last_line_is_cut_off(tmp_path_factory: pytest.TempPathFactory, torn: int) -> None:
    directory = tmp_path_factory.mktemp("journal")
    journal = Journal(directory)
    for number in range(3):
        journal.append(note(number))
    journal.close()
    (segment,) = directory.glob("*.ndjson")
    os.truncate(segment, max(0, segment.stat().st_size - torn))
    journal = Journal(directory)
    kept = texts(journal)
    assert kept == ["0", "1", "2"][: len(kept)]
    journal.append(note(9))
    assert texts(journal) == [*kept, "9"]
    assert journal.last == len(kept) + 1
    journal.close()


async def test_follow_hands_out_each_event_once_while_it_grows(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", segment_bytes=4096)
    for number in range(100):
        journal.append(note(number))
    seen: list[int] = []

    async def read() -> None:
        async for lines in journal.follow(40):
            seen.extend(decode_event(line).seq for line in lines)
            if seen[-1] == 300:
                return

    reader = asyncio.create_task(read())
    for number in range(100, 300):
        journal.append(note(number))
        if number % 7 == 0:
            await asyncio.sleep(0)
    await asyncio.wait_for(reader, 10)
    assert seen == list(range(41, 301))
    journal.close()


def bytes_read() -> int:
    """What this process has read by now, from a disk or not."""
    return int(Path("/proc/self/io").read_text().split("rchar: ", 1)[1].split("\n", 1)[0])


async def test_a_reader_that_is_up_to_date_reads_what_is_new_and_not_all_before_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(1000):
        journal.append(note(number, 1000))
    async with aclosing(journal.follow(0)) as batches:
        seen = 0
        while seen < journal.last:
            seen += len(await anext(batches))
        before = bytes_read()
        for number in range(50):
            journal.append(note(number))
            (line,) = await anext(batches)
            assert decode_event(line).seq == journal.last
        assert bytes_read() - before < 100_000
    journal.close()


async def test_what_rotated_away_is_shown_as_a_gap(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", segment_bytes=1024, limit_bytes=4096)
    for number in range(200):
        journal.append(note(number, 50))
    assert 1 < journal.first <= journal.last == 200
    events = list(journal.events(after=5))
    gap = events[0].body
    assert isinstance(gap, Gap)
    assert (gap.first, gap.last, events[0].seq) == (6, journal.first - 1, journal.first - 1)
    assert [event.seq for event in events[1:]] == list(range(journal.first, 201))
    journal.close()


def test_a_second_agent_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    with pytest.raises(KimiError, match=r"another agent has .* open"):
        Journal(tmp_path / "j")
    journal.close()


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process grows within the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_what_a_full_disk_does_not_take_is_read_from_memory_and_written_later(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(note(0))
    async with aclosing(journal.follow(0)) as batches:
        assert len(await anext(batches)) == 1
        with full_disk():
            journal.append(note(1))
            journal.append(note(2))
            assert [decode_event(line).seq for line in await anext(batches)] == [2, 3]
        account = journal.account()
        assert (account.level, "File too large" in account.text) == ("error", True)
        journal.append(note(3))
        assert [decode_event(line).seq for line in await anext(batches)] == [4]
    assert journal.account().text.endswith("is written again")
    journal.close()
    journal = Journal(tmp_path / "j")
    assert texts(journal) == ["0", "1", "2", "3"]
    journal.close()


def test_what_memory_does_not_hold_either_is_a_hole_and_counted(tmp_path: Path) -> None:
    journal = Journal(tmp_path, held_bytes=1000)
    journal.append(note(0))
    with full_disk():
        for number in range(1, 21):
            journal.append(note(number, 100))
    held = [event.seq for event in journal.events(after=1)]
    assert held == list(range(held[0], 22))
    assert 1000 - 250 < sum(len(encode_event(event)) + 1 for event in journal.events(after=1)) <= 1000
    journal.append(note(21))
    assert (journal.account().level, journal.dropped) == ("error", held[0] - 2)
    assert f"{held[0] - 2} events in between are in no file" in journal.account().text
    journal.close()
    journal = Journal(tmp_path)
    assert [event.seq for event in journal.events()] == [1, *held, 22]
    journal.close()


def test_a_segment_that_cannot_be_made_keeps_its_events_waiting(tmp_path: Path) -> None:
    journal = Journal(tmp_path, segment_bytes=200)
    while len(list(tmp_path.glob("*.ndjson"))) == 1 or journal.last < 2:
        journal.append(note(0))
        in_the_way = tmp_path / f"{journal.last + 1:012d}.ndjson"
        if journal.last >= 2:
            in_the_way.mkdir()
    mine = os.open(tmp_path / "mine", os.O_WRONLY | os.O_CREAT)
    journal.append(note(1))
    assert journal.problem
    os.write(mine, b"still open, and nobody else's")
    os.close(mine)
    in_the_way.rmdir()
    journal.append(note(2))
    assert not journal.problem
    assert [event.seq for event in journal.events()] == list(range(1, journal.last + 1))
    assert texts(journal)[-2:] == ["1", "2"]
    assert (tmp_path / "mine").read_bytes() == b"still open, and nobody else's"
    journal.close()


def test_a_journal_that_was_let_go_of_takes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(note(0))
    journal.close()
    after = Journal(tmp_path)
    assert journal.append(note(1)) is None
    assert after.append(note(2)) is not None
    assert texts(after) == ["0", "2"]
    after.close()


class Lives(RuleBasedStateMachine):
    """An agent that is killed at any moment, and a client that resumes after the last event it has seen.

    The disk may be full, too: then what it has not taken is gone with the agent, and the client begins anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = TemporaryDirectory(prefix="kimi-lives-")
        self.journal = Journal(Path(self.place.name), segment_bytes=300)
        self.appended: list[str] = []
        self.seen: list[Event] = []

    @rule(size=st.integers(0, 400))
    def append(self, size: int) -> None:
        self.appended.append(f"{len(self.appended)}{'x' * size}")
        assert self.journal.append(Note("info", self.appended[-1])) is not None

    @rule(size=st.integers(0, 400))
    def append_while_the_disk_is_full(self, size: int) -> None:
        with full_disk():
            self.append(size)

    @rule()
    def read(self) -> None:
        self.seen += self.journal.events(self.seen[-1].seq if self.seen else 0)

    @rule(torn=st.integers(0, 500), begun=st.booleans())
    def kill(self, torn: int, begun: bool) -> None:
        """The end of a life in the middle of a write: of a line that nobody was given, or of a segment's making."""
        if self.journal.problem:
            with full_disk():
                self.journal.close()
            torn = 0
        line = encode_event(Event(self.journal.last + 1, 1.0, Note("info", "y" * 400)))[:torn]
        segments = sorted(Path(self.place.name).glob("*.ndjson"))
        if begun or not segments:
            segments.append(Path(self.place.name) / f"{self.journal.last + 1:012d}.ndjson")
        with segments[-1].open("ab") as file:
            file.write(line)
        if not self.journal.problem:
            self.journal.close()
        self.journal = Journal(Path(self.place.name), segment_bytes=300)
        del self.appended[self.journal.begun :]
        if self.seen and self.seen[-1].seq > self.journal.begun:
            self.seen = []

    @invariant()
    def nothing_is_lost_or_doubled_on_the_way(self) -> None:
        assert [event.seq for event in self.seen] == list(range(1, len(self.seen) + 1))
        assert [event.body for event in self.seen] == [Note("info", text) for text in self.appended[: len(self.seen)]]

    def teardown(self) -> None:
        self.read()
        self.nothing_is_lost_or_doubled_on_the_way()
        assert len(self.seen) == len(self.appended)
        self.journal.close()
        self.place.cleanup()


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=30, stateful_step_count=25)


def test_many_short_lives_keep_the_whole_history(tmp_path: Path) -> None:
    for number in range(60):
        journal = Journal(tmp_path, segment_bytes=4096, limit_bytes=4 * 4096)
        journal.append(Note("info", f"life {number}"))
        journal.close()
    journal = Journal(tmp_path, segment_bytes=4096, limit_bytes=4 * 4096)
    assert [event.seq for event in journal.events()] == list(range(1, 61))
    journal.close()


async def test_a_reader_that_is_overtaken_by_the_limit_is_told_of_one_gap(tmp_path: Path) -> None:
    journal = Journal(tmp_path, segment_bytes=400, limit_bytes=4 * 400)
    for number in range(12):
        journal.append(Note("info", f"early {number} {'x' * 100}"))
    following = journal.follow(journal.first - 1)
    seen = [decode_event(line).seq for line in await anext(following)]
    for number in range(12):
        journal.append(Note("info", f"late {number} {'x' * 100}"))
    while seen[-1] < journal.last:
        seen += [decode_event(line).seq for line in await anext(following)]
    assert seen == sorted(set(seen))
    kept = set(range(journal.first, journal.last + 1))
    assert kept <= set(seen)
    journal.close()
