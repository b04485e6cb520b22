"""A real run, recorded by its agent and a console: replayed, it is the same events and, after each, the same state."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from kimi_agent.model.events import Event, RunExited, StatusChanged
from kimi_agent.model.reduce import fold, resume
from kimi_agent.model.state import State
from kimi_agent.paths import Home
from kimi_agent.record.reader import Recording
from kimi_agent.wire.codec import decode_event
from kimi_console.demo.engine import Engine
from kimi_console.demo.profile import demo_profile, free_port
from kimi_console.source.live import LiveSource
from kimi_console.source.local import local_dial
from kimi_console.source.recorder import Recorder

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


async def watch(source: Recorder, live: LiveSource, profile: dict[str, object]) -> list[Event]:
    """Launch, wait until ready, stop, and give every event that a console saw."""
    seen: list[Event] = []
    asked: list[asyncio.Task[object]] = []
    async with aclosing(source.batches()) as batches:
        async for batch in batches:
            seen += batch
            if not asked:
                asked.append(asyncio.create_task(live.request("launch", profile=profile)))
            if any(isinstance(event.body, StatusChanged) and event.body.status == "READY" for event in batch):
                asked.append(asyncio.create_task(live.request("stop")))
            # An answer comes by the link that brings the batches.
            if any(isinstance(event.body, RunExited) for event in seen) and all(task.done() for task in asked):
                break
    await asyncio.gather(*asked)
    return seen


def same_states(recording: Recording, events: Sequence[Event]) -> None:
    """Every event of the recording, and the state after each, are those given."""
    assert [event for batch in recording.batches() for event in batch] == list(events)
    state = State()
    for place, event in enumerate(events):
        state = resume(state, event)
        assert recording.state(place + 1) == state


async def test_a_recorded_run_replays_event_by_event(
    engine: Engine, tmp_path: Path, end_agent: Callable[[Home], None]
) -> None:
    home = Home(tmp_path / "home")
    live = LiveSource("here", local_dial(str(engine.python), home.root))
    await live.start()
    recorder = Recorder(live, tmp_path / "console.kimirec")
    try:
        async with asyncio.timeout(600):
            events = await watch(recorder, live, demo_profile(engine, free_port()))
    finally:
        await recorder.close()
        end_agent(home)

    recording = Recording(tmp_path / "console.kimirec")
    same_states(recording, events)
    assert [mark.kind for mark in recording.marks()].count("launch") == 1
    recording.close()

    (path,) = home.recordings.iterdir()
    agents = Recording(path)
    kept = [event for batch in agents.batches() for event in batch]
    ready = next(place for place, event in enumerate(events) if event.seq == kept[1].seq)
    shared = min(len(events) - ready, len(kept) - 1)
    assert kept[1 : 1 + shared] == events[ready : ready + shared]
    assert agents.state(1 + shared) == fold(events)
    agents.close()

    done = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kimi_console", "replay", str(tmp_path / "console.kimirec"), "--speed", "max", "--json",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    told, _ = await done.communicate()
    assert [decode_event(line) for line in told.splitlines()] == events
