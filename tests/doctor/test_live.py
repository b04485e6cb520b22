"""The doctor beside the real server: a rank stopped in the start, one stopped while serving, one killed."""

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kimi_agent.doctor.evidence import Evidence, evidence_of
from kimi_agent.doctor.rules import heartbeat
from kimi_agent.doctor.verdict import diagnose, status
from kimi_agent.engine.argv import build_argv
from kimi_agent.engine.http import get_json
from kimi_agent.engine.loads import LOADS_PATH, ThroughputMeter, parse_loads
from kimi_agent.engine.loglines import parse, split_lines
from kimi_agent.engine.phases import Entered, PhaseTracker, Progress
from kimi_agent.engine.titles import expected_ranks
from kimi_agent.errors import UnavailableError
from kimi_agent.host.proc import ProcessSampler, port_holder, process_tree, shm_segments
from kimi_agent.model import events as ev
from kimi_agent.model.phases import ORDER
from kimi_agent.model.reduce import reduce
from kimi_agent.model.state import State
from kimi_console.demo.engine import Engine

pytestmark = pytest.mark.engine

FLAGS = ["--device", "cpu", "--attention-backend", "torch_native", "--trust-remote-code", "--max-total-tokens", "4096",
         "--context-length", "2048", "--disable-radix-cache"]  # fmt: skip
BEAT = 0.5
"""Seconds between two looks, as a supervisor would."""


class Watch:
    """One server under the doctor's eyes: everything a supervisor does, without a journal."""

    def __init__(self, process: "subprocess.Popen[bytes]", argv: list[str], log: Path, port: int) -> None:
        ranks = expected_ranks(2, 1, argv)
        self.process, self.log, self.port = process, log.open("rb"), port
        self.tracker, self.sampler, self.meter = PhaseTracker(ranks), ProcessSampler(process.pid), ThroughputMeter("r")
        self.carry, self.seq, self.state = b"", 0, State()
        self.evidence: Evidence | None = None
        self.entered: list[Entered] = []
        self.segments: set[str] = set()
        self.emit(ev.RunStarted("r", "n", "m", tuple(argv), process.pid, 2, ranks, "127.0.0.1", port, str(log), "p",
                                "0.5.23", capture=False))  # fmt: skip

    def emit(self, body: ev.Body) -> None:
        self.seq += 1
        self.state = reduce(self.state, ev.Event(self.seq, time.time(), body))

    async def look(self) -> tuple[str, ev.Verdict]:
        lines, self.carry = split_lines(self.log.read(), self.carry)
        for line in lines:
            for change in self.tracker.feed(parse(line)):
                if isinstance(change, Progress):
                    self.emit(ev.PhaseProgress("r", change.rank, change.phase, change.done, change.total, change.what))
                else:
                    self.entered.append(change)
                    self.emit(ev.PhaseEntered("r", change.rank, change.phase))
        self.emit(ev.RanksSampled("r", self.sampler.sample()))
        if self.tracker.ready:
            self.emit(await self.poll())
        if self.state.run is None:
            raise AssertionError("no run")
        self.evidence = evidence_of(self.state.run, self.tracker, time.time(), before=self.evidence)
        verdict = diagnose(self.evidence)
        return status(self.evidence, verdict)[0], verdict

    async def poll(self) -> ev.ThroughputSampled:
        try:
            answer = await get_json("127.0.0.1", self.port, LOADS_PATH)
        except UnavailableError as error:
            return self.meter.update(None, time.time(), error.message)
        return self.meter.update(parse_loads(answer), time.time())

    async def until(self, wanted: Callable[[str, ev.Verdict], bool], seconds: float) -> tuple[str, ev.Verdict, float]:
        """Look until a condition holds; how long that took."""
        began = time.monotonic()
        while True:
            word, verdict = await self.look()
            took = time.monotonic() - began
            if wanted(word, verdict):
                return word, verdict, took
            assert took < seconds, f"{word}: {verdict} after {took:.0f} s, {self.tracker.phases}"
            await asyncio.sleep(BEAT)

    def pid(self, rank: str) -> int:
        return next(sample.pid for sample in self.sampler.sample() if sample.rank == rank)


@pytest.fixture
def watch(engine: Engine, tmp_path: Path) -> Iterator[Watch]:
    """A starting server of two ranks; it and all that it left is gone afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = build_argv(str(engine.python), str(engine.models / "tiny-kimi25"), "127.0.0.1", port, 2, 1, FLAGS, None)
    env = {
        **os.environ, "PYTHONPATH": str(engine.shims), "SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SGLANG_NCCL_SO_PATH": "/nonexistent",
        "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
    }  # fmt: skip
    log = tmp_path / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    watched = Watch(process, argv, log, port)
    try:
        yield watched
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        watched.log.close()
        for segment in watched.segments:
            Path(segment).unlink(missing_ok=True)


async def test_a_rank_stopped_or_killed_is_named_within_seconds(watch: Watch) -> None:
    await watch.until(lambda *_: watch.tracker.phases["TP1"] != "import", 120)
    os.kill(watch.pid("TP1"), signal.SIGSTOP)
    word, verdict, took = await watch.until(lambda _, verdict: verdict.kind != "none", 10)
    assert (word, verdict.kind, verdict.rank) == ("HUNG", "straggler", "TP1")
    assert took < 3
    os.kill(watch.pid("TP1"), signal.SIGCONT)

    await watch.until(lambda word, _: word == "READY", 120)
    for rank in ("TP0", "TP1"):
        order = [ORDER[change.phase] for change in watch.entered if change.rank == rank]
        assert order == sorted(set(order))
    assert {"join ranks", "load weights", "after load", "graphs", "warm-up", "ready"} <= {
        change.phase for change in watch.entered if change.rank == "TP1"
    }
    assert (port_holder(watch.port) or "").startswith(f"pid {watch.process.pid} (")
    assert {sample.rank for sample in watch.sampler.sample()} == {"main", "TP0", "TP1", "detokenizer"}
    watch.segments = shm_segments(process_tree(watch.process.pid))
    assert any("sglang_loads_" in segment for segment in watch.segments)
    log = Path(watch.log.name).read_text("utf-8", "replace")
    assert "/v1/loads" not in log.partition("fired up")[2]

    os.kill(watch.pid("TP1"), signal.SIGSTOP)
    word, verdict, took = await watch.until(lambda _, verdict: verdict.kind != "none", 10)
    assert (word, verdict.rank) == ("HUNG", "TP1")
    assert took < 3
    # The heartbeat alone would have told it too, without a rank: HTTP answers all the while.
    await watch.until(lambda *_: watch.evidence is not None and heartbeat(watch.evidence) is not None, 30)
    os.kill(watch.pid("TP1"), signal.SIGCONT)
    await watch.until(lambda word, _: word == "READY", 30)

    os.kill(watch.pid("TP1"), signal.SIGKILL)
    word, verdict, took = await watch.until(lambda _, verdict: verdict.kind != "none", 10)
    assert (word, verdict.kind, verdict.rank) == ("FAILED", "dead_rank", "TP1")
    assert took < 3
