"""The demo's own agent and server on this machine; whatever happens, both end with the demo."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil

from kimi_agent.errors import KimiError
from kimi_agent.model.state import RunState, State
from kimi_console.demo.engine import Engine
from kimi_console.source.live import LiveSource
from kimi_console.source.local import local_dial
from kimi_console.source.session import Session

START_DEADLINE: Final = 480.0
"""Seconds until the server must be ready; two cores need about 30."""
STOP_DEADLINE: Final = 90.0
"""Seconds until the server and the agent must be gone."""
T = TypeVar("T")


class DemoError(KimiError):
    """The demo could not do what it shows."""

    slug = "demo"


class DemoHost:
    """An agent with a home of its own, watched by a session, and the server that it runs."""

    def __init__(self, engine: Engine, home: Path) -> None:
        self.home = home
        self.source = LiveSource("demo", local_dial(str(engine.python), home))
        self.session = Session(self.source, self.source)
        self._changed = asyncio.Event()
        self._folding: asyncio.Task[None] | None = None
        self._launching: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        """Start the agent, or find it, and follow its events.

        Raises:
            KimiError: it cannot be started.
        """
        await self.source.start()
        self.session.on_change(self._changed.set)
        self._folding = asyncio.create_task(self.session.run())
        await self.until(lambda _: self.source.link.state == "live" or None, STOP_DEADLINE, "its agent to answer")

    async def launch(self, profile: dict[str, Any]) -> str:
        """Launch a server and return its run; a cancelled launch is waited for when the demo ends.

        Raises:
            KimiError: the agent refused.
        """
        self._launching = asyncio.create_task(self.source.request("launch", profile=profile))
        answer = await asyncio.shield(self._launching)
        return str(answer["run"])

    async def ready(self, run: str) -> RunState:
        """Wait until the server of `run` serves.

        Raises:
            DemoError: it failed, or took longer than `START_DEADLINE`.
        """

        def ended(state: State) -> RunState | None:
            found = state.run
            if found is None or found.started.run != run:
                return None
            return found if found.status == "READY" or not found.alive else None

        found = await self.until(ended, START_DEADLINE, "the server to be ready")
        if found.status != "READY":
            why = found.verdict.summary if found.verdict and found.verdict.summary else found.status_reason
            raise DemoError(f"The server ended before it was ready: {why}", f"Its log: {found.started.log}")
        return found

    async def until(self, condition: Callable[[State], T | None], seconds: float | None, what: str) -> T:
        """The first value of `condition` that is not None, looked at after every batch of events.

        Raises:
            DemoError: there was none within `seconds`; never when that is None.
        """
        try:
            async with asyncio.timeout(seconds):
                while (found := condition(self.session.state)) is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            status = self.session.state.run.status if self.session.state.run else "no run"
            raise DemoError(
                f"Waited {seconds:.0f} s for {what} ({status})", f"The agent's home: {self.home}"
            ) from error
        return found

    async def stop_server(self) -> tuple[str, ...]:
        """Stop the server if one runs; what could not be released.

        Raises:
            KimiError: the agent could not do it.
        """
        if self._launching is not None:
            await asyncio.wait((self._launching,), timeout=STOP_DEADLINE)
        run = self.session.state.run
        try:
            async with asyncio.timeout(STOP_DEADLINE):
                answer = await self.source.request("stop")
        except TimeoutError as error:
            pid = f" (pid {run.started.pid})" if run else ""
            raise DemoError(f"The server{pid} did not end within {STOP_DEADLINE:.0f} s", f"See {self.home}.") from error
        except KimiError as error:
            if error.slug == "no_run":
                return ()
            raise
        return tuple(answer["left"])

    async def close(self) -> None:
        """Stop the server and the agent, and wait until they are gone.

        Raises:
            KimiError: the server could not be stopped.
        """
        agent = self.source.hello
        try:
            if agent is not None:
                await self._end_agent()
        finally:
            await self.session.close()
            if self._folding is not None:
                await self._folding
            if agent is not None:
                await asyncio.to_thread(_wait_for_end, agent.pid)

    async def _end_agent(self) -> None:
        """Stop the server and tell the agent to end, over a new connection if the old one broke."""
        if self.source.link.state != "live":
            self.source.redial()
            await self.until(lambda _: self.source.link.state == "live" or None, STOP_DEADLINE, "its agent")
        await self.stop_server()
        await self.source.request("shutdown")


@asynccontextmanager
async def demo_host(engine: Engine, home: Path) -> AsyncIterator[DemoHost]:
    """A demo host that is closed on the way out, also when that way is an error or an interrupt.

    Raises:
        KimiError: its agent cannot be started, or not be stopped.
    """
    host = DemoHost(engine, home)
    try:
        await host.start()
        yield host
    finally:
        await host.close()


def _wait_for_end(pid: int) -> None:
    with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        psutil.Process(pid).wait(STOP_DEADLINE)
