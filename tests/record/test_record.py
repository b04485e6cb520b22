"""A recording gives back every event and, at every place, the state that was there; or it says why not."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_agent.errors import KimiError
from kimi_agent.model.events import Event, LogLines, Note, Snapshot
from kimi_agent.model.reduce import resume
from kimi_agent.model.state import State
from kimi_agent.record.format import VERSION, RecordingError
from kimi_agent.record.reader import Recording
from kimi_agent.record.states import decode_state, encode_state
from kimi_agent.record.writer import RecordingWriter
from kimi_agent.wire.codec import encode_event

from . import recordings

TWO_RUNS = [*recordings.a_run(), *recordings.a_run(60, "r2", first=200, begin=2000.0)]
"""Two launches in one journal, with a hole in its numbers."""


def states(events: list[Event]) -> list[State]:
    """The state before each event, and after the last."""
    found = [State()]
    for event in events:
        found.append(resume(found[-1], event))
    return found


def everything(recording: Recording) -> list[Event]:
    return [event for batch in recording.batches() for event in batch]


@pytest.mark.parametrize("batch", [1, 7, 5000])
def test_every_event_and_every_state_comes_back(tmp_path: Path, batch: int) -> None:
    recording = Recording(recordings.record(tmp_path / "r.kimirec", TWO_RUNS, batch))
    assert everything(recording) == TWO_RUNS
    assert (len(recording), recording.begin, recording.end) == (len(TWO_RUNS), 1000.0, TWO_RUNS[-1].time)
    expected = states(TWO_RUNS)
    for place in [*range(len(TWO_RUNS) + 1), *range(len(TWO_RUNS), 0, -7)]:
        assert recording.state(place) == expected[place]
    recording.close()


def test_states_are_equal_over_block_and_checkpoint_boundaries(tmp_path: Path) -> None:
    events = recordings.numbered([recordings.started(), *(LogLines("r1", n, (f"line {n}",)) for n in range(9000))])
    recording = Recording(recordings.record(tmp_path / "r.kimirec", events, 500))
    expected = states(events)
    for place in (0, 1, 2047, 2048, 2049, 4096, 8999, 9001):
        assert recording.state(place) == expected[place]
        assert [event.seq for batch in recording.batches(place) for event in batch] == list(range(place + 1, 9002))
    recording.close()


def test_a_time_finds_its_place_and_marks_say_what_happened(tmp_path: Path) -> None:
    recording = Recording(recordings.record(tmp_path / "r.kimirec", TWO_RUNS))
    for place, event in enumerate(TWO_RUNS):
        assert recording.place_at(event.time) == place + 1
    assert recording.place_at(0.0) == 0
    kinds = [mark.kind for mark in recording.marks()]
    assert kinds[:5] == ["launch", "phase", "phase", "phase", "error"]
    assert kinds.count("launch") == 2
    assert {"verdict", "exit"} < set(kinds)
    assert all(recording.event(mark.place).time == mark.time for mark in recording.marks())
    recording.close()


def test_the_log_before_a_place_is_that_of_its_run(tmp_path: Path) -> None:
    recording = Recording(recordings.record(tmp_path / "r.kimirec", TWO_RUNS))
    second = next(place for place, event in enumerate(TWO_RUNS) if event.seq == 200)
    assert recording.log(second, 3) == (37, [f"r1 line {n}" for n in (37, 38, 39)])
    assert recording.log(second + 2, 10) == (0, ["r2 line 0"])
    assert recording.log(len(TWO_RUNS), 1000) == (0, [f"r2 line {n}" for n in range(60)])
    assert recording.log(0, 10) == (0, [])
    recording.close()


def test_a_search_finds_the_next_and_the_last_line(tmp_path: Path) -> None:
    recording = Recording(recordings.record(tmp_path / "r.kimirec", TWO_RUNS))
    places = [n for n, e in enumerate(TWO_RUNS) if isinstance(e.body, LogLines) and e.body.lines[0].endswith("line 7")]
    matches = lambda line: line.endswith("line 7")  # noqa: E731
    assert recording.find(matches, 0) == places[0]
    assert recording.find(matches, places[0] + 1) == places[1]
    assert recording.find(matches, places[1] + 1) is None
    assert recording.find(matches, len(TWO_RUNS), backward=True) == places[1]
    assert recording.find(matches, places[1], backward=True) == places[0]
    recording.close()


def test_a_recording_begun_in_the_middle_holds_the_state_and_the_log_it_began_with(tmp_path: Path) -> None:
    events, tail = TWO_RUNS[:50], TWO_RUNS[50:60]
    state = states(events)[-1]
    first = Event(state.seq, events[-1].time, Snapshot(state, 3, ("kept 3", "kept 4")))
    recording = Recording(recordings.record(tmp_path / "r.kimirec", [first, *tail]))
    assert everything(recording) == [first, *tail]
    assert recording.state(len(tail) + 1) == states(events + tail)[-1]
    assert recording.log(1, 10) == (3, ["kept 3", "kept 4"])
    recording.close()


def test_going_on_with_a_recording_keeps_what_it_holds(tmp_path: Path) -> None:
    path = recordings.record(tmp_path / "r.kimirec", TWO_RUNS[:30])
    recordings.record(path, TWO_RUNS[30:])
    recording = Recording(path)
    assert everything(recording) == TWO_RUNS
    assert path.stat().st_mode & 0o077 == 0
    assert list(tmp_path.iterdir()) == [path], "a closed recording is one file"
    recording.close()


def test_a_reader_follows_a_recording_that_grows(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "r.kimirec")
    state = State()
    recording = Recording(tmp_path / "r.kimirec")
    for place, event in enumerate(TWO_RUNS):
        writer.append([event], state)
        state = resume(state, event)
        writer.flush()
        assert len(recording) == place + 1
        assert recording.state(place + 1) == state
    writer.close()
    recording.close()


def test_a_killed_writer_loses_only_what_was_not_flushed(tmp_path: Path) -> None:
    path = tmp_path / "r.kimirec"
    program = f"""
