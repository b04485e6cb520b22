"""The agent of a far host as a transport: one SSH connection and one `attach` on it for every dial."""

from pathlib import Path
from typing import Any

import asyncssh

from kimi_agent.errors import UnavailableError, UsageError
from kimi_agent.text import clean
from kimi_console.remote.bootstrap import Attachment, bootstrap, raw
from kimi_console.remote.ssh import open_ssh
from kimi_console.source.client import Dial, Transport
from kimi_console.source.local import last_line
from kimi_console.source.questions import Questions

LAST_WORDS_WITHIN = 2.0


class SshTransport:
    """The standard input and output of a command on the host as a byte stream."""

    def __init__(self, connection: asyncssh.SSHClientConnection, process: "asyncssh.SSHClientProcess[bytes]") -> None:
        self._connection = connection
        self._process = process

    async def read(self, size: int) -> bytes:
        try:
            return await self._process.stdout.read(size)
        except (asyncssh.Error, OSError):
            return b""

    def write(self, data: bytes) -> None:
        self._process.stdin.write(data)

    async def drain(self) -> None:
        try:
            await self._process.stdin.drain()
        except asyncssh.Error as error:
            raise ConnectionError(clean(str(error))) from error

    async def close(self) -> None:
        self._connection.abort()
        await self._connection.wait_closed()

    async def last_words(self) -> str:
        try:
            done = await self._process.wait(check=False, timeout=LAST_WORDS_WITHIN)
        except (asyncssh.Error, OSError):
            return ""
        return last_line(raw(done.stderr))


def ssh_dial(
    host: str,
    python: str | None = None,
    config: Path | None = None,
    *,
    read_only: bool = False,
    questions: Questions | None = None,
) -> Dial:
    """Dials the agent of a host over SSH, bringing it there when needed.

    Args:
        host: alias or `[user@]host[:port]`.
        python: the interpreter on the host; searched for when not given.
        config: an ssh config to use instead of the user's own.
        read_only: attach without the right to act.
        questions: who types passwords and passphrases.

    Raises:
        UsageError: the interpreter's path holds control characters.
    """
    if python is not None and not python.isprintable():
        raise UsageError(f"{clean(python)!r} is not a path", "Give a path without control characters with --python.")
    chosen = python

    async def dial() -> Transport:
        nonlocal chosen
        connection = await open_ssh(host, config, questions=questions)
        try:
            attachment = await bootstrap(connection, host, chosen)
            # A redial goes straight to the interpreter that worked.
            chosen = attachment.python
            return await attach(connection, host, attachment, read_only=read_only)
        except BaseException:
            connection.abort()
            raise

    return dial


async def attach(
    connection: asyncssh.SSHClientConnection, host: str, attachment: Attachment, *, read_only: bool
) -> SshTransport:
    """Run `kimi_agent attach` on the host.

    Raises:
        UnavailableError: the host runs no command for this account.
    """
    options: dict[str, Any] = {"encoding": None, "request_pty": False}
    try:
        process = await connection.create_process(attachment.command(read_only=read_only), **options)
    except (OSError, asyncssh.Error) as error:
        raise UnavailableError(f"{host} refused to run the agent: {clean(str(error))}", "Connect again.") from error
    return SshTransport(connection, process)
