"""The agent as a daemon: a unix socket that only this user can open, one task a connection."""

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from kimi_agent import __version__
from kimi_agent.agent import Agent
from kimi_agent.bundle import build_id
from kimi_agent.errors import KimiError, UnavailableError, UsageError
from kimi_agent.host.logind import scope_argv
from kimi_agent.host.procfs import starttime
from kimi_agent.paths import Home, full_disk, private_dir, system_error
from kimi_agent.runs.journal import locked
from kimi_agent.wire.client import Client
from kimi_agent.wire.codec import MAX_LINE, WireError, decode, encode
from kimi_agent.wire.peer import same_user
from kimi_agent.wire.rpc import PROTOCOL, READ_ONLY, Request, error_line, parse_request, result_line

START_DEADLINE = 30.0
START_POLL = 0.05
MAX_PENDING = 64
"""Requests of one connection that are answered at once; further ones wait in the socket."""

Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]

log = logging.getLogger(__name__)


class _Connection:
    """One client."""

    def __init__(self, agent: Agent, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._agent = agent
        self._reader = reader
        self._writer = writer
        self._read_only = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._feed: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Greet, then answer requests until the client leaves."""
        if not same_user(self._writer.get_extra_info("socket")):
            self._writer.close()
            return
        self._agent.clients += 1
        try:
            await self._send([encode({"hello": asdict(self._agent.hello())})])
            while line := await self._reader.readline():
                await self._take(line)
        except (ConnectionError, ValueError, asyncio.IncompleteReadError) as error:
            log.info("a client was dropped: %s", error)
        finally:
            self._agent.clients -= 1
            for task in (*self._tasks, self._feed):
                if task is not None:
                    task.cancel()
            self._writer.close()

    async def _take(self, line: bytes) -> None:
        try:
            request = parse_request(decode(line))
        except WireError as error:
            await self._send([error_line(0, error)])
            return
        if request.method == "read_only":
            self._read_only = True
            await self._send([result_line(request.id, {})])
        elif request.method == "subscribe":
            await self._subscribe(request)
        else:
            if len(self._tasks) >= MAX_PENDING:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.create_task(self._answer(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Request) -> None:
        try:
            if self._read_only and request.method not in READ_ONLY:
                raise UsageError("this connection is read-only", "Connect without --read-only.", slug="read_only")
            line = result_line(request.id, await self._agent.call(request.method, request.params))
        except KimiError as error:
            line = error_line(request.id, error)
        except OSError as error:
            log.exception("%s failed", request.method)
            line = error_line(request.id, system_error(error))
        except Exception as error:  # the client is told, the log has the traceback, the agent goes on
            log.exception("%s failed", request.method)
            line = error_line(request.id, KimiError(f"{request.method} failed: {type(error).__name__}: {error}"))
        if len(line) > MAX_LINE:
            line = error_line(request.id, KimiError(f"the answer to {request.method} is longer than {MAX_LINE} bytes"))
        with contextlib.suppress(ConnectionError):
            await self._send([line])

    async def _subscribe(self, request: Request) -> None:
        journal = self._agent.journal
        after = request.params.get("after", 0)
        if not isinstance(after, int) or after < 0:
            error = UsageError("subscribe: after must be a sequence number", "Send 0 for all events.")
            await self._send([error_line(request.id, error)])
            return
        if request.params.get("epoch") not in (None, journal.epoch):
            after = 0
        where = {"epoch": journal.epoch, "first": journal.first, "last": journal.last}
        answer = [result_line(request.id, where)]
        if after == 0 and request.params.get("snapshot") is True and (line := self._agent.snapshot()) is not None:
            answer.append(line)
            after = journal.last
        await self._send(answer)
        if self._feed is not None:
            self._feed.cancel()
        self._feed = asyncio.create_task(self._push(min(after, journal.last)))

    async def _push(self, after: int) -> None:
        with contextlib.suppress(ConnectionError):
            async for lines in self._agent.journal.follow(after):
                await self._send(lines)

    async def _send(self, lines: Sequence[bytes]) -> None:
        self._writer.write(b"\n".join(lines) + b"\n")
        await self._writer.drain()


async def serve(home: Home) -> None:
    """Run the agent until it is asked to end or gets SIGTERM or SIGINT.

    Raises:
        KimiError: another agent has this home, or the socket cannot be made.
    """
    agent = Agent(home)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.closing.set)
    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_Connection(agent, reader, writer).serve())
        connections.add(task)
        task.add_done_callback(connections.discard)

    await agent.begin()
    try:
        server = await _listen(home, accept)
        async with server:
            await agent.closing.wait()
            await asyncio.sleep(0)
    finally:
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        home.socket.unlink(missing_ok=True)
        await agent.end()


async def _listen(home: Home, accept: Accept) -> asyncio.Server:
    for directory in (home.sockets.parent, home.sockets):
        if directory != home.root.parent:
            private_dir(directory)
    home.socket.unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        return await asyncio.start_unix_server(accept, str(home.socket), limit=MAX_LINE)
    except OSError as error:
        raise KimiError(f"cannot open {home.socket}: {error.strerror}", "Choose another --home.") from error
    finally:
        os.umask(before)


def connect(home: Home, *, start: bool, upgrade: bool = True) -> Client:
    """A client of this home's agent, which is started first where `start` allows it.

    An agent of another build is replaced by this one unless another client is connected to it or it is newer; a
    server that runs does not notice, the new agent finds it again.

    Raises:
        UnavailableError: no agent answers, and none was or could be started, or it speaks another protocol.
    """
    try:
        client = Client(home.socket)
    except OSError:
        if not start:
            raise UnavailableError(
                f"no agent runs for {home.root}", "Start one with kimi-agent serve --detach, or connect with --start."
            ) from None
        return start_daemon(home)
    if start and upgrade and client.hello.get("build") != build_id() and _replaceable(client):
        _end(client)
        return start_daemon(home)
    if client.hello.get("protocol") != PROTOCOL:
        raise UnavailableError(
            f"the agent of {home.root} is {client.hello.get('version')}, which speaks another protocol",
            "Use the version of the other operators, or end that agent with its own kimi-agent stop --agent.",
        )
    return client


def _replaceable(client: Client) -> bool:
    if _numbers(str(client.hello.get("version"))) > _numbers(__version__):
        return False
    status = client.request("status")
    return bool(status["status"] != "STOPPING" and status["agent"].get("clients", 1) <= 1)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _end(client: Client) -> None:
    """Ask an agent to end and wait until its process is gone.

    Raises:
        UnavailableError: it does not end.
    """
    pid = int(client.hello["pid"])
    begun = starttime(pid)
    client.request("shutdown")
    client.close()
    deadline = time.monotonic() + START_DEADLINE
    while starttime(pid) == begun is not None:
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"the old agent, pid {pid}, does not end", f"End it with kill {pid}; a server goes on."
            )
        time.sleep(START_POLL)


def start_daemon(home: Home) -> Client:
    """Start the agent in a session of its own and wait until it answers.

    Raises:
        UnavailableError: it ended at once, with its last words.
    """
    private_dir(home.root)
    unit = f"kimi-agent-{hashlib.sha256(os.fsencode(home.root)).hexdigest()[:8]}-{os.getpid()}"
    # Inside a service the agent stays where the service manager finds it.
    scope = [] if os.environ.get("INVOCATION_ID") else scope_argv(unit, os.getuid())
    if scope and (client := _spawn_and_wait(home, scope)) is not None:
        return client
    for _ in range(2):  # the first may find the journal of one that is about to end
        if (client := _spawn_and_wait(home, [])) is not None:
            return client
    words = home.log.read_text("utf-8", "replace").strip().rpartition("\n")[2].removeprefix("kimi-agent: ")
    if not words and full_disk([home.root]):
        raise UnavailableError(f"the agent did not start: the disk of {home.root} is full", "Free space there.")
    raise UnavailableError(f"the agent did not start: {words}", f"See {home.log}.")


def _spawn_and_wait(home: Home, before: list[str]) -> Client | None:
    """A client of the agent that was started, or of one that was faster; `None` when there is none."""
    argv = [*before, sys.executable, "-m", "kimi_agent", "serve", "--home", str(home.root)]
    output = os.open(home.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    quiet = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, fd, at) for fd, at in ((quiet, 0), (output, 1), (output, 2))]
        pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions, setsid=True)
    finally:
        os.close(output)
        os.close(quiet)
    deadline, ended = time.monotonic() + START_DEADLINE, False
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            client = Client(home.socket)
            if not before and not ended and client.hello.get("pid") != pid:  # it would be the next one when that ends
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            return client
        if ended and not locked(home.journal):
            return None
        # Where another one holds the journal it is about to answer.
        ended = ended or os.waitpid(pid, os.WNOHANG)[0] == pid
        time.sleep(START_POLL)
    return None
