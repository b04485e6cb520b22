"""A real agent behind a real SSH server whose connections die: every event arrives once."""

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path

import psutil

from kimi_agent.bundle import ensure_bundle
from kimi_agent.model.events import AgentStarted, Event, HostSampled
from kimi_console.remote.bootstrap import Attachment
from kimi_console.remote.dial import attach
from kimi_console.remote.ssh import open_ssh
from kimi_console.source.client import Transport
from kimi_console.source.live import LiveSource, Patience
from kimi_console.source.recorder import Recorder
from kimi_console.source.replay import open_events

from .conftest import Sshd


async def dial() -> Transport:
    """The agent of the far home, run by this Python: it needs no SGLang to watch a host."""
    connection = await open_ssh("gpu-07")
    return await attach(connection, "gpu-07", Attachment(sys.executable, str(ensure_bundle())), read_only=False)


async def test_killed_connections_lose_and_double_nothing(sshd: Sshd) -> None:
    sshd.trust()
    source = LiveSource("gpu-07", dial, patience=Patience(first_delay=0.05, last_delay=0.1))
    got: list[Event] = []
    cuts = 0
    async with asyncio.timeout(60), aclosing(source.batches()) as batches:
        async for batch in batches:
            got += batch
            if sum(isinstance(event.body, HostSampled) for event in got) > cuts:
                if cuts == 3:
                    break
                cuts += 1
                sshd.cut_connections()
    await source.close()
    assert isinstance(got[0].body, AgentStarted)
    assert [event.seq for event in got] == list(range(1, len(got) + 1))
    journal = sshd.agent.journal
    assert got == list(open_events(journal))[: len(got)]


async def test_a_host_that_goes_silent_is_told_as_that(sshd: Sshd) -> None:
    sshd.trust()
    source = LiveSource("gpu-07", dial, patience=Patience(first_delay=1000.0, last_delay=1000.0, ping_interval=0.2))
    details: asyncio.Queue[str] = asyncio.Queue()
    source.on_link = lambda link: details.put_nowait(link.detail) if link.state == "lost" else None
    served = asyncio.Event()

    async def follow() -> None:
        async for _ in source.batches():
            served.set()

    following = asyncio.create_task(follow())
    async with asyncio.timeout(60):
        await served.wait()
        for process in psutil.Process(sshd.process.pid).children(recursive=True):
            if process.name().startswith("sshd"):
                process.suspend()
        assert "no sign of life" in await details.get()
        await source.close()
        await following


async def test_a_recording_of_a_session_replays_to_the_same_events(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    source = LiveSource("gpu-07", dial)
    recording = tmp_path / "session.kimirec"
    recorder = Recorder(source, recording)
    got: list[Event] = []
    async with asyncio.timeout(60), aclosing(recorder.batches()) as batches:
        async for batch in batches:
            got += batch
            if len(got) >= 2:
                break
    await recorder.close()
    assert recording.stat().st_mode & 0o777 == 0o600
    assert list(open_events(recording)) == got
