"""A block gives back its events, whatever they are, and those that the format before it held."""

import struct
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.model.events import Event, LogLines, Note
from kimi_agent.model.reduce import fold, resume_all
from kimi_agent.model.state import RunState, State
from kimi_agent.record.block import unpack
from kimi_agent.record.builder import BlockBuilder, Extent
from kimi_agent.record.reader import Recording
from kimi_agent.record.writer import RecordingWriter
from kimi_agent.wire.codec import decode_lenient, encode_event

from . import recordings

RECORDINGS = Path(__file__).parent.parent.parent / "console" / "kimi_console" / "demo" / "recordings"
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
SAID = st.lists(TEXT, max_size=3).map(tuple)


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    """A log with notes in between; now and then with lines missing, of another run, or numbers out of order."""
    made: list[Event] = []
    line = draw(st.sampled_from([0, 7, 2**40]))
    seq, time = draw(st.integers(0, 2**50)), draw(st.sampled_from([0.0, 1_790_000_000.25, 1e300, -5.5]))
    for _ in range(draw(st.integers(1, 8))):
        body: LogLines | Note = Note("info", draw(TEXT))
        if draw(st.booleans()):
            body = LogLines(draw(st.sampled_from(["r", "r", "r", "other"])), line, draw(SAID))
            line += len(body.lines) + draw(st.sampled_from([0, 0, 0, 0, 3]))
        seq += draw(st.sampled_from([1, 1, 1, 5]))
        time += draw(st.sampled_from([0.0, 0.001, 2.5, 1 / 3]))
        made.append(Event(seq, time, body))
    return made


def built(batches: Iterable[Sequence[Event]]) -> BlockBuilder:
    """A block of these batches."""
    builder = BlockBuilder()
    for batch in batches:
        builder.add(batch)
    return builder


@given(events(), st.data())
def test_what_is_packed_comes_back(given_events: list[Event], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(given_events)))
    block = unpack(built(batch for batch in (given_events[:cut], given_events[cut:]) if batch).pack(Extent()))
    assert block.events() == given_events
    start = data.draw(st.integers(0, len(given_events)))
    stop = data.draw(st.integers(start, len(given_events)))
    began = State(seq=given_events[0].seq - 1, run=RunState(recordings.started("r"), 0.0, status_since=0.0))
    expected = fold(given_events[start:stop], began)
    assert fold(block.telling(start, stop), began) == expected
    assert resume_all(began, given_events[start:stop]) == expected
    for index, event in enumerate(given_events):
        lines = event.body
        lines_said = (lines.first, list(lines.lines)) if isinstance(lines, LogLines) else None
        said = block.said(index)
        assert (None if said is None else (said[0], list(said[1]))) == lines_said


@given(events(), events())
def test_the_end_of_a_block_is_a_block(before: list[Event], after: list[Event]) -> None:
    """As what was said since the last flush is written."""
    builder = built([before])
    extent = builder.extent
    builder.add(after)
    assert unpack(builder.pack(extent)).events() == after
    assert unpack(builder.pack(Extent())).events() == before + after
    said = [len(event.body.lines) for event in after if isinstance(event.body, LogLines)]
    assert builder.lines(extent) == sum(said)


@pytest.mark.parametrize("times", [
    (0.0, 1.5, 1e300), (1e300, 1e300), (float("inf"), float("inf")), (-3.25, 5e8), (0.0005, 0.0015, 0.0025),
    (2.0**41, 2.0**41 + 2.0**-11), (2.0**50, 2.0**50 + 1), (1_790_000_000.1234567, 1_790_000_000.5),
    (1_790_000_000.001, 1_790_000_000.002, 1_789_999_999.999), (5.0, 5.0 + 2.0**22, 5.0),
])  # fmt: skip
def test_any_time_comes_back(times: tuple[float, ...]) -> None:
    made = [Event(seq, time, LogLines("r", seq, ("x",))) for seq, time in enumerate(times, 1)]
    assert list(unpack(built([made]).pack(Extent())).times) == list(times)


@given(st.lists(st.one_of(st.floats(allow_nan=False), st.integers(-(2**42), 2**42).map(lambda ms: ms / 1000)),
                min_size=1))  # fmt: skip
def test_any_times_come_back(times: list[float]) -> None:
    made = [Event(seq, time, LogLines("r", seq, ("x",))) for seq, time in enumerate(times, 1)]
    assert list(unpack(built([made]).pack(Extent())).times) == times


@given(events(), st.data())
def test_bytes_that_are_no_block_are_refused(given_events: list[Event], data: st.DataObject) -> None:
    whole = built([given_events]).pack(Extent())
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        block = unpack(whole[:cut])
    except ValueError:
        return
    assert len(block) == len(given_events), "only the end of the last event's line can be gone unseen"


@given(events())
def test_a_block_of_the_first_format_is_read(given_events: list[Event]) -> None:
    """Numbers and times as they are, then each event's line from its kind on."""
    lines = [encode_event(event) for event in given_events]
    first = given_events[0]
    old = struct.pack("<IBqd", len(lines), 0, first.seq, first.time)
    old += array("q", [event.seq for event in given_events]).tobytes()
    old += array("d", [event.time for event in given_events]).tobytes()
    old += b"\n".join(line[line.index(b',"k":') :] for line in lines)
    assert unpack(old).events() == [decode_lenient(line) for line in lines]


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.kimirec")), ids=lambda path: str(path.stem))
def test_an_older_recording_is_gone_on_with(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    recording = Recording(copy)
    before = [event for batch in recording.batches() for event in batch]
    state = recording.state(len(before))
    recording.close()
    more = [Event(state.seq + 1, before[-1].time + 1, LogLines("r", 0, ("one", "two")))]
    writer = RecordingWriter(copy)
    writer.append(more, state)
    writer.close()
    recording = Recording(copy)
    assert [event for batch in recording.batches() for event in batch] == before + more
    recording.close()
