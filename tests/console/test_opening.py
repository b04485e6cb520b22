"""What `replay` is given: packed, piped, growing, large, without times. All of it plays, or a sentence says why not."""

import asyncio
import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import zstandard

from kimi_agent.errors import UsageError
from kimi_agent.model.reduce import fold
from kimi_agent.record.format import Mark
from kimi_console.source.behind import AT_ONCE
from kimi_console.source.opening import Opened
from kimi_console.source.player import Player
from kimi_console.source.replay import open_events
from kimi_console.source.session import Session

LOGS = Path(__file__).parent.parent / "logs"
LOG = LOGS / "cpu-hook-exception.log"


async def played(opened: Opened, until: Callable[[Session, Player], object]) -> Session:
    """Play as fast as possible until something is so."""
    player = await opened.open()
    session = Session(player, None, opened.log)
    changed = asyncio.Event()
    session.on_change(changed.set)
    task = asyncio.create_task(session.run())
    async with asyncio.timeout(60):
        while not until(session, player):
            changed.clear()
            await asyncio.wait({asyncio.create_task(changed.wait())}, timeout=0.2)
    await player.close()
    await task
    await opened.close()
    return session


def ended(session: Session, player: Player) -> bool:
    return player.ended


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gzip", "zstd"])
async def test_a_packed_log_is_the_log(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "server.log.packed"
    path.write_bytes(pack(LOG.read_bytes()))
    session = await played(Opened(path, speed=float("inf")), ended)
    expected = fold(open_events(LOG)).run
    assert session.state.run is not None
    assert expected is not None
    assert session.state.run.verdict == expected.verdict
    assert session.state.run.log_lines == expected.log_lines


def test_a_damaged_packed_log_is_told(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(LOG.read_bytes())[:3000])
    with pytest.raises(UsageError, match="packed and damaged"):
        list(open_events(path))


async def test_a_packed_log_that_breaks_off_plays_up_to_there_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    packed = gzip.compress(LOG.read_bytes() + b"".join(b"%b\n" % os.urandom(32).hex().encode() for _ in range(20_000)))
    assert len(packed) > AT_ONCE
    path.write_bytes(packed[:-5000])
    opened = Opened(path, speed=float("inf"))
    session = await played(opened, ended)
    assert session.player is not None
    assert "packed and damaged" in session.player.trouble
    assert session.state.run is not None
    assert session.state.run.log_lines > 10_000


async def test_a_log_is_there_to_be_read_before_its_first_event(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(LOG.read_bytes() * (1 + AT_ONCE // LOG.stat().st_size))
    opened = Opened(path)
    session = await played(opened, lambda session, player: len(session.log))
    assert session.log is opened.log, "though no line had been found in it yet"
    assert session.log.line(0) == LOG.read_text().splitlines()[0]
    session.log.close()


async def test_a_large_log_is_played_while_it_is_read_and_can_be_looked_through_at_once(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    head = (LOGS / "cpu-llama-tp2-ready.log").read_bytes()
    more = b"".join(
        b"[2026-11-29 14:%02d:%02d TP0] Decode batch, #token: %d\n" % (n // 600, n // 10 % 60, n) for n in range(30_000)
    )
    path.write_bytes(head + more)
    assert path.stat().st_size > AT_ONCE // 2
    while path.stat().st_size <= AT_ONCE:
        path.write_bytes(path.read_bytes() + more)
    with path.open("ab") as file:
        file.write(b"[2026-11-29 14:59:59 TP1] Scheduler hit an exception: Traceback (most recent call last):\n")
    lines = len(path.read_bytes().splitlines())
    marks: list[Mark] = []
    recorded: list[Mark] = []

    def all_of_it(session: Session, player: Player) -> bool:
        if player.ended:
            marks[:], recorded[:] = player.marks, player.recording.marks()
        return player.ended and len(session.log) == lines

    session = await played(Opened(path, speed=float("inf")), all_of_it)
    assert marks == recorded
    assert marks[-1].place > session.state.seq // 2, "the last is of the exception at the end"
    assert session.state.run is not None
    assert session.state.run.log_lines == lines


async def test_a_growing_log_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    whole = LOG.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:30]))
    written = False

    def failed(session: Session, player: Player) -> bool:
        nonlocal written
        if session.state.run is not None and session.state.run.log_lines >= 30 and not written:
            written = True
            with path.open("ab") as file:
                file.writelines(whole[30:])
        return session.state.run is not None and session.state.run.status == "FAILED"

    session = await played(Opened(path, speed=float("inf"), follow=True), failed)
    assert session.state.run is not None
    assert len(session.state.run.ranks) == 2


def test_a_pipe_is_played_as_it_comes() -> None:
    command = [sys.executable, "-m", "kimi_console", "replay", "-", "--json"]
    done = subprocess.run(command, input=LOG.read_bytes(), capture_output=True, check=False, timeout=60)
    kinds = [orjson.loads(line)["k"] for line in done.stdout.splitlines()]
    assert done.returncode == 5
    assert kinds[0] == "run"
    assert {"log", "phase", "status", "verdict", "throughput"} <= set(kinds)


def test_a_log_without_times_plays_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("".join(f"sglang says line {n}\n" for n in range(50)))
    events = list(open_events(path))
    assert events[-1].time - events[0].time == pytest.approx(5.0, abs=0.2)
