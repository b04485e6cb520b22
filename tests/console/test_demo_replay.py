"""The hangs that come with the console: real, small, with their verdict, and with nothing private in them."""

import getpass
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kimi_agent.errors import UsageError
from kimi_agent.model.reduce import resume
from kimi_agent.model.state import State
from kimi_agent.record.reader import Recording
from kimi_agent.wire.codec import encode_event
from kimi_console.demo.replay import FIRST, bundled, replay_demo


@pytest.mark.parametrize("name", bundled())
def test_each_recording_shows_a_hang_and_what_became_of_it(name: str) -> None:
    path = bundled()[name]
    assert path.stat().st_size < 200_000
    with closing(Recording(path)) as recording:
        verdicts = [mark for mark in recording.marks() if mark.kind == "verdict"]
        hung = recording.state(verdicts[0].place + 1).run
        assert hung is not None
        assert hung.verdict is not None
        assert hung.verdict.evidence
        everything = b"\n".join(encode_event(event) for batch in recording.batches() for event in batch)
    for private in (socket.gethostname(), str(Path.home()), str(Path.cwd()), getpass.getuser()):
        assert f'"{private}"'.encode() not in everything
        assert f"{private}/".encode() not in everything


@pytest.mark.parametrize("name", bundled())
def test_a_real_run_has_the_same_state_wherever_it_is_entered(name: str) -> None:
    with closing(Recording(bundled()[name])) as recording:
        events = [event for batch in recording.batches() for event in batch]
        states = [State()]
        for event in events:
            states.append(resume(states[-1], event))
        for place in [*range(len(events) + 1), *range(len(events), -1, -5)]:
            assert recording.state(place) == states[place]


def test_it_plays_without_an_engine(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kimi_console", "demo", "--replay", "--headless"],
        capture_output=True, check=False, timeout=60, text=True, cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": ""},
    )  # fmt: skip
    assert "→ HUNG" in done.stdout, done.stderr
    assert FIRST in bundled()


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(UsageError, match=f"there is no recording nope. One of: .*{FIRST}"):
        replay_demo("nope", headless=True, as_json=False)


def test_the_first_screen_waits_for_nothing_that_it_does_not_show() -> None:
    program = "import sys, kimi_console.demo.replay, kimi_console.tui.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    slow = {"asyncssh", "numpy", "kimi_agent.doctor.logfile", "kimi_agent.redact", "kimi_console.source.logfile"}
    assert not slow & set(done.stdout.split())
