"""`Examiner`: what the doctor sees of the host beside the run's events; a close look only when something stands still.

Cheap facts (the kernel's log, the cgroup's count of kills, the proxies) are read in place. A close look is made by a
child process, which may block as long as it likes: the agent takes what it printed and ends it at the deadline.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from kimi_agent.doctor.evidence import GONE, Evidence, Seen
from kimi_agent.doctor.facts import Deep, Kernel, Request
from kimi_agent.doctor.rules.common import stale
from kimi_agent.engine.titles import DETOKENIZER
from kimi_agent.host.kernel import KernelLog, OomCounter
from kimi_agent.host.locks import CACHE_VARIABLES
from kimi_agent.host.machine import EXCEPTIONS, PROXIES, environment, proxy_for
from kimi_agent.host.proc import MAIN
from kimi_agent.host.procfs import read_stat
from kimi_agent.model.events import GpuSample, RunStarted, Verdict
from kimi_agent.model.phases import IMPORT, WARM_UP
from kimi_agent.paths import full_disk

DEADLINE: Final = 45.0
"""Seconds after which a close look is given up."""
FIRST: Final = 2.0
"""Seconds after the launch at which ports and disks are looked at once."""
FACTS_PERIOD: Final = 15.0
"""Seconds between two looks without stacks at a start that stands still."""
SOONEST: Final = 5.0
"""Seconds between two looks with stacks when the situation has changed."""
STACKS_PERIOD: Final = 60.0
"""Seconds between two looks with stacks at the same situation."""
QUIET: Final = 10.0
"""Seconds in which nothing of a run computes or reads, after which it is looked at before its silence is too long."""
KERNEL_PERIOD: Final = 2.0
_VARIABLES: Final = frozenset({*PROXIES, *EXCEPTIONS, *CACHE_VARIABLES, "TMPDIR"})

log = logging.getLogger(__name__)


class Examiner:
    """Watches the host for one run; use from one task."""

    def __init__(self, run: RunStarted, began: float, sockets: Path | None = None) -> None:
        """`began` is when the run was launched (Unix seconds), `sockets` where its plugins listen."""
        self._run = run
        self._began = began
        self._sockets = sockets
        self._place = Path(run.log).parent
        self._log = KernelLog()
        self._kills = OomCounter(run.pid)
        self._kernel = Kernel(skipped="not looked at yet")
        self._kernel_time = float("-inf")
        self._variables: dict[str, str] = {}
        self._deep: Deep | None = None
        self._looking: asyncio.Task[None] | None = None
        self._last = float("-inf")
        self._last_stacks = float("-inf")
        self._situation: tuple[object, ...] = ()

    def seen(
        self,
        gpus: Sequence[GpuSample] = (),
        no_gpu: str | None = None,
        port_open: bool | None = None,
        plugin_pids: frozenset[int] | None = None,
        host_cpu: float | None = None,
    ) -> Seen:
        """What is known now; costs next to nothing."""
        self._variables = self._variables or environment(self._run.pid, _VARIABLES) or {}  # none in mid-exec
        proxy = proxy_for(self._run.host, self._variables)
        return Seen(
            gpus=tuple(gpus),
            no_gpu=no_gpu,
            host_cpu=host_cpu,
            kernel=self._kernel_now(),
            deep=self._deep,
            proxy=proxy,
            port_open=port_open,
            plugin_pids=plugin_pids,
            log_full=str(self._place) if full_disk([self._place]) else None,
        )

    def consider(self, evidence: Evidence, verdict: Verdict) -> None:
        """Begin a close look when this evidence asks for one and none is under way."""
        if self._looking is not None and not self._looking.done():
            return
        now = time.monotonic()
        stopped = tuple(one.rank for one in evidence.samples if one.state == "T")
        situation = (evidence.phase, evidence.ready, stopped, evidence.held_since)
        fresh = evidence.fresh
        known = fresh is not None and bool(fresh.first) and situation == self._situation
        if wants_stacks(evidence, verdict) and now - self._last_stacks > (STACKS_PERIOD if known else SOONEST):
            self._situation, self._last_stacks = situation, now
            self._begin(evidence, stacks=True)
        elif wants_facts(evidence, verdict, self._deep is None, self._began) and now - self._last > FACTS_PERIOD:
            self._begin(evidence, stacks=False)

    async def close(self) -> None:
        """End a look that is under way and give files back."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._log.close()

    def _kernel_now(self) -> Kernel:
        # What ended the server is told once, at its end: by what the kernel says then, not two seconds before.
        stat = read_stat(self._run.pid)
        if stat is None or stat.state in GONE or time.monotonic() - self._kernel_time >= KERNEL_PERIOD:
            self._kernel_time = time.monotonic()
            self._kernel = Kernel(tuple(self._log.read()), self._kills.kills(), self._log.why)
        return self._kernel

    def _begin(self, evidence: Evidence, *, stacks: bool) -> None:
        self._last = time.monotonic()
        wanted = {rank.rank for rank in evidence.ranks} | {MAIN, DETOKENIZER}
        ranks = tuple((one.rank, one.pid) for one in evidence.samples if one.rank in wanted and one.state not in GONE)
        request = Request(
            main=self._run.pid,
            ranks=ranks if stacks else (),
            model=self._run.model,
            host=self._run.host,
            port=self._run.port,
            argv=self._run.argv,
            environment={name: text for name, text in self._variables.items() if name not in PROXIES},
            sockets=str(self._sockets) if self._sockets is not None else None,
            partial=self._deep.partial if self._deep is not None else (),
            serving=evidence.ready or evidence.phase == WARM_UP,
        )
        self._looking = asyncio.create_task(self._look(request, evidence.fresh))

    async def _look(self, request: Request, before: Deep | None) -> None:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kimi_agent.doctor.probe", env={**os.environ, "PYTHONPATH": path},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            limit=1 << 22,
        )  # fmt: skip
        try:
            await asyncio.wait_for(self._take(child, request, before), DEADLINE)
        except (asyncio.TimeoutError, OSError, msgspec.DecodeError) as error:
            log.warning("the close look ended without an answer: %s", str(error) or "deadline")
        finally:
            await _end(child)

    async def _take(self, child: asyncio.subprocess.Process, request: Request, before: Deep | None) -> None:
        """Send the request; keep each answer as it comes, the later one holds the second stacks.

        Until both stacks are there, those of `before` stay, which the run has not moved since.
        """
        if child.stdin is None or child.stdout is None:
            raise OSError("no pipe")
        child.stdin.write(msgspec.json.encode(request))
        child.stdin.close()
        while line := await child.stdout.readline():
            found = msgspec.json.decode(line, type=Deep)
            if not found.second and before is not None and before.first and (before.second or not request.ranks):
                found = replace(found, time=before.time, first=before.first, second=before.second)
            self._deep = found
        await child.wait()


