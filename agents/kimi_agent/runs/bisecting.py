"""The bisection's driver: one start after the other, each watched until it has shown its outcome, then stopped."""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kimi_agent.errors import KimiError, UsageError
from kimi_agent.model.bisect import NOTHING, Attempt, BisectChanged
from kimi_agent.model.events import BaselineKnown, Body, Note
from kimi_agent.model.state import RunState, State
from kimi_agent.paths import Home
from kimi_agent.profile import Profile, parse
from kimi_agent.runs import bisect, factors, plan
from kimi_agent.runs.record import load
from kimi_agent.runs.supervisor import Supervisor
from kimi_agent.wire.codec import decode, encode

LOOK = 1.0
"""Seconds after which a start is judged anew even if nothing was journaled."""

log = logging.getLogger(__name__)


class Bisector:
    """At most one bisection of one agent; it owns the runs that it starts, and each ends with its attempt."""

    def __init__(
        self,
        home: Home,
        *,
        launch: Callable[[Profile], Awaitable[Supervisor]],
        running: Callable[[], Supervisor | None],
        emit: Callable[[Body], object],
        state: Callable[[], State],
        growth: Callable[[], Awaitable[None]],
    ) -> None:
        """`launch` starts a profile, `running` is the run that is alive, `growth` waits for the next event."""
        self._home = home
        self._launch = launch
        self._running = running
        self._emit = emit
        self._state = state
        self._growth = growth
        self._starting = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._table: BisectChanged | None = None
        self._why = ""
        """Why it is to be broken off; empty while it is not."""

    def methods(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """What a client may call."""
        return {"bisect": self.start, "bisect_stop": self.stop}

    @property
    def active(self) -> bool:
        """Whether a bisection goes on."""
        return self._task is not None and not self._task.done()

    async def start(
        self,
        profile: dict[str, Any] | None = None,
        only: Sequence[str] | None = None,
        limit: float | None = None,
        *,
        first: bool = False,
        resume: bool = False,
    ) -> dict[str, Any]:
        """Begin with a profile's launch, or with the run that hung or failed last.

        `only` names the factors to try, `limit` the seconds that an attempt gets, `first` ends it at the first factor
        that passes, `resume` goes on with the table of the same profile that was broken off.

        Raises:
            UsageError: a bisection goes on, a server is alive that neither hangs nor failed, or there is none to take.
        """
        async with self._starting:
            if self.active:
                raise UsageError("a bisection goes on", "Watch it, or stop it first.", slug="busy")
            return await self._begin(profile, only, limit, first=first, resume=resume)

    async def _begin(
        self,
        profile: dict[str, Any] | None,
        only: Sequence[str] | None,
        limit: float | None,
        *,
        first: bool,
        resume: bool,
    ) -> dict[str, Any]:
        run = self._state().run
        base = self._base(profile, run)
        made = await asyncio.to_thread(plan.make_plan, base, self._home)
        chosen = factors.applicable(made, only)
        table = self._kept(base) if resume else None
        if table is None:
            ident = f"bisect-{uuid.uuid4().hex[:6]}"
            table = bisect.begin(ident, base, chosen, limit=limit, first=first)
            table = self._from_record(table, base, run, () if only is not None else chosen)
        self._why = ""
        self._home.bisected.write_bytes(encode(base.to_dict()))
        self._tell(table)
        self._task = asyncio.create_task(self._drive(made, () if only is not None else chosen))
        self._task.add_done_callback(self._ended)
        return {"bisect": table.bisect, "factors": [one.factor for one in bisect.factors_of(table)]}

    async def stop(self, why: str = "an operator stopped it") -> dict[str, Any]:
        """Break it off: the start under way is stopped, the table stays.

        Raises:
            UsageError: none goes on.
        """
        task, table = self._task, self._table
        if task is None or task.done() or table is None:
            raise UsageError("no bisection goes on", "Start one first.", slug="no_bisect")
        self._why = why
        await asyncio.wait((task,))
        run = self._state().run
        left = run.exited.left if run is not None and run.exited is not None else ()
        return {"bisect": table.bisect, "run": run.started.run if run is not None else "", "left": list(left)}

    async def close(self) -> None:
        """Break off what goes on, because the agent ends."""
        if self.active:
            await self.stop("the agent ended")

    async def recover(self) -> None:
        """After an agent was killed in a bisection: stop the start that it left, and say so in the table."""
        table = self._state().bisect
        if table is None or not table.active:
            return
        supervisor = self._running()
        if supervisor is not None and supervisor.record.run in {one.run for one in table.attempts}:
            await supervisor.stop()
        self._tell(bisect.stopped(table, "the agent was restarted; start it again with --resume to go on"))

    def _base(self, profile: dict[str, Any] | None, run: RunState | None) -> Profile:
        """The profile to start from; a run that is alive must be the one that hangs."""
        if profile is not None:
            base = parse(profile, "profile")
        elif run is None:
            raise UsageError("there has been no run yet", "Give a profile.", slug="no_run")
        elif (table := self._state().bisect) is not None and run.started.run in {one.run for one in table.attempts}:
            base = parse(decode(self._home.bisected.read_bytes()), "profile")  # the run is one of an attempt's
        else:
            base = parse(load(self._home.run(run.started.run)).profile, "profile")
        supervisor = self._running()
        if supervisor is not None:
            if run is None or bisect.reference_of(run) is None:
                word = run.status if run is not None else "not known"
                raise UsageError(f"run {supervisor.record.run} is alive, and is {word}",
                                 "Stop it first; only a start that hangs or has failed is taken as it is.",
                                 slug="busy")  # fmt: skip
            if bisect.digest(supervisor.plan.profile) != bisect.digest(base):
                raise UsageError(f"run {supervisor.record.run} is alive, of another profile", "Stop it first.",
                                 slug="busy")  # fmt: skip
        return base

    def _kept(self, base: Profile) -> BisectChanged | None:
        kept = self._state().bisect
        if kept is None or kept.state != "stopped" or kept.profile != bisect.digest(base):
            return None
        return bisect.resumed(kept)

    def _from_record(
        self, table: BisectChanged, base: Profile, run: RunState | None, chosen: Sequence[factors.Factor]
    ) -> BisectChanged:
        """The table with the last run as its reference, where that was of this profile and hung or failed."""
        if run is None:
            return table
        launched = parse(load(self._home.run(run.started.run)).profile, "profile")
        if bisect.digest(launched) != bisect.digest(base):
            return table
        shown = bisect.reference_of(run)
        if shown is None:
            return table
        table = replace(bisect.recorded(table, NOTHING, shown), earlier=True)
        return self._aim(table, shown, run, chosen)

    def _aim(
        self, table: BisectChanged, shown: Attempt, run: RunState, chosen: Sequence[factors.Factor]
    ) -> BisectChanged:
        known: BaselineKnown | None = run.baseline
        limit = bisect.limit_of(shown, bisect.entered_after(run, shown.phase or ""), known)
        return bisect.aimed(table, shown, limit, chosen)

    async def _drive(self, made: plan.Plan, chosen: Sequence[factors.Factor]) -> None:
        if (supervisor := self._running()) is not None:
            await supervisor.stop("a bisection begins")
        while not self._why and (factor := self._next()) is not None:
            shown = await self._attempt(made, factor)
            if shown is None:
                break
            table = bisect.recorded(self._now(), factor, shown)
            run = self._state().run
            if table.target is None and bisect.reference(table) is not None and run is not None:
                table = self._aim(table, shown, run, chosen)
            self._tell(table)
        self._tell(bisect.stopped(self._now(), self._why) if self._why else bisect.concluded(self._now()))

    def _next(self) -> str | None:
        table, factor = bisect.following(self._now())
        self._table = table
        return factor

    async def _attempt(self, made: plan.Plan, factor: str) -> Attempt | None:
        """Start with a factor changed and watch; `None` when the bisection was broken off meanwhile."""
        table = self._now()
        names = bisect.changes(table, factor)
        try:
            supervisor = await self._launch(factors.changed(made, names))
        except KimiError as error:
            return Attempt("", "", "skipped", why=f"it cannot be launched so: {error.message}")
        attempt = Attempt("", "", "running", run=supervisor.record.run)
        self._tell(bisect.recorded(table, factor, attempt))
        try:
            shown = await self._watch(supervisor, table.target, self._limit(made, table))
        finally:
            left = await self._end(supervisor)
        if shown is not None and left:
            return replace(shown, why=f"{shown.why}; left behind: {', '.join(left)}".removeprefix("; "))
        return shown

    async def _watch(self, supervisor: Supervisor, target: str | None, limit: float) -> Attempt | None:
        begun = time.monotonic()
        while not self._why:
            run = self._state().run
            if run is not None and run.started.run == supervisor.record.run:
                shown = bisect.judge(run, run.time + time.monotonic() - begun, target, limit)
                if shown is not None:
                    return shown
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._growth(), LOOK)
        return None

    @staticmethod
    async def _end(supervisor: Supervisor) -> tuple[str, ...]:
        """Stop an attempt's server and everything of it, also one that has ended by itself."""
        return () if supervisor.gone.is_set() else await supervisor.stop("the bisection has seen enough")

    @staticmethod
    def _limit(made: plan.Plan, table: BisectChanged) -> float:
        return table.limit or made.profile.limits.start_timeout or bisect.FIRST_LIMIT

    def _now(self) -> BisectChanged:
        if self._table is None:
            raise RuntimeError("there is no bisection")
        return self._table

    def _tell(self, table: BisectChanged) -> None:
        self._table = table
        self._emit(table)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("the bisection ended", exc_info=error)
        self._emit(Note("error", f"the bisection ended: {type(error).__name__}: {error}"))
        self._tell(bisect.stopped(self._now(), f"the agent failed: {error}"))
