"""A live source: an agent dialled for ever, resumed where the last connection ended."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from kimi_agent.errors import KimiError, UnavailableError
from kimi_agent.model.events import Event, Gap, Snapshot
from kimi_agent.wire.rpc import READ_ONLY, Hello
from kimi_console.source.base import Link
from kimi_console.source.client import AgentClient, Dial, LinkLost
from kimi_console.source.questions import LoginCancelled

SLEPT = 10.0
"""Seconds that the clock must have jumped for this machine to have slept."""
SILENT = "the host gave no sign of life"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a live source waits, in seconds."""

    first_delay: float = 1.0
    """Before the second attempt to connect; doubled for each further one, with jitter."""
    last_delay: float = 30.0
    ping_interval: float = 5.0
    missed_pings: int = 3
    """After so many silent ping intervals the link is given up and dialled again."""
    wall: Callable[[], float] = time.time
    """The clock that goes on while this machine sleeps."""
    resend_within: float = 60.0
    """A request whose link broke waits this long for the next one, to be sent again under the same command id."""


class LiveSource:
    """The events of one agent over all its connections, each exactly once and in order; and its control.

    Satisfies both `Source` and `Control`. A journal that starts anew, or whose end went down with its host, makes the
    sequence numbers start over; events that the agent no longer holds appear as one `Gap`, numbered like the first
    event it stands for.
    """

    def __init__(
        self,
        title: str,
        dial: Dial,
        *,
        read_only: bool = False,
        snapshot: bool = False,
        patience: Patience | None = None,
    ) -> None:
        """A source that is not yet connected; `snapshot` asks for the state so far instead of all events so far."""
        self.title = title
        self._snapshot = snapshot
        self.read_only = read_only
        self.hello: Hello | None = None
        """The greeting of the last connection."""
        self.on_link: Callable[[Link], None] | None = None
        """Called when the link changes, which may be long before the next batch."""
        self._dial = dial
        self._patience = patience or Patience()
        self._link = Link("connecting", since=time.time())
        self._client: AgentClient | None = None
        self._epoch: str | None = None
        self._pid = 0
        self._last = 0
        self._retry = asyncio.Event()
        self._connected = asyncio.Event()
        self._lost_at: float | None = None
        self._closed = False

    @property
    def link(self) -> Link:
        """How the connection stands now."""
        return self._link

    def redial(self) -> None:
        """Try to connect at once instead of waiting for the next attempt."""
        self._retry.set()

    async def start(self) -> None:
        """Make the first connection.

        Raises:
            KimiError: it failed; a later loss never raises, it is shown by `link`.
        """
        self._client = await self._connect()

    async def batches(self) -> AsyncGenerator[Sequence[Event], None]:
        """The events, in order, in batches as they come; ends after `close` only."""
        failures = 0
        while not self._closed:
            unasked = False
            try:
                async with aclosing(self._one_connection()) as batches:
                    async for batch in batches:
                        failures = 0
                        yield batch
                detail = "the connection ended"
            except KimiError as error:
                detail = str(error)
                unasked = isinstance(error, LoginCancelled)
            if not self._closed:
                failures += 1
                await self._wait_to_dial(detail, None if unasked else self._delay(failures))

    async def request(self, method: str, **params: Any) -> Any:
        """Call a method of the agent; over a broken link it is sent again, and done once, within a minute.

        Raises:
            KimiError: the agent refused, or there is no link.
        """
        if method not in READ_ONLY:
            params.setdefault("command", uuid4().hex)
        if not self._connected.is_set():
            raise UnavailableError(f"no link to {self.title} now ({self._link.detail or self._link.state})")
        try:
            async with asyncio.timeout(None) as deadline:
                while True:
                    client = await self._live_client()
                    deadline.reschedule(None)
                    try:
                        return await client.request(method, **params)
                    except LinkLost:
                        deadline.reschedule(asyncio.get_running_loop().time() + self._patience.resend_within)
        except TimeoutError as error:
            raise UnavailableError(
                f"the link to {self.title} broke during {method}; whether it was done is not known",
                "Look at the state once the link is back.",
            ) from error

    async def close(self) -> None:
        """Let go of the agent; it and the server stay as they are."""
        self._closed = True
        self._retry.set()
        if self._client is not None:
            await self._client.close()
        self._set_link("ended")

    async def _connect(self) -> AgentClient:
        client = await AgentClient.greet(await self._dial())
        client.on_end = self._connected.clear
        self.hello = client.hello
        return client

    async def _one_connection(self) -> AsyncGenerator[Sequence[Event], None]:
        """The batches of one connection, from dialling to its end.

        Raises:
            KimiError: it could not be made, or broke.
        """
        self._set_link("connecting", self._link.detail)
        client = self._client = self._client or await self._connect()
        if self._closed:
            self._client = None
            await client.close()
            return
        if self._is_another_journal(client.hello):
            self._epoch, self._last = client.hello.epoch, 0
        self._pid = client.hello.pid
        subscribing = asyncio.create_task(self._subscribe(client))
        pinging = asyncio.create_task(_keep_alive(client, self._patience))
        try:
            async with aclosing(client.batches()) as batches:
                async for batch in batches:
                    if not client.ended:
                        self._mark_live()
                    if fresh := self._in_order(batch):
                        yield fresh
            raise LinkLost(await _reason(client, subscribing))
        finally:
            self._client = None
            self._connected.clear()
            await client.close()
            await _end(subscribing)
            await _end(pinging)

    def _is_another_journal(self, hello: Hello) -> bool:
        """Whether what was seen is not in it: after a crash of the host, or of an agent whose disk was full."""
        new_life = hello.pid != self._pid
        return hello.epoch != self._epoch or hello.last < self._last or (new_life and hello.begun < self._last)

    async def _subscribe(self, client: AgentClient) -> None:
        try:
            await client.subscribe(self._epoch, self._last, snapshot=self._snapshot)
        except KimiError:
            await client.close()
            raise
        if not client.ended:
            self._mark_live()

    def _mark_live(self) -> None:
        """The agent accepted the subscription: its answer says so, and so do its events."""
        if not self._connected.is_set():
            self._connected.set()
            self._lost_at = None
            self._set_link("live")

    def _in_order(self, batch: Sequence[Event]) -> list[Event]:
        """The batch without what was seen before, and with a `Gap` for what is missing."""
        fresh: list[Event] = []
        for event in batch:
            if event.seq <= self._last:
                continue
            if isinstance(event.body, Snapshot):
                fresh.append(event)
                self._last = event.seq
                continue
            if isinstance(event.body, Gap):
                fresh.append(Event(self._last + 1, event.time, Gap(self._last + 1, event.seq, event.body.reason)))
                self._last = event.seq
                continue
            if event.seq > self._last + 1:
                gap = Gap(self._last + 1, event.seq - 1, "the agent no longer holds them")
                fresh.append(Event(gap.first, event.time, gap))
            fresh.append(event)
            self._last = event.seq
        return fresh

    async def _live_client(self) -> AgentClient:
        while self._client is None or not self._connected.is_set():
            await self._connected.wait()
        return self._client

    def _delay(self, failures: int) -> float:
        """Seconds before the next attempt."""
        patience = self._patience
        delay: float = min(patience.last_delay, patience.first_delay * 2 ** min(failures - 1, 10))
        return delay * random.uniform(0.75, 1.25)  # noqa: S311 - jitter

    async def _wait_to_dial(self, detail: str, delay: float | None) -> None:
        """Wait for the next attempt; without a delay until the operator wants it."""
        self._lost_at = self._lost_at or time.time()
        what = "" if delay is None else f"; next attempt in {delay:.0f} s"
        self._set_link("lost", f"{detail.rstrip('.')}{what}")
        self._retry.clear()
        try:
            async with asyncio.timeout(delay):
                await self._retry.wait()
        except TimeoutError:
            return

    def _set_link(self, state: str, detail: str = "") -> None:
        self._link = Link(state, detail, self._lost_at or time.time())
        if self.on_link is not None:
            self.on_link(self._link)


