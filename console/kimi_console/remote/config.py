"""The operator's ssh config: which hosts it names, and what it says about one of them."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from kimi_agent.errors import UsageError

GLOBAL_KNOWN_HOSTS = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
MAX_INCLUDES = 16


@dataclass(frozen=True, slots=True)
class HostConfig:
    """One host after the config's expansion."""

    alias: str
    """The host as it was typed."""
    hostname: str
    port: int
    user: str
    jump: str | None
    """ProxyJump's hosts, or nothing."""
    identities: tuple[Path, ...]
    """IdentityFile's paths; empty when ssh's defaults apply."""
    identities_only: bool
    """Whether the ssh-agent may offer no other keys."""
    certificates: tuple[Path, ...]
    """CertificateFile's paths."""
    known_hosts: tuple[Path, ...]
    connect_timeout: float | None
    """ConnectTimeout in seconds, or nothing."""
    ssh_arguments: tuple[str, ...]
    """What the ssh command needs to reach the same host."""

    @property
    def address(self) -> str:
        """`host:port` to connect to."""
        return f"[{self.hostname}]:{self.port}" if ":" in self.hostname else f"{self.hostname}:{self.port}"


def default_config() -> Path:
    """The user's own ssh config."""
    return Path.home() / ".ssh" / "config"


async def host_config(host: str, config: Path | None, port: int | None = None, user: str | None = None) -> HostConfig:
    """What the config says about a host; `config` replaces the user's own file.

    Raises:
        UsageError: the config cannot be read, or a line of it is wrong.
    """
    given: dict[str, Any] = {"host": host, "client_keys": None}
    given |= {"port": port} if port is not None else {}
    given |= {"username": user} if user is not None else {}
    try:
        options = await asyncssh.SSHClientConnectionOptions.construct(config=config_files(config), **given)
    except OSError as error:
        raise UsageError(f"cannot read the ssh config: {error}", "Correct the path or its permissions.") from error
    except ValueError as error:
        raise UsageError(f"the ssh config is wrong: {error}", "Correct that line.") from error
    read = options.config.get
    files = [*read("UserKnownHostsFile", ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"])]
    shared = [Path(name).expanduser() for name in read("GlobalKnownHostsFile", [])] or list(GLOBAL_KNOWN_HOSTS)
    return HostConfig(
        alias=host,
        hostname=options.host,
        port=options.port,
        user=options.username,
        jump=options.tunnel if isinstance(options.tunnel, str) else None,
        identities=tuple(Path(name).expanduser() for name in read("IdentityFile", [])),
        identities_only=bool(read("IdentitiesOnly", False)),
        certificates=tuple(Path(name).expanduser() for name in read("CertificateFile", [])),
        connect_timeout=options.connect_timeout,
        known_hosts=(*(Path(name).expanduser() for name in files), *shared),
        ssh_arguments=(
            *(("-F", str(config)) if config is not None else ()),
            *(("-p", str(port)) if port is not None else ()),
            f"{user}@{host}" if user is not None else host,
        ),
    )


def config_files(config: Path | None) -> list[str]:
    """The files that asyncssh is to read: the given one, else the user's own when it exists.

    Raises:
        UsageError: the given file does not exist.
    """
    if config is None:
        return [str(default_config())] if default_config().is_file() else []
    if not config.is_file():
        raise UsageError(f"there is no ssh config {config}", "Correct the path after --ssh-config.")
    return [str(config)]


def named_hosts(config: Path | None = None) -> list[str]:
    """The aliases that the config names, without patterns, in its order; includes are followed.

    Raises:
        UsageError: the given file does not exist or cannot be read.
    """
    if config is not None:
        config_files(config)
    found: dict[str, None] = {}
    _collect(config or default_config(), found, MAX_INCLUDES)
    return list(found)


def _collect(path: Path, found: dict[str, None], depth: int) -> None:
    try:
        text = path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Correct its permissions.") from error
    for line in text.splitlines():
        words = _words(line)
        keyword, values = (words[0].lower(), words[1:]) if words else ("", [])
        if keyword == "host":
            found |= dict.fromkeys(name for name in values if not set(name) & set("*?!"))
        elif keyword == "include" and depth:
            for pattern in values:
                for included in _included(pattern):
                    _collect(included, found, depth - 1)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line.replace("=", " ", 1), comments=True)
    except ValueError:
        return []


def _included(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if not path.is_absolute():
        path = Path.home() / ".ssh" / path
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
