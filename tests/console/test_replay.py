"""Replaying recordings, journals and plain logs: the same events, at any speed, or one sentence."""

import asyncio
import json
import resource
import time
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.errors import UsageError
from kimi_agent.model.events import Event, LogLines, Note
from kimi_agent.model.phases import PHASES, READY
from kimi_agent.model.reduce import fold
from kimi_agent.wire.codec import encode_event
from kimi_console.source.kinds import is_log
from kimi_console.source.logfile import log_lines
from kimi_console.source.recorder import Recorder
from kimi_console.source.replay import ReplaySource, open_events
from kimi_console.source.session import Session
from kimi_console.source.when import parse_at

LOGS = Path(__file__).parent.parent / "logs"


def notes(count: int, step: float = 1.0) -> list[Event]:
    return [Event(n, 1000.0 + step * n, Note("info", f"note {n}")) for n in range(1, count + 1)]


def write(path: Path, events: list[Event], tail: bytes = b"") -> Path:
    path.write_bytes(b"".join(encode_event(event) + b"\n" for event in events) + tail)
    return path


async def played(source: ReplaySource) -> list[Event]:
    return [event async for batch in source.batches() for event in batch]


async def test_a_recording_comes_back_as_it_was_at_full_speed(tmp_path: Path) -> None:
    events = notes(10_000)
    source = ReplaySource(write(tmp_path / "r.ndjson", events, b'{"seq":10001,"t":1,'), None)
    assert await played(source) == events
    assert source.link.state == "ended"


async def test_speed_divides_the_pauses_and_at_skips_them(tmp_path: Path) -> None:
    path = write(tmp_path / "r.ndjson", notes(40, step=10.0))
    began = time.monotonic()
    assert len(await played(ReplaySource(path, 1000.0, "+3:20"))) == 40
    assert 0.15 <= time.monotonic() - began < 20


async def test_a_pause_holds_the_clock_and_resume_goes_on(tmp_path: Path) -> None:
    source = ReplaySource(write(tmp_path / "r.ndjson", notes(3)), 1000.0)
    source.pause()
    async with aclosing(source.batches()) as batches:
        waiting = asyncio.create_task(anext(batches))
        await asyncio.sleep(0.05)
        first = await waiting if waiting.done() else []
        source.resume()
        rest = [event async for batch in batches for event in batch]
    assert [event.seq for event in [*first, *rest]] == [1, 2, 3]


async def test_a_journals_directory_is_read_in_order(tmp_path: Path) -> None:
    events = notes(30)
    (tmp_path / "journal").mkdir()
    for start in (0, 10, 20):
        write(tmp_path / "journal" / f"{start + 1:012}.ndjson", events[start : start + 10])
    assert list(open_events(tmp_path)) == events
    assert list(open_events(tmp_path / "journal")) == events


async def test_a_recording_of_two_sessions_starts_the_state_anew(tmp_path: Path) -> None:
    again = [replace(event, body=Note("info", f"again {event.seq}")) for event in notes(3)]
    session = Session(ReplaySource(write(tmp_path / "r.ndjson", [*notes(5), *again]), None))
    await session.run()
    assert [entry.text for entry in session.state.ring] == ["again 1", "again 2", "again 3"]
    await session.close()


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
async def test_every_log_becomes_a_run_with_all_its_lines(path: Path) -> None:
    session = Session(ReplaySource(path, None))
    await session.run()
    run = session.state.run
    assert run is not None
    assert run.log_lines == len(session.log) == len(list(log_lines(path)))
    assert session.log.lines(0, len(session.log)) == list(log_lines(path))
    assert run.status in {"READY", "FAILED", "STOPPING", "STARTING"}
    if run.status in {"READY", "STOPPING"} and "rank1" not in path.stem:
        assert {rank.phase for rank in run.ranks} == {READY}
        assert run.ready_time is not None
    if run.status == "FAILED":
        assert run.verdict is not None
        assert run.verdict.kind != "none"
    await session.close()


