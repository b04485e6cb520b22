"""A real peer on a unix socket that speaks the agent's protocol and can cut the stream at any byte."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pytest

from kimi_agent.model.events import Event, Gap, Note
from kimi_agent.wire.codec import encode_event
from kimi_agent.wire.rpc import PROTOCOL, Hello
from kimi_console.source.client import Transport


class SocketTransport:
    """A unix socket as the client's transport."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, size: int) -> bytes:
        try:
            return await self._reader.read(size)
        except ConnectionError:
            return b""

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.transport.abort()
        self._reader.feed_eof()

    async def last_words(self) -> str:
        return ""


@dataclass
class Peer:
    """An agent's end: a journal in memory, served from any sequence number on."""

    path: Path
    epoch: str = "e1"
    journal: list[Event] = field(default_factory=list)
    first: int = 1
    """Events before this one are gone."""
    pid: int = 1
    begun: int = 0
    """Last event when its life began."""
    cuts: list[int] = field(default_factory=list)
    """Bytes that each connection may still send after its greeting; then it is aborted. No entry: no cut."""
    noise: bytes = b""
    """Sent before the greeting."""
    protocol: int = PROTOCOL
    silent: bool = False
    """Whether anything is answered at all after the greeting."""
    chunk: int = 1 << 16
    calls: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    answer: Callable[[str], object] = lambda method: {}
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at every call."""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def dial(self) -> Transport:
        """A new connection to this peer."""
        return SocketTransport(*await asyncio.open_unix_connection(str(self.path)))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve within the block; connections end with it."""
        server = await asyncio.start_unix_server(self._accept, str(self.path))
        try:
            yield
        finally:
            server.close()
            self.drop()
            await asyncio.gather(*self.tasks)

    def note(self, text: str) -> None:
        """Journal one more event."""
        self.journal.append(Event(len(self.journal) + 1, 100.0 + len(self.journal), Note("info", text)))
        self.grown.set()
        self.grown = asyncio.Event()

    def drop(self) -> None:
        """Abort every connection."""
        for writer in self.writers:
            if not writer.is_closing():
                writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        line = _Line(writer, self.cuts.pop(0) if self.cuts else None, self.chunk)
        hello = Hello(
            self.protocol, "0", self.epoch, self.first, len(self.journal), "host", self.pid, "build", self.begun
        )
        writer.write(self.noise + orjson.dumps({"hello": asdict(hello)}) + b"\n")
        feed: asyncio.Task[None] | None = None
        try:
            while raw := await reader.readline():
                request = orjson.loads(raw)
                method, params = request["method"], request["params"]
                self.calls.append((method, params))
                self.heard.set()
                if self.silent:
                    continue
                if method == "subscribe":
                    where = {"epoch": self.epoch, "first": self.first, "last": len(self.journal)}
                    await line.send(orjson.dumps({"id": request["id"], "result": where}) + b"\n")
                    feed = asyncio.create_task(self._feed(line, params["after"]))
                else:
                    await line.send(orjson.dumps({"id": request["id"], **self._result(method)}) + b"\n")
        except ConnectionError:
            return
        finally:
            if feed is not None:
                feed.cancel()
            writer.close()

    def _result(self, method: str) -> dict[str, object]:
        answer = self.answer(method)
        return answer if isinstance(answer, dict) and "error" in answer else {"result": answer}

    async def _feed(self, line: "_Line", after: int) -> None:
        try:
            while True:
                grown = self.grown
                if after + 1 < self.first:
                    gap = Event(self.first - 1, 1.0, Gap(after + 1, self.first - 1, "rotated"))
                    await line.send(encode_event(gap) + b"\n")
                    after = self.first - 1
                fresh: Sequence[Event] = self.journal[after:]
                if fresh:
                    await line.send(b"".join(encode_event(event) + b"\n" for event in fresh))
                    after = fresh[-1].seq
                else:
                    await grown.wait()
        except ConnectionError:
            return


@dataclass
class _Line:
    """Counts bytes and aborts the connection where it is to be cut."""

    writer: asyncio.StreamWriter
    left: int | None
    chunk: int

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), self.chunk):
            part = data[start : start + self.chunk]
            if self.left is not None and len(part) > self.left:
                self.writer.write(part[: self.left])
                await self.writer.drain()
                self.writer.close()
                raise ConnectionResetError
            self.left = None if self.left is None else self.left - len(part)
            self.writer.write(part)
            await self.writer.drain()


@pytest.fixture
def make_peer() -> Iterator[Callable[..., Peer]]:
    """Makes peers on short socket paths."""
    with TemporaryDirectory(prefix="kc") as directory:
        count = 0

        def make(**fields: object) -> Peer:
            nonlocal count
            count += 1
            return Peer(Path(directory) / f"{count}.sock", **fields)  # type: ignore[arg-type]

        yield make
