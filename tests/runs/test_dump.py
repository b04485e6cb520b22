"""A dump as the agent tells it: its writers' accounts, their errors and their death, and its resumption."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from kimi_agent.errors import KimiError
from kimi_agent.model.events import Body, DumpSampled, ShardCommitted
from kimi_agent.runs import plugin
from kimi_agent.runs.dump import DumpControl
from kimi_agent.shards.verify import verify
from kimi_capture.directory import is_held, shard_prefix
from kimi_capture.format import read_commits, read_shard

SCRIPT = Path(__file__).with_name("writing.py")
AGENTS = Path(__file__).parents[2] / "agents"


class Rank:
    """A rank's process and the agent's side of it."""

    def __init__(self, root: Path, run: str = "run-1", *, sockets: Path | None = None, **env: str) -> None:
        self.sockets = sockets or Path(tempfile.mkdtemp(prefix="kimi-"))
        self.events: list[Body] = []
        self.control = DumpControl(run, self.sockets, root, self.events.append)
        env = os.environ | {"PYTHONPATH": str(AGENTS), "KIMI_CAPTURE_SHARD_MIB": "1"} | env
        command: list[str | Path] = [sys.executable, SCRIPT, self.sockets, root, run]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=env)
        while not plugin.socket_of(self.sockets, self.process.pid).exists():
            assert self.process.poll() is None

    def start(self, name: str, *, resume: bool = False) -> None:
        async def ask() -> None:
            async with asyncio.timeout(20):
                while not any(one.status["stage"] == "configured" for one in await self.control.poll()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await self.control.start(name, resume=resume)

        asyncio.run(ask())

    def serve(self, rid: str, rows: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{rid} {rows}\n")
        self.process.stdin.flush()

    def until(self, holds: str, limit: float = 20) -> DumpSampled:
        """Poll until the dump's sample makes `holds`, an expression of `it`, true."""

        async def wait() -> DumpSampled:
            async with asyncio.timeout(limit):
                while True:
                    await self.control.poll()
                    if eval(holds, {"it": self.last}):
                        return self.last
                    await asyncio.sleep(0.02)

        return asyncio.run(wait())

    @property
    def samples(self) -> list[DumpSampled]:
        return [event for event in self.events if isinstance(event, DumpSampled)]

    @property
    def last(self) -> DumpSampled:
        return self.samples[-1]

    def kill(self) -> psutil.Process | None:
        """Kill the rank; who writes its shards ends by itself, once all are written."""
        scribe = next(iter(psutil.Process(self.process.pid).children()), None) if self.process.poll() is None else None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return scribe

    def end(self) -> None:
        """Kill the rank and wait until all that it handed over is written."""
        if (scribe := self.kill()) is not None:
            psutil.wait_procs([scribe], 20)

    def close(self) -> None:
        self.end()
        assert self.process.stdin is not None
        self.process.stdin.close()
        shutil.rmtree(self.sockets, ignore_errors=True)  # another rank's too


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    running: list[Rank] = []
    yield running
    for rank in running:
        rank.close()


def test_a_killed_writer_s_dump_has_failed_with_what_it_committed(tmp_path: Path, ranks: list[Rank]) -> None:
    ranks.append(rank := Rank(tmp_path))
    rank.start("d")
    for number in range(25):
        rank.serve(f"r{number}", 1000)  # ten to a shard
    before = rank.until("it.captured == 25_000 and it.shards >= 1")
    scribe = rank.kill()
    assert scribe is not None
    after = rank.until("it.state == 'failed'")
    commits, _ = read_commits(tmp_path / "d")
    rows = sum(commit.rows for commit in commits)
    assert after.committed == after.captured == rows >= before.committed > 0
    assert after.served == 25_000 == rows + dict(after.missing)["dump failed"]
    assert after.reason == f"rank TP0 (process {rank.process.pid}) died while it was writing"
    assert any(f"{rows:,} rows are committed" in error for error in after.errors)
    assert [event.path for event in rank.events if isinstance(event, ShardCommitted)] == [
        str(tmp_path / "d" / commit.shard) for commit in commits
    ]
    told = len(rank.samples)
    asyncio.run(rank.control.poll())
    assert len(rank.samples) == told


def test_a_dead_writers_dump_has_failed_once_its_last_shards_are_written(tmp_path: Path, ranks: list[Rank]) -> None:
    ranks.append(rank := Rank(tmp_path))
    rank.start("d")
    (scribe,) = psutil.Process(rank.process.pid).children()
    scribe.suspend()
    for number in range(25):
        rank.serve(f"r{number}", 1000)
    before = rank.until("it.captured == 25_000")
    rank.kill()
    asyncio.run(rank.control.poll())
    assert (rank.last.state, rank.last.shards) == (before.state, 0) == ("writing", 0)

    async def settle() -> None:
        asyncio.get_running_loop().call_soon(scribe.resume)
        await rank.control.settle()

    asyncio.run(settle())
    assert not is_held(tmp_path / "d", shard_prefix("TP0"))
    after = rank.until("it.state == 'failed'")
    assert after.committed == sum(commit.rows for commit in read_commits(tmp_path / "d")[0])