async def test_a_logs_times_drive_the_clock() -> None:
    events = list(open_events(LOGS / "cpu-llama-tp2-ready.log"))
    times = [event.time for event in events]
    assert times == sorted(times)
    assert times[0] > 0
    state = fold(events)
    assert state.run is not None
    entered = [phase for phase, _ in state.run.ranks[0].entered]
    assert entered == sorted(entered, key=PHASES.index)


@given(cut=st.integers(0, 40_000))
def test_a_log_cut_anywhere_still_replays(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = (LOGS / "cpu-hook-exception.log").read_bytes()
    part = data[: 2_000 + cut]
    path = tmp_path_factory.mktemp("cut") / "server.log"
    path.write_bytes(part)
    lines = [line for event in open_events(path) if isinstance(event.body, LogLines) for line in event.body.lines]
    assert lines == list(log_lines(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\x7fELF\0\0\0", "is a binary file"),
        (b"hello\nworld\n", "is neither a recording nor a server's log"),
        (b'{"foo": 1}\n', "line 1 is not an event"),
        (b'{"seq": 1, "t": 1.0, "k": "note", "d": {}}\n', "line 1 is not an event"),
        (b'{"seq": 1', "holds no event"),
    ],
)
def test_what_cannot_be_played_is_told_in_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        ReplaySource(path)


def test_a_missing_file_and_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        ReplaySource(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds no journal"):
        ReplaySource(tmp_path)


@pytest.mark.parametrize(("text", "offset"), [("+90", 90), ("+1:30", 90), ("+1:00:00.5", 3600.5), ("+0", 0)])
def test_offsets_count_from_the_first_event(text: str, offset: float) -> None:
    assert parse_at(text, 1_700_000_000.0) == 1_700_000_000.0 + offset


def test_a_clock_time_is_the_next_one_in_the_recording() -> None:
    noon = time.mktime((2026, 1, 31, 12, 0, 0, 0, 0, -1))
    assert parse_at("12:30", noon) == noon + 1800
    assert parse_at("11:00:00", noon) == noon + 23 * 3600
    assert parse_at("2026-01-31T13:00:00", noon) == noon + 3600


@pytest.mark.parametrize("text", ["soon", "25:00", "+x", "12"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        parse_at(text, 0.0)


async def test_a_full_disk_ends_the_recording_and_not_the_session(tmp_path: Path) -> None:
    source = ReplaySource(write(tmp_path / "r.ndjson", notes(60_000)), None)
    recorder = Recorder(source, tmp_path / "r.kimirec")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        assert [event.seq async for batch in recorder.batches() for event in batch] == list(range(1, 60_001))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"the recording ended: cannot record to {tmp_path}/r.kimirec" in recorder.link.detail
    await recorder.close()


async def test_a_recording_replays_as_the_events_it_was_made_of(tmp_path: Path) -> None:
    recorder = Recorder(ReplaySource(LOGS / "cpu-hook-exception.log", None), tmp_path / "r.kimirec")
    seen = [event async for batch in recorder.batches() for event in batch]
    await recorder.close()
    assert await played(ReplaySource(tmp_path / "r.kimirec", None)) == seen
    assert not is_log(tmp_path / "r.kimirec")


def test_a_recording_that_cannot_be_opened_is_told_at_once(tmp_path: Path) -> None:
    source = ReplaySource(write(tmp_path / "r.ndjson", notes(3)), None)
    with pytest.raises(UsageError, match="cannot record to"):
        Recorder(source, tmp_path)


def test_a_log_whose_lines_are_json_is_a_log(tmp_path: Path) -> None:
    plain = (LOGS / "cpu-llama-tp2-ready.log").read_text("utf-8").splitlines()
    path = tmp_path / "container-json.log"
    path.write_text("".join(json.dumps({"log": f"{line}\n", "stream": "stderr"}) + "\n" for line in plain), "utf-8")
    assert is_log(path)
    run = fold(open_events(path)).run
    assert run is not None
    assert run.ready_time is not None
