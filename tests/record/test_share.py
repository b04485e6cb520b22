"""What is shared is a slice, is what it says it is, and holds nothing private when asked so."""

import resource
import sqlite3
from pathlib import Path

import orjson
import pytest

from kimi_agent.errors import UsageError
from kimi_agent.model import events as ev
from kimi_agent.model.reduce import fold
from kimi_agent.record.reader import Recording
from kimi_agent.wire.codec import encode_event
from kimi_console.cli import main
from kimi_console.share.export import Wanted, export
from kimi_console.share.writing import new_file

from . import recordings

SECRET = "sk-proj-4f9d8a7b6c5e4d3f2a1b0c9d8e7f6a5b"
EVENTS = recordings.a_run(40)
PRIVATE = [
    *recordings.numbered([
        ev.AgentStarted("0.1.0", "gpu-seven", 9, "/home/alice/venv/bin/python", "0.5.23", "b", 4, 1 << 30),
        recordings.started(),
        ev.LogLines("r1", 0, (f"token {SECRET} from 10.20.30.40 on gpu-seven", "reading /home/alice/data/x.json")),
        ev.Note("error", "alice@example.com could not be told on gpu-seven"),
        ev.ShardCommitted("r1", "d", "/home/alice/dumps/d/shard-0", 5, 1, 100),
    ]),
]  # fmt: skip


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return recordings.record(tmp_path / "whole.kimirec", EVENTS)


def test_a_slice_holds_the_state_before_it_and_the_events_of_its_time(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "part.kimirec"
    begin, end = 1010.0, 1020.0
    whole = Recording(recording)
    export(whole, Wanted(out, begin, end))
    whole.close()
    part = Recording(out)
    events = [event for batch in part.batches() for event in batch]
    assert events[1:] == [event for event in EVENTS if begin < event.time <= end]
    assert part.state(len(part)) == fold(event for event in EVENTS if event.time <= end)
    part.close()


def test_the_commands_files_are_what_their_suffix_says(recording: Path, tmp_path: Path) -> None:
    for name in ("log.txt", "state.json", "screen.svg"):
        assert main(["export", str(recording), str(tmp_path / name), "--to", "+0:10"]) == 0
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert lines == [f"r1 line {n}" for n in range(len(lines))]
    state = orjson.loads((tmp_path / "state.json").read_bytes())
    assert state["run"]["started"]["run"] == "r1"
    assert state["run"]["log_lines"] == len(lines)
    assert (tmp_path / "screen.svg").read_text().startswith("<svg")
    assert "REPLAY" in (tmp_path / "screen.svg").read_text() or "ended" in (tmp_path / "screen.svg").read_text()


@pytest.mark.parametrize("name", ["part.kimirec", "part.log", "part.json", "part.svg"])
def test_nothing_private_is_in_what_was_anonymised(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = recordings.record(tmp_path / "private.kimirec", PRIVATE)
    out = tmp_path / name
    assert main(["export", str(source), str(out), "--anonymise"]) == 0
    assert "replaced: " in capsys.readouterr().err
    data = out.read_bytes()
    if name.endswith(".kimirec"):
        recording = Recording(out)
        data = (
            b"\n".join(encode_event(event) for batch in recording.batches() for event in batch)
            + repr(recording.marks()).encode()
        )
        state = recording.state(len(recording))
        assert state.run is not None
        assert state.run.log_lines == 2
        recording.close()
        data += repr(sqlite3.connect(out).execute("SELECT * FROM meta").fetchall()).encode()
    for private in (SECRET, "gpu-seven", "alice", "10.20.30.40"):
        assert private.encode() not in data


@pytest.mark.parametrize("name", ["part.kimirec", "part.log", "part.json", "part.svg"])
def test_what_does_not_fit_on_the_disk_is_not_there_at_all(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    there = set(tmp_path.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        assert main(["export", str(recording), str(tmp_path / name)]) != 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert set(tmp_path.iterdir()) == there


def test_a_file_that_came_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"

    def write() -> None:
        with new_file(path):
            path.write_text("somebody else's")
            path.open("x")

    with pytest.raises(UsageError, match=r"notes\.txt exists"):
        write()
    assert path.read_text() == "somebody else's"


def test_a_file_that_exists_is_left_alone(recording: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    whole = Recording(recording)
    with pytest.raises(UsageError, match=r"notes\.txt exists"):
        export(whole, Wanted(tmp_path / "notes.txt"))
    with pytest.raises(UsageError, match="no suffix that says what to write"):
        export(whole, Wanted(tmp_path / "notes"))
    whole.close()
