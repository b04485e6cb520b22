"""One connection to an agent: greeting, requests, and events in batches, over any byte stream."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from kimi_agent.errors import KimiError, UnavailableError
from kimi_agent.model.events import Event
from kimi_agent.text import clean
from kimi_agent.wire.codec import MAX_LINE, WireError, decode, decode_lenient, encode
from kimi_agent.wire.rpc import PROTOCOL, Hello, refusal

CHUNK = 1 << 16
"""Bytes asked of the transport at once; one read is split into many events."""
MAX_NOISE = 1 << 16
"""Bytes of login messages that are skipped before the greeting."""


class Transport(Protocol):
    """A byte stream to an agent's standard input and output."""

    async def read(self, size: int) -> bytes:
        """At most `size` bytes as soon as there are any; empty at the end of the stream."""

    def write(self, data: bytes) -> None:
        """Queue bytes for the agent.

        Raises:
            OSError: the stream is closed.
        """

    async def drain(self) -> None:
        """Wait until the queue is short.

        Raises:
            OSError: the stream is closed.
        """

    async def close(self) -> None:
        """Drop the stream at once; a pending `read` returns empty."""

    async def last_words(self) -> str:
        """What the far end said on its standard error before it ended, in one line."""


Dial = Callable[[], Awaitable[Transport]]
"""Opens a new stream; raises KimiError naming what stands in the way."""


class LinkLost(UnavailableError):  # noqa: N818 - an event of the link, which usually comes back
    """The stream ended while something was expected from it."""

    slug = "link_lost"


@dataclass(frozen=True, slots=True)
class Subscription:
    """What the agent holds of its journal."""

    epoch: str
    first: int
    last: int


class AgentClient:
    """A greeted connection; `batches` must be iterated for anything to be received."""

    def __init__(self, transport: Transport, hello: Hello, rest: bytes = b"") -> None:
        self.hello = hello
        self.on_end: Callable[[], None] | None = None
        """Called once, when the connection ends, before pending requests fail."""
        self._transport = transport
        self._buffer = rest
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._next_id = 1
        self._listening_since: float | None = None
        self.given_up = ""
        """Why this side closed it, if it could not be used any more."""
        self.ended = False
        """Whether the stream is over; nothing more will come of it."""

    @classmethod
    async def greet(cls, transport: Transport, timeout: float = 20.0) -> "AgentClient":
        """Wait for the agent's greeting on a fresh stream, skipping login messages.

        Raises:
            UnavailableError: no greeting came, or the agent speaks another protocol.
        """
        try:
            async with asyncio.timeout(timeout):
                hello, rest = await _read_greeting(transport)
        except TimeoutError as error:
            await transport.close()
            raise UnavailableError(
                f"the agent did not greet within {timeout:.0f} s", "Look at agent.log in its home on the host."
            ) from error
        except KimiError:
            await transport.close()
            raise
        return cls(transport, hello, rest)

    @property
    def silent_for(self) -> float:
        """Seconds since anything was received, counted only while this side listens."""
        if self._listening_since is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._listening_since

    async def request(self, method: str, **params: Any) -> Any:
        """Call a method and wait for its result.

        Raises:
            LinkLost: the stream ended before the response.
            KimiError: the agent's refusal, with its slug, message and hint.
        """
        if self.ended:
            raise LinkLost("the connection to the agent has ended")
        ident = self._next_id
        self._next_id += 1
        future = self._waiting[ident] = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(encode({"id": ident, "method": method, "params": params}) + b"\n")
            await self._transport.drain()
            return await future
        except OSError as error:
            raise LinkLost(f"the connection broke: {error}") from error
        finally:
            self._waiting.pop(ident, None)
            if not future.cancel() and not future.cancelled():
                future.exception()

    async def subscribe(self, epoch: str | None, after: int, *, snapshot: bool = False) -> Subscription:
        """Ask for every event after `after`; they arrive through `batches`.

        With `snapshot`, a first subscription begins with the state so far in place of the events that made it.

        Raises:
            LinkLost: the stream ended before the response.
            KimiError: the agent refused, or its answer makes no sense.
        """
        answer = await self.request("subscribe", epoch=epoch, after=after, snapshot=snapshot)
        try:
            return msgspec.convert(answer, Subscription)
        except msgspec.ValidationError as error:
            raise WireError(f"the agent's answer to subscribe is not understood: {error}") from error

    async def batches(self) -> AsyncGenerator[list[Event], None]:
        """Events in lists, one list per read; ends when the stream does.

        Raises:
            WireError: a line is not of the protocol; the stream cannot be trusted any further.
        """
        loop = asyncio.get_running_loop()
        try:
            while True:
                if events := self._take_events():
                    yield events
                self._listening_since = loop.time()
                chunk = await self._transport.read(CHUNK)
                self._listening_since = None
                if not chunk:
                    return
                self._buffer += chunk
        finally:
            self._end()

    async def last_words(self) -> str:
        """What the far end said before it ended, in one line."""
        return await self._transport.last_words()

    async def close(self, why: str = "") -> None:
        """Drop the stream; pending requests fail with `LinkLost`. Who gives it up says why."""
        self.given_up = self.given_up or why
        self._end()
        await self._transport.close()

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._listening_since = None
        if self.on_end is not None:
            self.on_end()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LinkLost("the connection ended before the agent answered"))

    def _take_events(self) -> list[Event]:
        *lines, self._buffer = self._buffer.split(b"\n")
        if len(self._buffer) > MAX_LINE:
            raise WireError(f"the agent sent a line of more than {MAX_LINE} bytes")
        events = []
        for line in lines:
            if line.startswith(b'{"seq":'):
                events.append(decode_lenient(line))
            elif line:
                self._answer(decode(line))
        return events

    def _answer(self, message: dict[str, Any]) -> None:
        """Hand a response to whoever waits for it; a late one, nobody waits for any more, is dropped."""
        ident = message.get("id")
        future = self._waiting.get(ident) if isinstance(ident, int) else None
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(refusal(message["error"]))
        else:
            future.set_result(message.get("result"))