async def _keep_alive(client: AgentClient, patience: Patience) -> None:
    """Ping, and drop the connection when nothing at all came back for too long."""
    pending: set[asyncio.Task[None]] = set()
    while True:
        before = patience.wall()
        await asyncio.sleep(patience.ping_interval)
        if patience.wall() - before > patience.ping_interval + SLEPT and not await _answers(client, patience):
            await client.close(SILENT)
            return
        if client.silent_for > patience.ping_interval * patience.missed_pings:
            await client.close(SILENT)
            return
        if not pending:
            task = asyncio.create_task(_ping(client))
            pending.add(task)
            task.add_done_callback(pending.discard)


async def _answers(client: AgentClient, patience: Patience) -> bool:
    """Whether the agent answers within one ping interval: asked after a sleep, which few links survive."""
    try:
        async with asyncio.timeout(patience.ping_interval):
            await client.request("ping")
    except (TimeoutError, KimiError):
        return False
    return True


async def _ping(client: AgentClient) -> None:
    try:
        await client.request("ping")
    except KimiError:
        return


async def _reason(client: AgentClient, subscribing: asyncio.Task[None]) -> str:
    """Why the connection ended, in words."""
    if client.given_up:
        return client.given_up
    if subscribing.done() and (error := subscribing.exception()) is not None:
        return str(error)
    return await client.last_words() or "the connection ended"


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and let it finish; its own failure was reported where it mattered."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