import os, pathlib, signal
from kimi_agent.model.events import Event, Note
from kimi_agent.model.state import State
from kimi_agent.record.writer import RecordingWriter
from kimi_agent.wire.codec import encode_event
writer = RecordingWriter(pathlib.Path({str(path)!r}))
for n in range(1, 5001):
    event = Event(n, float(n), Note("info", "x" * 50))
    writer.append([event], State())
    if n == 4500:
        writer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    recording = Recording(path)
    assert [event.seq for event in everything(recording)] == list(range(1, 4501))
    recording.close()


def test_a_newer_format_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = recordings.record(tmp_path / "r.kimirec", TWO_RUNS[:5])
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()
    for opened in (Recording, RecordingWriter):
        with pytest.raises(RecordingError, match=f"is a recording of format {VERSION + 1}, and this version reads up"):
            opened(path)


def test_a_file_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("keep me")
    with pytest.raises(RecordingError, match="exists and is not a recording"):
        RecordingWriter(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "keep me"
    with pytest.raises(RecordingError, match="is not a recording"):
        Recording(tmp_path / "notes.txt")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(RecordingError, match="an SQLite database but not a recording"):
        Recording(tmp_path / "other.db")


def test_states_of_another_version_are_not_used(tmp_path: Path) -> None:
    path = recordings.record(tmp_path / "r.kimirec", TWO_RUNS)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE meta SET value = 'other' WHERE key = 'state'")
        database.execute("UPDATE checkpoints SET data = x'00'")
    database.close()
    recording = Recording(path)
    assert recording.state(len(TWO_RUNS)) == states(TWO_RUNS)[-1]
    recording.close()


def test_a_state_survives_its_bytes() -> None:
    for state in states(TWO_RUNS):
        assert decode_state(encode_state(state)) == state


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording."""
    return recordings.record(tmp_path_factory.mktemp("fuzz") / "r.kimirec", TWO_RUNS)


def read_all(path: Path) -> None:
    """Use every way to read a recording."""
    with closing(Recording(path)) as recording:
        everything(recording)
        recording.marks()
        for place in (0, 1, len(recording) // 2, len(recording)):
            recording.state(place)
            recording.log(place, 100)
            recording.find(lambda line: False, place)


PARTS = st.floats(0, 1, exclude_max=True)


@given(flips=st.lists(st.tuples(PARTS, st.integers(0, 7)), max_size=4), kept=PARTS | st.just(1.0))
@settings(max_examples=150)
def test_a_damaged_recording_gives_events_or_a_sentence(
    intact: Path, tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[float, int]], kept: float
) -> None:
    broken = bytearray(intact.read_bytes())
    for where, bit in flips:
        broken[int(where * len(broken))] ^= 1 << bit
    del broken[int(kept * len(broken)) :]
    path = tmp_path_factory.mktemp("fuzz") / "r.kimirec"
    path.write_bytes(broken)
    try:
        read_all(path)
    except KimiError as error:
        told = error
    else:
        return
    assert str(path) in told.message
    assert "\n" not in str(told)


def test_many_notes_take_little_space(tmp_path: Path) -> None:
    events = recordings.numbered([Note("info", f"request {n} took {n % 7} ms on rank {n % 3}") for n in range(50_000)])
    size = recordings.record(tmp_path / "r.kimirec", events, 2048).stat().st_size
    assert sum(len(encode_event(event)) + 1 for event in events) > 8 * size
