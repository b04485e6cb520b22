"""SSH connections that honour the operator's config, check host keys strictly, and say exactly what went wrong."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from kimi_agent.errors import UsageError
from kimi_agent.text import clean
from kimi_console.remote.config import HostConfig, config_files, host_config
from kimi_console.remote.hostkeys import HostKeys
from kimi_console.remote.login import Deadline, Witness
from kimi_console.remote.refusals import Attempt
from kimi_console.source.questions import Questions

MAX_HOPS = 8


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that each part of connecting may take, and the keepalive."""

    connect: float = 20.0
    """For the TCP connection of each hop; the config's ConnectTimeout comes before it."""
    login: float = 15.0
    """From the TCP connection to the end of the login, without the time that the operator types."""
    keepalive: float = 5.0
    """Between two probes of a silent connection; three unanswered ones end it."""


@dataclass(frozen=True, slots=True)
class _Way:
    """What all hops to a host have in common."""

    config: Path | None
    deadlines: Deadlines
    questions: Questions


async def open_ssh(
    host: str, config: Path | None = None, deadlines: Deadlines | None = None, questions: Questions | None = None
) -> asyncssh.SSHClientConnection:
    """Log in to a host, through its jump hosts if it has any.

    Args:
        host: an alias of the config, or `[user@]host[:port]`.
        config: an ssh config to use instead of the user's own.
        deadlines: other than the default ones.
        questions: who types passwords and passphrases; nobody when not given.

    Raises:
        UnavailableError: the host cannot be reached, or its key or the login is refused.
        UsageError: the host's spelling, the config or a key file is wrong.
    """
    way = _Way(config, deadlines or Deadlines(), questions or Questions())
    name, user, port = parse_host(host)
    return await _open(await host_config(name, config, port, user), way, None, MAX_HOPS)


def parse_host(text: str) -> tuple[str, str | None, int | None]:
    """(host, user, port) of `[user@]host[:port]`, with IPv6 addresses in brackets or bare.

    Raises:
        UsageError: it is not that.
    """
    rest = text.removeprefix("ssh://").removesuffix("/")
    user, _, rest = rest.rpartition("@")
    port = ""
    if rest.startswith("["):
        rest, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        rest, _, port = rest.partition(":")
    wrong = not rest or rest.startswith("-") or not rest.isprintable() or any(c.isspace() for c in rest)
    if wrong or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536)):
        raise UsageError(f"{clean(text)!r} is not a host", "Write [user@]host[:port] or a name of your ssh config.")
    return rest, user or None, int(port) if port else None


async def _open(
    target: HostConfig, way: _Way, via: asyncssh.SSHClientConnection | None, hops_left: int
) -> asyncssh.SSHClientConnection:
    """Connect to one host, first through the jump hosts of its config when it is the first hop itself."""
    if via is None and target.jump:
        if hops_left == 0:
            raise UsageError(f"{target.alias} has more than {MAX_HOPS} jump hosts", "Look for a loop in ProxyJump.")
        for hop in target.jump.split(","):
            name, user, port = parse_host(hop.strip())
            via = await _open(await host_config(name, way.config, port, user), way, via, hops_left - 1)
    try:
        return await _login(target, way, via)
    except BaseException:
        if via is not None:
            via.abort()
        raise


async def _login(
    target: HostConfig, way: _Way, via: asyncssh.SSHClientConnection | None
) -> asyncssh.SSHClientConnection:
    limit = target.connect_timeout or way.deadlines.connect
    deadline = Deadline(way.deadlines.login)
    witness = Witness(target, HostKeys(target.known_hosts), way.questions, deadline)
    try:
        async with asyncio.timeout(limit) as deadline.timeout:
            connection = await asyncssh.connect(
                target.alias,
                tunnel=via,
                known_hosts=witness.keys.match,
                client_factory=lambda: witness,
                # The deadline above counts; asyncssh's own would run on while the operator types.
                login_timeout=0,
                connect_timeout=0,
                keepalive_interval=way.deadlines.keepalive,
                ignore_encrypted=True,
                agent_forwarding=False,
                # Events are JSON: a day of them shrinks tenfold on its way.
                compression_algs=["zlib@openssh.com", "none"],
                **_identity(target, way.config),
            )
    except (OSError, asyncssh.Error, ValueError) as error:
        attempt = Attempt(target, way.config, witness, via, limit, way.deadlines.login)
        raise await attempt.explain(error) from error
    if via is not None:
        connection.set_tunnel(via)
    return connection


def _identity(target: HostConfig, config: Path | None) -> dict[str, Any]:
    """Where and as whom to log in, and with which keys."""
    options: dict[str, Any] = {"port": target.port, "username": target.user, "config": config_files(config)}
    if target.identities:
        present = [str(path) for path in target.identities if path.is_file()]
        options["client_keys"] = present
        if target.identities_only and not present:
            options["agent_path"] = None
    return options
