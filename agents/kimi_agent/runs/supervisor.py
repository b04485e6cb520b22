"""One run under watch: its log, processes, engine, plugin and doctor, each in its own loop, until it is gone."""

import asyncio
import logging
import math
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from kimi_agent.doctor.evidence import Evidence, evidence_of
from kimi_agent.doctor.examiner import Examiner
from kimi_agent.doctor.verdict import diagnose, status
from kimi_agent.engine import options
from kimi_agent.engine.http import REFUSED_SLUG, get_json
from kimi_agent.engine.loads import ThroughputMeter, parse_loads
from kimi_agent.engine.loglines import parse, without_repeats
from kimi_agent.engine.phases import Entered, PhaseTracker
from kimi_agent.errors import KimiError
from kimi_agent.host.proc import ProcessSampler, place_on_gpus
from kimi_agent.host.procfs import listening
from kimi_agent.model.events import (
    Body,
    LogLines,
    LogUnmatched,
    Note,
    PhaseEntered,
    PhaseProgress,
    RanksSampled,
    RunExited,
    StatusChanged,
    Verdict,
    VerdictChanged,
)
from kimi_agent.model.phases import ORDER, WARM_UP
from kimi_agent.model.state import RunState, State
from kimi_agent.paths import Home
from kimi_agent.runs import baseline, launch, plugin, teardown
from kimi_agent.runs.canary import Canary
from kimi_agent.runs.dump import ACTIVE, DumpControl, last_dump
from kimi_agent.runs.follow import LogFollower
from kimi_agent.runs.plan import Plan, scratch
from kimi_agent.runs.record import RunRecord
from kimi_agent.runs.secrets import Secrets
from kimi_agent.runs.teardown import Footprint
from kimi_agent.tasks import end

LOG_PERIOD = 0.1
EXIT_PERIOD = 0.2
SAMPLE_PERIOD = 1.0
FOOTPRINT_PERIOD = 2.0
SERVING_FOOTPRINT_PERIOD = 10.0
VERDICT_PERIOD = 5.0
"""A verdict whose evidence alone has changed is told this often."""
LINES_PER_EVENT = 400
CHARS_PER_EVENT = 200_000
HEAD_LINES, TAIL_LINES = 20_000, 5_000
"""What an agent that finds a run again reads closely of its log; no start writes so many lines."""
HTTP_DEADLINE = 3.0
GPU_DEADLINE = 6.0
"""What the end of a run waits for a new sample of the GPUs, which come every two seconds."""

log = logging.getLogger(__name__)