async def _read_greeting(transport: Transport) -> tuple[Hello, bytes]:
    """The greeting and what followed it in the same read."""
    buffer, noise, received = b"", b"", 0
    while True:
        while b"\n" in buffer:
            line, buffer = buffer.split(b"\n", 1)
            if (hello := _hello(line)) is not None:
                return hello, buffer
            noise = line.strip() or noise
        if received > MAX_NOISE:
            raise UnavailableError("the host sent 64 KiB without an agent's greeting", _quiet_login(noise))
        chunk = await transport.read(CHUNK)
        if not chunk:
            raise _ended_early(await transport.last_words(), noise)
        buffer += chunk
        received += len(chunk)


def _ended_early(words: str, noise: bytes) -> UnavailableError:
    """The stream ended before a greeting: the agent's own sentence when it left one."""
    own = words.removeprefix("kimi-agent: ")
    if own != words:
        return UnavailableError(own.rstrip("."))
    said = words or clean(noise.decode("utf-8", "replace")).strip()
    hint = "Look at agent.log in its home on the host."
    return UnavailableError(f"the agent ended before its greeting{': ' if said else ''}{said}", hint)


def _quiet_login(noise: bytes) -> str:
    said = clean(noise.decode("utf-8", "replace"), 200).strip()
    return f"Make the login shell quiet for commands; it said: {said}" if said else "Make the login shell quiet."


def _hello(line: bytes) -> Hello | None:
    """The greeting when `line` is one.

    Raises:
        UnavailableError: it is a greeting, of another protocol.
    """
    start = line.find(b'{"hello":')
    if start < 0:
        return None
    try:
        fields = decode(line[start:])["hello"]
    except WireError:
        return None
    protocol = fields.get("protocol") if isinstance(fields, dict) else None
    if protocol != PROTOCOL:
        raise UnavailableError(
            f"the agent speaks protocol {protocol}, this console {PROTOCOL}",
            "Stop it with `kimi-agent stop --agent` on the host (the server goes on), then connect again.",
        )
    try:
        return msgspec.convert(fields, Hello)
    except msgspec.ValidationError as error:
        raise UnavailableError(f"the agent's greeting is not understood: {error}") from error
