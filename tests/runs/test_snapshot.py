"""What a client and a new agent need of the past: a state and the log's end, not the whole journal."""

import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import psutil
import pytest

from kimi_agent.model.events import Body, Event, LogLines, Note, RunExited, RunStarted, Snapshot
from kimi_agent.model.reduce import fold, resume
from kimi_agent.model.state import State
from kimi_agent.paths import Home
from kimi_agent.record.reader import Recording
from kimi_agent.record.shelf import Limits
from kimi_agent.runs.checkpoint import Checkpoints
from kimi_agent.runs.journal import Journal
from kimi_agent.runs.recorder import RunRecorder
from kimi_agent.wire.client import Client
from kimi_agent.wire.codec import MAX_LINE, decode_event
from kimi_agent.wire.snapshot import snapshot_line

Dial = Callable[[], Client]


def started(run: str = "r1", *, adopted: bool = False) -> RunStarted:
    return RunStarted(run, "n", "/m", (), 1, 1, ("TP0",), "h", 1, "/l", "/p", None, False, adopted=adopted)


def a_journal(directory: Path, count: int) -> State:
    """A journal of one run with `count` lines; its state."""
    journal = Journal(directory)
    state = State()
    bodies: list[Body] = [started(), *(LogLines("r1", n, (f"line {n}",)) for n in range(count))]
    for body in bodies:
        event = journal.append(body)
        assert event is not None
        state = resume(state, event)
    journal.close()
    return state


def test_a_first_subscription_begins_with_the_state(dial: Dial) -> None:
    client = dial()
    client.request("subscribe", epoch=None, after=0, snapshot=True)
    first = decode_event(next(client.events()))
    assert isinstance(first.body, Snapshot)
    assert first.seq >= 2
    full = dial()
    full.request("subscribe", epoch=None, after=0)
    past = [decode_event(line) for line in islice(full.events(), first.seq)]
    assert first.body.state == fold(past)
    assert decode_event(next(client.events())).seq == first.seq + 1


def test_resuming_gets_events_and_no_snapshot(dial: Dial) -> None:
    client = dial()
    client.request("subscribe", epoch=client.hello["epoch"], after=1, snapshot=True)
    event = decode_event(next(client.events()))
    assert event.seq == 2
    assert not isinstance(event.body, Snapshot)


def test_an_agent_starts_from_the_state_it_kept(dial: Dial, home: Home) -> None:
    expected = a_journal(home.journal, 30_000)
    first = dial()
    first.request("shutdown")
    psutil.wait_procs([psutil.Process(first.hello["pid"])] if psutil.pid_exists(first.hello["pid"]) else [], 10)
    kept = Checkpoints(home.journal).newest(10**9)
    assert kept.seq >= expected.seq
    assert kept.run == expected.run
    began = time.process_time()
    journal = Journal(home.journal)
    state = fold(journal.events(kept.seq), kept)
    assert time.process_time() - began < 0.5
    assert state == fold(journal.events())
    journal.close()


def test_a_damaged_or_foreign_state_is_passed_over(tmp_path: Path) -> None:
    state = a_journal(tmp_path / "j", 10)
    kept = Checkpoints(tmp_path / "j")
    kept.save(fold([Event(5, 1.0, Note("info", "x"))]))
    kept.save(state)
    (newest,) = (tmp_path / "j").glob("*11-*.state")
    newest.write_bytes(newest.read_bytes()[:-3])
    assert kept.newest(11).seq == 5
    assert kept.newest(4) == State()
    kept.save(state)
    assert kept.newest(11) == state
    assert len(list((tmp_path / "j").glob("*.state"))) == 2


def test_a_snapshot_holds_as_much_log_as_a_line_of_the_wire_can(tmp_path: Path) -> None:
    state = a_journal(tmp_path / "j", 5)
    lines = [f'{n} "quoted" {"x" * 900}' for n in range(5000)]
    line = snapshot_line(state, 100, lines)
    assert line is not None
    assert MAX_LINE // 3 < len(line) <= MAX_LINE
    body = decode_event(line).body
    assert isinstance(body, Snapshot)
    assert body.state == state
    assert list(body.lines) == lines[body.first - 100 :]


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[RunRecorder]:
    recorder = RunRecorder(tmp_path / "recordings", Limits(part_bytes=60_000))
    yield recorder
    recorder.close()


async def test_every_run_is_recorded_in_parts_that_each_hold_all(recorder: RunRecorder, tmp_path: Path) -> None:
    state = State()

    def take(number: int, body: Note | LogLines | RunStarted | RunExited) -> None:
        nonlocal state
        event = Event(number, 100.0 + number, body)
        before, state = state, resume(state, event)
        recorder.take(event, before)

    take(1, Note("info", "before the run"))
    take(2, started())
    for n in range(20_000):
        take(3 + n, LogLines("r1", n, (f"line {n} {os.urandom(8).hex()}",)))
    first, lines = recorder.log("r1", 50)
    assert (first, len(lines)) == (19_950, 50)
    take(20_003, RunExited("r1", 0, True))
    recorder.close()
    parts = sorted((tmp_path / "recordings").iterdir(), key=lambda path: (len(path.name), path.name))
    assert [path.name for path in parts][:3] == ["r1.kimirec", "r1.2.kimirec", "r1.3.kimirec"]
    for path, following in zip(parts, [*parts[1:], None], strict=True):
        recording = Recording(path)
        last = recording.state(len(recording))
        assert last.run is not None
        assert last.run.started == started()
        if following is None:
            assert last == state
        recording.close()
