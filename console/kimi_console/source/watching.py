"""Sessions of several hosts in one process, each with its own link, and the memory of how they were."""

import asyncio
from collections.abc import Callable

from kimi_agent.errors import KimiError
from kimi_console.hosts import remember
from kimi_console.source.client import Dial
from kimi_console.source.live import LiveSource
from kimi_console.source.session import Session


class Watching:
    """The hosts that are open; opening one again gives the session that there is."""

    def __init__(self, dial: Callable[[str], Dial], *, read_only: bool = False) -> None:
        self._dial = dial
        self._read_only = read_only
        self.sessions: dict[str, Session] = {}
        self.failed: dict[str, str] = {}
        """Why a host's session ended by itself, in words."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def open(self, host: str) -> Session:
        """The host's session; it connects in the background and never gives up.

        Raises:
            KimiError: the host's settings are wrong.
        """
        if host not in self.sessions:
            source = LiveSource(host, self._dial(host), read_only=self._read_only, snapshot=True)
            session = self.sessions[host] = Session(source, source)
            keep_in_mind(session, host)
            self._tasks[host] = asyncio.create_task(self._run(host, session))
        return self.sessions[host]

    async def _run(self, host: str, session: Session) -> None:
        try:
            await session.run()
        except KimiError as error:
            self.failed[host] = str(error)

    async def close(self) -> None:
        """Let go of all hosts; agents and servers stay as they are."""
        for session in self.sessions.values():
            await session.close()
        for task in self._tasks.values():
            task.cancel()  # a dial may take its time
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def keep_in_mind(session: Session, host: str) -> None:
    """Remember each change of a host's status, for the next start screen."""
    last: tuple[str, str] | None = None

    def look() -> None:
        nonlocal last
        run = session.state.run
        now = (run.status, run.started.model) if run is not None else ("IDLE", "")
        if now != last:
            last = now
            remember(host, *now)

    session.on_change(look)
