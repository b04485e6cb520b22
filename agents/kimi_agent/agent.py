"""The agent itself: journal, state, at most one run, and what a client may ask of it."""

import asyncio
import logging
import os
import socket
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

from kimi_agent import __version__
from kimi_agent.bugreport.serve import Bundles
from kimi_agent.bundle import build_id, prune_cache
from kimi_agent.engine.argv import Problem
from kimi_agent.engine.flags import installed_version
from kimi_agent.errors import LaunchError, UsageError
from kimi_agent.feed.serve import Feeds
from kimi_agent.host.gpu import GpuReader
from kimi_agent.host.logind import logout_warning
from kimi_agent.host.memory import HostSampler
from kimi_agent.host.procfs import boot_id
from kimi_agent.model.events import AgentStarted, Body, HostSampled, Note, RunExited, StatusChanged
from kimi_agent.model.reduce import fold, reduce
from kimi_agent.model.state import State
from kimi_agent.paths import Home, private_dir
from kimi_agent.preflight import report
from kimi_agent.profile import Profile, parse
from kimi_agent.runs import baseline, launch, plan, teardown
from kimi_agent.runs.bisecting import Bisector
from kimi_agent.runs.checkpoint import Checkpoints
from kimi_agent.runs.dump import DumpControl, last_dump
from kimi_agent.runs.journal import Journal
from kimi_agent.runs.prove import prove
from kimi_agent.runs.recorder import RunRecorder
from kimi_agent.runs.supervisor import Supervisor
from kimi_agent.shards.inspect.serve import Inspector
from kimi_agent.tasks import end
from kimi_agent.wire.rpc import PROTOCOL, Hello
from kimi_agent.wire.snapshot import snapshot_line

HOST_PERIOD = 2.0
SAVE_EVENTS = 2000
"""An agent that was killed leaves no more events than this, and those of a host period, to be folded anew."""
CLOSING = 10.0
"""Seconds that what watches a run gets to let go of it."""
LINES_SENT = 5000
"""Lines of the log that a client gets with its first snapshot."""
RESULTS_KEPT = 256

log = logging.getLogger(__name__)


