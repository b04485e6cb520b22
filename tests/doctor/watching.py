"""A real server under the doctor's eyes: everything a supervisor does, without an agent, a journal or a preflight."""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kimi_agent.doctor.evidence import Evidence, evidence_of
from kimi_agent.doctor.examiner import Examiner
from kimi_agent.doctor.verdict import diagnose, status
from kimi_agent.engine.argv import build_argv
from kimi_agent.engine.http import get_json
from kimi_agent.engine.loads import LOADS_PATH, ThroughputMeter, parse_loads
from kimi_agent.engine.loglines import parse, split_lines
from kimi_agent.engine.phases import Entered, PhaseTracker, Progress
from kimi_agent.engine.titles import expected_ranks
from kimi_agent.errors import UnavailableError
from kimi_agent.host.memory import HostSampler
from kimi_agent.host.proc import ProcessSampler, listening, starttime
from kimi_agent.model import events as ev
from kimi_agent.model.phases import ORDER, WARM_UP
from kimi_agent.model.reduce import reduce
from kimi_agent.model.state import State
from kimi_agent.runs import plugin, teardown
from kimi_agent.runs.record import RUN_VARIABLE
from kimi_agent.runs.teardown import Footprint
from kimi_console.demo.engine import Engine
from kimi_console.demo.profile import free_port

FLAGS = ("--device", "cpu", "--attention-backend", "torch_native", "--trust-remote-code", "--max-total-tokens", "4096",
         "--context-length", "2048", "--disable-radix-cache")  # fmt: skip
BEAT = 0.5
"""Seconds between two looks, as a supervisor would."""
PLUGIN = Path(__file__).parent / "plugin"
WITHIN = 60.0
"""Seconds from the last sign of life to the verdict."""


@dataclass(frozen=True)
class Launch:
    """How a server is launched."""

    model: str = "tiny-kimi25"
    tp: int = 2
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    fault: str = ""
    """For the fault plugin."""
    layers: tuple[int, ...] | None = None
    """Layers to capture."""
    plugin: bool = False
    """Whether the doctor expects the capture plugin."""
    wrapper: tuple[str, ...] = ()
    """What the command is run by."""
    port: int | None = None