async def _end(child: asyncio.subprocess.Process) -> None:
    """Kill a child that still runs; one in an uninterruptible read is left to the kernel."""
    if child.returncode is not None:
        return
    child.kill()
    try:
        await asyncio.wait_for(child.wait(), 1.0)
    except asyncio.TimeoutError:
        log.warning("the close look's process %d does not end", child.pid)


def wants_stacks(evidence: Evidence, verdict: Verdict) -> bool:
    """Whether the evidence asks for every process's stack: something stands still, and not for a known good reason."""
    if evidence.exited is not None or evidence.stopping or not evidence.samples:
        return False
    if any(one.state == "T" for one in evidence.samples) or stale(evidence):
        return True
    if any(evidence.now - since > QUIET for _, since in evidence.held_since):
        return True
    if evidence.ready or verdict.kind in ("compiling", "downloading"):
        return False
    quiet = evidence.quiet_since is not None and evidence.now - evidence.quiet_since > QUIET
    if quiet and (evidence.silent or 0.0) > evidence.limits.notice:
        return True
    limits = evidence.limits
    fixed = limits.importing / 2 if evidence.phase in (IMPORT, None) else limits.straggler - 5.0
    return (evidence.silent or 0.0) > evidence.limit(fixed)


def wants_facts(evidence: Evidence, verdict: Verdict, first: bool, began: float) -> bool:
    """Whether ports, locks, disks and downloads are worth a look: once early, and when a start stands still."""
    if evidence.exited is not None or evidence.stopping or evidence.ready:
        return False
    if first:
        return evidence.now - began > FIRST
    return (evidence.silent or 0.0) > evidence.limits.notice or verdict.kind == "port_in_use"