class Agent:
    """One per home directory; every method in `methods` may be called by a client."""

    def __init__(self, home: Home) -> None:
        """Take over the home directory: its journal and, where one is alive, its run.

        Raises:
            KimiError: another agent has it, or it cannot be used.
        """
        private_dir(home.root)
        self.home = home
        self.journal = Journal(home.journal)
        self._problem = ""
        """The journal's, as it was told last."""
        self._checkpoints = Checkpoints(home.journal)
        known = self._checkpoints.newest(self.journal.last)
        self.state: State = fold(self.journal.events(known.seq), known)
        self._saved = self.state.seq
        self._recorder = RunRecorder(home.recordings)
        self._supervisor: Supervisor | None = None
        self._watch: asyncio.Task[None] | None = None
        self._launching = asyncio.Lock()
        self.bisector = Bisector(
            home, launch=self._launch, running=lambda: self.running, emit=self.emit, state=lambda: self.state,
            growth=self.journal.growth,
        )  # fmt: skip
        self._inspector = Inspector(home, self._dump_roots)
        self._feeds = Feeds(home)
        self._results: OrderedDict[str, asyncio.Task[Any]] = OrderedDict()
        self._host = HostSampler()
        self._gpus = GpuReader()
        self.clients = 0
        self.closing = asyncio.Event()
        """Set when a client asked the agent itself to end."""
        self.methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "ping": self.ping,
            "status": self.status,
            "preflight": self.preflight,
            "launch": self.launch,
            "stop": self.stop,
            **self.bisector.methods(),
            **Bundles(home).methods(),
            "dump_start": self.dump_start,
            "dump_stop": self.dump_stop,
            "prove": self.prove,
            **self._inspector.methods(),
            **self._feeds.methods(),
            "shutdown": self.shutdown,
        }

    def emit(self, body: Body) -> bool:
        """Journal one event and fold it into the state; `False` when the journal was let go of."""
        event = self.journal.append(body)
        if event is None:
            return False
        before, self.state = self.state, reduce(self.state, event)
        self._recorder.take(event, before)
        if self._problem != self.journal.problem:
            self._problem = self.journal.problem
            self.emit(self.journal.account())
        return True

    def snapshot(self) -> bytes | None:
        """The line of an event that stands for all up to now, with as much of the log's end as a line can hold."""
        state = self.state
        first, lines = self._recorder.log(state.run.started.run, LINES_SENT) if state.run else (0, [])
        return snapshot_line(state, first, lines)

    def save(self) -> None:
        """Keep the state beside the journal, for the next agent's start; not one of events that the disk lacks."""
        if self._saved == self.state.seq or self.journal.problem:
            return
        try:
            self._checkpoints.save(self.state)
        except OSError as error:
            log.warning("the state could not be kept: %s", error)
        self._saved = self.state.seq

    def hello(self) -> Hello:
        """The greeting for a new client."""
        return Hello(
            protocol=PROTOCOL,
            version=__version__,
            epoch=self.journal.epoch,
            first=self.journal.first,
            last=self.journal.last,
            host=socket.gethostname(),
            pid=os.getpid(),
            build=build_id(),
            begun=self.journal.begun,
        )

    async def begin(self) -> None:
        """Announce the agent, find a run that an earlier agent left, start sampling the host."""
        version = await asyncio.to_thread(installed_version, sys.executable)
        sample = await self._sample()
        self.emit(
            AgentStarted(
                version=__version__,
                host=socket.gethostname(),
                pid=os.getpid(),
                python=sys.executable,
                sglang=version,
                boot_id=boot_id(),
                cpus=os.cpu_count() or 1,
                memory=sample.memory_total,
            )
        )
        self.emit(sample)
        if (warning := logout_warning()) is not None:
            self.emit(Note("warning", warning))
        await self._adopt()
        await self.bisector.recover()
        self._sampling = asyncio.create_task(self._sample_host())
        await asyncio.to_thread(prune_cache)

    async def end(self) -> None:
        """Let go of everything; a running server goes on and is found again, but not one of a bisection."""
        await self.bisector.close()
        await self._inspector.close()
        await self._feeds.close()
        for task in (self._sampling, self._watch):
            if task is not None:
                await end(task, again=CLOSING)
        await self._gpus.close()
        self.save()
        self._recorder.close()
        self.journal.close()

    @property
    def running(self) -> Supervisor | None:
        """The supervisor of the run, while there is one."""
        supervisor = self._supervisor
        return None if supervisor is None or supervisor.gone.is_set() else supervisor

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Answer one request; one with a known `command` id is answered as before and not done again.

        Raises:
            KimiError: the method is unknown, its parameters are wrong, or it refuses.
        """
        handler = self.methods.get(method)
        if handler is None:
            raise UsageError(f"this agent knows no method {method}", "Use the console that belongs to this agent.")
        command = params.pop("command", None)
        if not isinstance(command, str):
            return await self._invoke(handler, method, params)
        if command not in self._results:
            self._results[command] = asyncio.create_task(self._invoke(handler, method, params))
            while len(self._results) > RESULTS_KEPT:
                self._results.popitem(last=False)
        return await asyncio.shield(self._results[command])

    @staticmethod
    async def _invoke(handler: Callable[..., Awaitable[Any]], method: str, params: dict[str, Any]) -> Any:
        try:
            coroutine = handler(**params)
        except TypeError as error:
            raise UsageError(f"{method}: {str(error).split('() ')[-1]}", "Correct the parameters.") from error
        return await coroutine

    async def ping(self) -> dict[str, Any]:
        """Show that the agent answers."""
        return {}

    async def status(self) -> dict[str, Any]:
        """The host's state in one stable object."""
        run = self.state.run
        answer: dict[str, Any] = {
            "agent": {
                "version": __version__,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "build": build_id(),
                "clients": self.clients,
            },
            "status": run.status if run else "IDLE",
            "run": None,
        }
        if run is not None:
            answer["run"] = {
                "run": run.started.run,
                "name": run.started.name,
                "model": run.started.model,
                "pid": run.started.pid,
                "status": run.status,
                "alive": run.alive,
                "reason": run.status_reason,
                "since": run.status_since,
                "ranks": {rank.rank: {"phase": rank.phase, "since": rank.since} for rank in run.ranks},
                "verdict": run.verdict,
                "dump": run.dump,
            }
        plain: dict[str, Any] = orjson.loads(orjson.dumps(answer))
        return plain

    async def preflight(self, profile: dict[str, Any]) -> dict[str, Any]:
        """What is known to be wrong with a launch, and its exact command line."""
        own = None if self.running is None else self.running.record.pid
        return await report.of_profile(self._profile(profile), self.home, own)

    async def launch(self, profile: dict[str, Any], force: bool = False) -> dict[str, Any]:
        """Start the server of a profile; at most one runs. `force` starts it in spite of what its files show."""
        if self.bisector.active:
            raise UsageError("a bisection goes on", "Stop it first.", slug="busy")
        refusals = plan.problems if force else report.hard_refusals
        return {"run": (await self._launch(self._profile(profile), refusals)).record.run}

    async def _launch(
        self, profile: Profile, refusals: Callable[[plan.Plan], list[Problem]] = plan.problems
    ) -> Supervisor:
        async with self._launching:
            if self.running is not None:
                raise UsageError(f"run {self.running.record.run} is alive", "Stop it first.", slug="busy")
            made = await asyncio.to_thread(plan.make_plan, profile, self.home)
            plan.refuse(await asyncio.to_thread(refusals, made))
            record, process = launch.spawn(made, self.home)
            if not self.emit(launch.started(record, made, self.home, adopted=False)):
                launch.give_up(record.run, process, made, self.home)
                raise LaunchError("this agent is ending", "Launch again when the next one is there.")
            if (known := baseline.recall(self.home.baselines, made, record.run)) is not None:
                self.emit(known)
            supervisor = Supervisor(
                record, made, self.home, process=process, emit=self.emit, state=lambda: self.state
            )  # fmt: skip
            self._supervise(supervisor)
            return supervisor

    async def stop(self) -> dict[str, Any]:
        """Stop the run, or the bisection whose run it is, and say what could not be released."""
        if self.bisector.active:
            return await self.bisector.stop()
        supervisor = self._need_run()
        return {"run": supervisor.record.run, "left": list(await supervisor.stop())}

    async def dump_start(self, name: str | None = None, resume: bool = False) -> dict[str, Any]:
        """Start a dump of the running server, or go on with one of an earlier run."""
        return await self._need_run().dumps.start(name, resume=resume)

    async def dump_stop(self) -> dict[str, Any]:
        """Stop the dump that is being written."""
        return await self._need_run().dumps.stop()

    async def prove(self) -> dict[str, Any]:
        """Prove the running server's capture mode by mode; what is sent for it is in no dump."""
        supervisor = self._need_run()
        return await prove(supervisor.plan, self.home.run_sockets(supervisor.record.run))

    async def shutdown(self) -> dict[str, Any]:
        """End the agent; a running server goes on."""
        self.closing.set()
        return {"running": self.running is not None}

    def _profile(self, tables: dict[str, Any]) -> Profile:
        if not isinstance(tables, dict):
            raise UsageError("profile: a table is needed", "Send the profile as an object.")
        return parse(tables, "profile")

    def _need_run(self) -> Supervisor:
        if self.running is None:
            raise UsageError("no server is running", "Launch one first.", slug="no_run")
        return self.running

    def _dump_roots(self) -> list[Path]:
        roots = [self.home.dumps]
        if self._supervisor is not None:
            roots.append(self._supervisor.plan.dump_root)
        return list(dict.fromkeys(root.resolve() for root in roots))

    async def _sample_host(self) -> None:
        while True:
            await asyncio.sleep(HOST_PERIOD)
            if self.running is not None or self.clients:
                self.emit(await self._sample())
            if self.state.seq - self._saved >= SAVE_EVENTS:
                self.save()

    async def _sample(self) -> HostSampled:
        gpus, no_gpu = await self._gpus.sample()
        return self._host.sample(gpus, no_gpu)

    async def _adopt(self) -> None:
        for record in launch.unfinished(self.home):
            directory = self.home.run(record.run)
            known = self.state.run
            if known is not None and known.exited is not None and known.started.run == record.run:
                launch.mark_ended(record, directory)  # its agent saw its end, and could not write it down
                continue
            made = await asyncio.to_thread(plan.make_plan, self._profile(record.profile), self.home)
            if launch.same_process(record):
                self.emit(launch.started(record, made, self.home, adopted=True))
                self._supervise(Supervisor(
                    record, made, self.home, process=None, emit=self.emit, state=lambda: self.state
                ))  # fmt: skip
                continue
            same_boot = record.boot_id == boot_id()
            footprint = teardown.Footprint(record.run, record.pid, {record.pid: record.starttime} if same_boot else {})
            await teardown.kill(footprint)
            left = teardown.release(footprint, self.home.run_sockets(record.run), plan.scratch(made, record.run))
            launch.mark_ended(record, directory)
            why = "it ended while no agent ran" if same_boot else "the host was restarted"
            sockets, last = self.home.run_sockets(record.run), last_dump(record.run, self.state)
            DumpControl(record.run, sockets, made.dump_root, self.emit, last).end(f"{why}, and with it its writers")
            self.emit(StatusChanged(record.run, "FAILED", why))
            self.emit(RunExited(record.run, None, False, left))

    def _supervise(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._watch = asyncio.create_task(supervisor.watch())
        self._watch.add_done_callback(self._watch_ended)

    def _watch_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the watch of the run ended", exc_info=error)
            self.emit(Note("error", f"the agent lost the run: {type(error).__name__}: {error}"))