class Watch:
    """One server under the doctor's eyes."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", argv: list[str], log: Path, port: int, launch: Launch, sockets: Path
    ) -> None:
        ranks = expected_ranks(launch.tp, 1, argv)
        self.process, self.log, self.port, self.sockets = process, log.open("rb"), port, sockets
        self.tracker, self.sampler, self.meter = PhaseTracker(ranks), ProcessSampler(process.pid), ThroughputMeter("r")
        self.carry, self.seq, self.state = b"", 0, State()
        self.evidence: Evidence | None = None
        self.entered: list[Entered] = []
        self.footprint = Footprint(run_name(port), process.pid, {process.pid: starttime(process.pid) or 0})
        started = ev.RunStarted("r", "n", launch.model, tuple(argv), process.pid, launch.tp, ranks, "127.0.0.1", port,
                                str(log), "p", "0.5.23", capture=launch.plugin)  # fmt: skip
        self.emit(started)
        self.examiner, self.host = Examiner(started, time.time(), sockets), HostSampler()

    def emit(self, body: ev.Body) -> None:
        self.seq += 1
        self.state = reduce(self.state, ev.Event(self.seq, time.time(), body))

    async def look(self) -> tuple[str, ev.Verdict]:
        """One look: the status word and the verdict."""
        self._read()
        self.emit(ev.RanksSampled("r", self.sampler.sample()))
        self.footprint.observe()
        if self.tracker.ready:
            self.emit(await self.poll())
        run = self.state.run
        if run is None:
            raise AssertionError("no run")
        code = self.process.poll()
        if code is not None and run.exited is None:
            self._read()
            self.emit(ev.RunExited("r", code, asked=False))
            run = self.state.run or run
        late = min(ORDER[rank.phase] for rank in run.ranks) >= ORDER[WARM_UP]
        pids = plugin.pids(self.sockets)
        host_cpu = self.host.sample().cpu
        open_now = listening(self.port) if late else None
        seen = self.examiner.seen((), "no NVIDIA driver on this host", open_now, pids, host_cpu)
        self.evidence = evidence_of(run, self.tracker, time.time(), before=self.evidence, seen=seen)
        verdict = diagnose(self.evidence)
        self.examiner.consider(self.evidence, verdict)
        return status(self.evidence, verdict)[0], verdict

    def _read(self) -> None:
        lines, self.carry = split_lines(self.log.read(), self.carry)
        for line in lines:
            for change in self.tracker.feed(parse(line)):
                if isinstance(change, Progress):
                    self.emit(ev.PhaseProgress("r", change.rank, change.phase, change.done, change.total, change.what))
                else:
                    self.entered.append(change)
                    self.emit(ev.PhaseEntered("r", change.rank, change.phase))

    async def poll(self) -> ev.ThroughputSampled:
        """Ask for the load, as a supervisor does once a second."""
        try:
            answer = await get_json("127.0.0.1", self.port, LOADS_PATH)
        except UnavailableError as error:
            return self.meter.update(None, time.time(), error.message)
        return self.meter.update(parse_loads(answer), time.time())

    async def until(self, wanted: Callable[[str, ev.Verdict], object], seconds: float) -> tuple[str, ev.Verdict, float]:
        """Look until a condition holds; how long that took."""
        began = time.monotonic()
        while True:
            word, verdict = await self.look()
            took = time.monotonic() - began
            if wanted(word, verdict):
                return word, verdict, took
            assert took < seconds, f"{word}: {verdict} after {took:.0f} s, {self.tracker.phases}\n{self.tail()}"
            await asyncio.sleep(BEAT)

    async def named(self, kind: str, limit: float = 600.0) -> ev.Verdict:
        """Look until the doctor names something; it is this kind, and said within a minute of the last progress."""
        word, verdict, _ = await self.until(lambda _, verdict: verdict.kind != "none", limit)
        assert verdict.kind == kind, f"{word}: {verdict}\n{self.tail()}"
        # What has failed needs no minute: it is told when it ends, however long the start took until then.
        assert word == "FAILED" or self.silent <= WITHIN
        self.note(verdict, 0.0 if word == "FAILED" else None)
        return verdict

    def note(self, verdict: ev.Verdict, seconds: float | None = None) -> None:
        """Keep the time of a verdict for the table of times, where one is wanted (`KIMI_VERDICT_TIMES`)."""
        table = os.environ.get("KIMI_VERDICT_TIMES")
        if table:
            test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition("::")[2].partition(" ")[0]
            took = self.silent if seconds is None else seconds
            with Path(table).open("a") as file:
                file.write(f"{test}\t{verdict.kind}\t{verdict.rank or '-'}\t{took:.1f}\n")

    @property
    def silent(self) -> float:
        """Seconds since the last progress at the last look."""
        return (self.evidence.silent or 0.0) if self.evidence is not None else 0.0

    def pid(self, rank: str) -> int:
        """The process of a rank."""
        return next(sample.pid for sample in self.sampler.sample() if sample.rank == rank)

    def tail(self) -> str:
        """The end of the log."""
        return Path(self.log.name).read_text("utf-8", "replace")[-3000:]


def run_name(port: int) -> str:
    """By what the processes of the server on this port are known."""
    return f"watched-{os.getpid()}-{port}"


def environment(engine: Engine, launch: Launch, run: str) -> dict[str, str]:
    """The server's environment."""
    path = [str(PLUGIN), str(engine.shims)]
    return {
        **os.environ, "PYTHONPATH": os.pathsep.join(path), "SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SGLANG_NCCL_SO_PATH": "/nonexistent",
        "SGLANG_CPU_OMP_THREADS_BIND": "0|1", "KIMI_TEST_FAULT": launch.fault, RUN_VARIABLE: run,
        **launch.env,
    }  # fmt: skip


@asynccontextmanager
async def watched(engine: Engine, directory: Path, launch: Launch | None = None) -> AsyncIterator[Watch]:
    """A starting server; it and all that it left is gone afterwards."""
    launch = launch or Launch()
    port = launch.port or free_port()
    model = launch.model if "/" in launch.model else str(engine.models / launch.model)
    argv = build_argv(str(engine.python), model, "127.0.0.1", port, launch.tp, 1, [*FLAGS, *launch.flags],
                      list(launch.layers) if launch.layers else None)  # fmt: skip
    log, sockets = directory / f"server-{port}.log", directory / "s"
    sockets.mkdir(exist_ok=True)
    process = _spawn([*launch.wrapper, *argv], environment(engine, launch, run_name(port)), log)
    watch = Watch(process, argv, log, port, launch, sockets)
    try:
        yield watch
    finally:
        await watch.examiner.close()
        await teardown.kill(watch.footprint)
        process.wait()
        watch.log.close()
        assert teardown.release(watch.footprint, directory / "none", directory / "none") == ()


def _spawn(command: list[str], env: dict[str, str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as out:
        return subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