def test_a_rank_that_is_slow_to_answer_is_stopped_too(tmp_path: Path, ranks: list[Rank]) -> None:
    ranks.append(rank := Rank(tmp_path))
    rank.start("d")
    rank.serve("r0", 1000)
    rank.until("it.captured == 1000")

    async def stop() -> None:
        rank.process.send_signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(plugin.DEADLINE + 1, rank.process.send_signal, signal.SIGCONT)
        await rank.control.stop()

    asyncio.run(stop())
    assert (rank.last.state, rank.last.committed) == ("stopped", 1000)


def test_no_dump_begins_while_a_rank_that_may_write_is_silent(tmp_path: Path, ranks: list[Rank]) -> None:
    ranks += [one := Rank(tmp_path), Rank(tmp_path, sockets=one.sockets)]
    one.process.send_signal(signal.SIGSTOP)
    with pytest.raises(KimiError, match=f"the capture plugin of process {one.process.pid} does not answer"):
        asyncio.run(one.control.start("d"))
    assert not (tmp_path / "d").exists()


def test_an_agent_that_comes_after_the_end_says_so(tmp_path: Path, ranks: list[Rank]) -> None:
    ranks.append(rank := Rank(tmp_path))
    rank.start("d")
    for number in range(12):
        rank.serve(f"r{number}", 1000)
    journaled = rank.until("it.shards >= 1")
    rank.end()
    events: list[Body] = []
    DumpControl("run-1", rank.sockets, tmp_path, events.append, journaled).end("it ended while no agent ran")
    (sample,) = [event for event in events if isinstance(event, DumpSampled)]
    assert (sample.state, sample.reason) == ("failed", "it ended while no agent ran")
    assert sample.committed == sum(commit.rows for commit in read_commits(tmp_path / "d")[0])
    told = sum(isinstance(event, ShardCommitted) for event in events)
    assert told == sample.shards - journaled.shards
    events.clear()
    DumpControl("run-1", rank.sockets, tmp_path, events.append, replace(journaled, state="stopped")).end("late")
    assert events == []


def test_a_resumed_dump_goes_on_where_the_dead_one_ended(tmp_path: Path, ranks: list[Rank]) -> None:
    ranks.append(first := Rank(tmp_path))
    first.start("d")
    for number in range(15):
        first.serve(f"r{number}", 1000)
    first.until("it.shards >= 1")
    first.end()
    had = {rid for commit in read_commits(tmp_path / "d")[0] for rid in commit.rids}
    ranks.append(second := Rank(tmp_path, "run-2"))
    with pytest.raises(KimiError, match="exists already"):
        second.start("d")
    with pytest.raises(KimiError, match="no dump 'other'"):
        second.start("other", resume=True)
    second.start("d", resume=True)
    for number in range(20):
        second.serve(f"r{number}", 1000)
    second.until("it.served == 20_000")
    asyncio.run(second.control.stop())
    last = second.last
    # A whole shard without a line may have been taken in at the start.
    assert dict(last.missing)["already in the dump"] >= 1000 * len(had)
    assert last.captured == last.committed == 20_000 - dict(last.missing)["already in the dump"]
    result = verify(tmp_path / "d")
    assert result.ok
    assert result.uncommitted == ()
    rids = [
        sample.rid for commit in result.dump.commits
        for sample in read_shard(tmp_path / "d" / commit.shard).meta.samples
    ]  # fmt: skip
    assert sorted(rids) == sorted(f"r{number}" for number in range(20))
    told = [event for event in second.events if isinstance(event, ShardCommitted)]
    assert sum(shard.rows for shard in told) == last.committed


def test_the_dump_pauses_before_its_disk_is_full(tmp_path: Path, ranks: list[Rank]) -> None:
    ranks.append(rank := Rank(tmp_path, KIMI_CAPTURE_KEEP_FREE_GIB="1e6"))
    rank.start("d")
    for number in range(12):
        rank.serve(f"r{number}", 1000)
    paused = rank.until("it.state == 'paused'")
    assert paused.reason is not None
    assert "GiB are free" in paused.reason
    assert (paused.committed, paused.write_errors) == (0, 0)
    rank.serve("more", 10)
    assert rank.until("it.served == 12_010").state == "paused"


def test_every_failed_write_is_counted(tmp_path: Path, ranks: list[Rank]) -> None:
    ranks.append(rank := Rank(tmp_path))
    rank.start("d")
    (tmp_path / "d").rename(tmp_path / "away")  # the disk is not where it was
    for number in range(12):
        rank.serve(f"r{number}", 1000)
    failed = rank.until("it.state == 'failed' and it.write_errors >= 1")
    assert any("could not be written: No such file" in error for error in failed.errors)
    assert failed.reason is not None