class Supervisor:
    """Watches one run and owns its end."""

    def __init__(
        self,
        record: RunRecord,
        plan: Plan,
        home: Home,
        *,
        process: subprocess.Popen[bytes] | None,
        emit: Callable[[Body], object],
        state: Callable[[], State],
    ) -> None:
        self.record = record
        self.plan = plan
        self._home = home
        self._process = process
        self._emit = emit
        self._state = state
        self._sockets = home.run_sockets(record.run)
        self._log = LogFollower(home.run(record.run) / "server.log", Secrets.of(plan.argv, os.environ | plan.env))
        self._tracker = PhaseTracker(plan.ranks)
        self._sampler = ProcessSampler(record.pid)
        self._meter = ThroughputMeter(record.run)
        self._footprint = Footprint(record.run, record.pid, {record.pid: record.starttime})
        self._asked = False
        self._reported: set[str] = set()
        self._status = ""
        self._reason = ""
        self._reason_time = 0.0
        self._learned = self._run.ready_time is not None
        self._verdict = Verdict("none", "")
        self._verdict_time = 0.0
        self._evidence: Evidence | None = None
        self._canary = Canary(record.run, plan, emit)
        self._examiner = Examiner(self._run.started, self._run.time, self._sockets)
        self._port_open: bool | None = None
        self._observed = -math.inf
        self._plugin_pids: frozenset[int] | None = None
        self._exits: dict[int, int] = {}
        """Process file descriptors by pid; -1 where the kernel gives none."""
        self._stirred = asyncio.Event()
        self._code: int | None = None
        self.dumps = DumpControl(record.run, self._sockets, plan.dump_root, emit, last_dump(record.run, state()))
        self.gone = asyncio.Event()
        """Set when the run has ended and was cleaned up."""

    async def watch(self) -> None:
        """Watch until the server's main process is gone, then clean up and report the end."""
        await self._catch_up()
        loops = [
            asyncio.create_task(self._every(LOG_PERIOD, self._follow_log, calm=5)),
            asyncio.create_task(self._every(SAMPLE_PERIOD, self._sample, calm=2)),
            asyncio.create_task(self._every(FOOTPRINT_PERIOD, self._observe, calm=5)),
            asyncio.create_task(self._every(SAMPLE_PERIOD, self._poll_engine, calm=2)),
            asyncio.create_task(self._every(SAMPLE_PERIOD, self._poll_plugins, calm=5)),
            asyncio.create_task(self._every(SAMPLE_PERIOD, self._judge, calm=2)),
        ]
        try:
            while not self._ended():
                await self._quiet(EXIT_PERIOD * 5 if is_calm(self._run) else EXIT_PERIOD)
        finally:
            await end(*loops)
            self._close_exits()
            await self._examiner.close()
            await self._canary.close()
        try:
            await self._finish()
        finally:
            self.gone.set()

    async def _quiet(self, seconds: float) -> None:
        """Wait so long, or until a process of the run ends."""
        self._stirred.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stirred.wait(), seconds)

    async def stop(self, why: str = "an operator stopped it") -> tuple[str, ...]:
        """Commit a running dump, stop the server, and say what could not be released."""
        self._asked = True
        self._set_status("STOPPING", why)
        with suppress(KimiError):
            await self.dumps.stop(drain=5.0)
        await teardown.stop(self._footprint, self.plan.profile.limits.stop_grace)
        await self.gone.wait()
        exited = self._run.exited
        return exited.left if exited else ()

    @property
    def _run(self) -> RunState:
        run = self._state().run
        if run is None or run.started.run != self.record.run:
            raise RuntimeError(f"the state does not hold run {self.record.run}")
        return run

    async def _catch_up(self) -> None:
        """After an adoption: go through the lines that are journaled already without journaling them again.

        Of a long log only the start and the newest lines are read closely: what lies between is in the state.
        """
        known = self._run.log_lines
        while self._log.count < known and (lines := self._log.read()):
            first = self._log.count - len(lines)
            for number, line in enumerate(lines[: known - first], first):
                if number < HEAD_LINES or number >= known - TAIL_LINES:
                    self._tracker.feed(parse(line))
                if number % 500 == 0:
                    await asyncio.sleep(0)
            self._take(lines[max(0, known - first) :], max(known, first))
            if self._log.count >= HEAD_LINES:
                self._log.skip(known - TAIL_LINES)

    async def _every(self, period: float, step: Callable[[], Awaitable[None]], *, calm: float = 1.0) -> None:
        """Run one step for ever; a step that fails is reported once for each kind of failure, and tried again.

        Args:
            period: seconds from one beginning to the next.
            step: what is done.
            calm: by how much the period is longer while the server is ready and has nothing to do.
        """
        while True:
            begun = time.monotonic()
            try:
                await step()
            except Exception as error:  # one failing probe must not end the watch; it is reported
                words = f"{step.__name__.strip('_').replace('_', ' ')}: {type(error).__name__}: {error}"
                log.exception("%s", words)
                if words not in self._reported:
                    self._reported.add(words)
                    self._emit(Note("error", f"the agent could not {words}", self.record.run))
            now = period * calm if is_calm(self._run) else period
            await asyncio.sleep(max(0.0, now - (time.monotonic() - begun)))

    async def _follow_log(self) -> None:
        while lines := self._log.read():
            self._take(lines, self._log.count - len(lines))
            self._log.note()
            await asyncio.sleep(0)

    def _take(self, lines: list[str], first: int) -> None:
        """Journal lines and what they say, in order."""
        batch: list[str] = []
        size = 0
        for line in lines:
            batch.append(line)
            size += len(line)
            if len(batch) == LINES_PER_EVENT or size > CHARS_PER_EVENT:
                self._emit(LogLines(self.record.run, first, tuple(batch)))
                first += len(batch)
                batch, size = [], 0
        if batch:
            self._emit(LogLines(self.record.run, first, tuple(batch)))
        for parsed in map(parse, without_repeats(lines) if self._tracker.ready else lines):
            self._meter.feed(parsed, time.time())
            for found in self._tracker.feed(parsed):
                if isinstance(found, Entered):
                    self._emit(PhaseEntered(self.record.run, found.rank, found.phase))
                else:
                    self._emit(
                        PhaseProgress(self.record.run, found.rank, found.phase, found.done, found.total, found.what)
                    )

    async def _sample(self) -> None:
        self._sample_ranks()

    def _sample_ranks(self) -> None:
        host = self._state().host
        samples = place_on_gpus(self._sampler.sample(), host.gpus if host else ())
        self._emit(RanksSampled(self.record.run, samples))
        for sample in samples:
            if sample.pid not in self._exits and sample.state not in "XZ":
                self._exits[sample.pid] = self._on_exit(sample.pid)

    def _on_exit(self, pid: int) -> int:
        """Sample at the very moment a process ends: its peers die of it within milliseconds, and order is the cause."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return -1

        def ended() -> None:
            asyncio.get_running_loop().remove_reader(fd)
            self._stirred.set()
            self._sample_ranks()
            self._look()
            self._footprint.observe()  # what the others hold: they end next

        asyncio.get_running_loop().add_reader(fd, ended)
        return fd

    def _close_exits(self) -> None:
        for fd in self._exits.values():
            if fd >= 0:
                asyncio.get_running_loop().remove_reader(fd)
                os.close(fd)
        self._exits.clear()

    async def _observe(self) -> None:
        """See what the run holds: often while it starts, when it takes most things and fails most."""
        serving = self._serving()
        if not serving:
            self._port_open = listening(self.plan.profile.server.port)
        if not serving or time.monotonic() - self._observed > SERVING_FOOTPRINT_PERIOD:
            self._footprint.observe()
            self._observed = time.monotonic()

    async def _poll_engine(self) -> None:
        if not self._serving():
            return
        server = self.plan.profile.server
        try:
            reply = await get_json(server.host, server.port, "/v1/loads", self._api_key(), HTTP_DEADLINE)
        except KimiError as error:
            self._port_open = error.slug != REFUSED_SLUG
            self._emit(self._meter.update(None, time.time(), error.message))
            return
        self._port_open = True
        self._emit(self._meter.update(parse_loads(reply), time.time()))

    def _serving(self) -> bool:
        """Whether the log says that the port is open."""
        ranks = self._run.ranks
        return bool(ranks) and min(ORDER[rank.phase] for rank in ranks) >= ORDER[WARM_UP]

    def _api_key(self) -> str | None:
        return options.value(self.plan.argv, "--api-key")

    async def _poll_plugins(self) -> None:
        if not self.plan.profile.capture.enabled or not self._sockets.is_dir():
            return
        await self.dumps.poll()
        self._plugin_pids = plugin.pids(self._sockets)

    async def _judge(self) -> None:
        evidence = self._look()
        verdict = diagnose(evidence)
        now = time.monotonic()
        another = (verdict.kind, verdict.rank) != (self._verdict.kind, self._verdict.rank)
        if another or (verdict != self._verdict and now - self._verdict_time > VERDICT_PERIOD):
            self._verdict, self._verdict_time = verdict, now
            self._emit(VerdictChanged(self.record.run, verdict))
        self._examiner.consider(evidence, verdict)
        self._canary.consider(evidence)
        self._tell_unmatched()
        if not self._asked:
            self._set_status(*status(evidence, verdict))
        self._check_start_timeout()

    def _look(self) -> Evidence:
        host = self._state().host
        gpus, no_gpu = (host.gpus, host.no_gpu) if host is not None else ((), "not looked at")
        busy = host.cpu if host is not None else None
        seen = self._examiner.seen(gpus, no_gpu, self._port_open, self._plugin_pids, busy)
        seen = replace(seen, canary=self._canary.answer, canary_time=self._canary.time)
        self._evidence = evidence_of(self._run, self._tracker, time.time(), before=self._evidence, seen=seen)
        return self._evidence

    def _tell_unmatched(self) -> None:
        seen, told = self._tracker, self._run.unmatched
        lines, seconds = seen.unmatched, round(seen.unmatched_seconds, 1)
        if lines and (told is None or told.lines != lines or seconds - told.seconds >= VERDICT_PERIOD):
            self._emit(LogUnmatched(self.record.run, lines, seconds, seen.unmatched_last))

    def _check_start_timeout(self) -> None:
        limit = self.plan.profile.limits.start_timeout
        run = self._run
        if limit is None or self._asked or run.ready_time is not None or time.time() - run.time < limit:
            return
        self._emit(Note("error", f"not ready after {limit:.0f} s (limits.start_timeout): stopping", self.record.run))
        self._asked = True
        self._limit_stop = asyncio.create_task(self.stop())

    def _set_status(self, word: str, reason: str) -> None:
        now = time.monotonic()
        if word == self._status:
            # The reason of a start holds figures that move: it is told now and then, not with every look.
            if word != "READY" and reason != self._reason and now - self._reason_time > VERDICT_PERIOD:
                self._tell_status(word, reason)
            return
        if word == "READY" and not self._learned:
            self._learned = True
            baseline.learn(self._home.baselines, self.plan, self._run)
        self._tell_status(word, reason)

    def _tell_status(self, word: str, reason: str) -> None:
        self._status, self._reason, self._reason_time = word, reason, time.monotonic()
        self._emit(StatusChanged(self.record.run, word, reason))

    def _ended(self) -> bool:
        if self._process is not None:
            self._code = self._process.poll()
            return self._code is not None
        return not launch.same_process(self.record)

    async def _gpu_memory(self) -> tuple[str, ...]:
        """What the GPUs still hold, by a sample of them from after the end."""
        host = before = self._state().host
        if host is None or not host.gpus:
            return ()
        deadline = time.monotonic() + GPU_DEADLINE
        while host is before and time.monotonic() < deadline:
            await asyncio.sleep(EXIT_PERIOD)
            host = self._state().host
        used = {sample.gpu for sample in self._run.samples if sample.gpu is not None}
        return teardown.gpu_memory(host.gpus if host else (), self._footprint, used)

    async def _finish(self) -> None:
        await self.dumps.settle()
        await teardown.kill(self._footprint)
        while lines := self._log.read():
            self._take(lines, self._log.count - len(lines))
        if lines := self._log.rest():
            self._take(lines, self._log.count - len(lines))
        left = teardown.release(self._footprint, self._sockets, scratch(self.plan, self.record.run))
        left += await self._gpu_memory()
        self.dumps.end("the server ended while it was being written")
        self._emit(RunExited(self.record.run, self._code, self._asked, left))
        launch.mark_ended(self.record, self._home.run(self.record.run))
        if self._asked:
            self._set_status("IDLE", "stopped")
        else:
            await self._judge()


def is_calm(run: RunState) -> bool:
    """Whether a server is ready, has no request and writes no dump: then it may be looked at less often."""
    load = run.throughput
    idle = load is not None and load.running == 0 and load.waiting == 0
    return idle and run.status == "READY" and (run.dump is None or run.dump.state not in ACTIVE)
