"""What the console knows of its hosts: what the operator wrote in hosts.toml, and how each was when last seen."""

import json
import os
import time
import tomllib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from kimi_agent.errors import UsageError
from kimi_console.paths import config_dir, state_dir

MAX_SEEN = 500
"""Hosts remembered; the one not seen for longest is forgotten first."""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """One host's table in hosts.toml."""

    python: str | None = None
    """The Python that runs SGLang there."""


@dataclass(frozen=True, slots=True)
class Seen:
    """How a host was when the console last heard of it."""

    time: float
    """Unix time."""
    status: str
    model: str = ""


def hosts_file() -> Path:
    """The operator's file: one table a host, by the name that `connect` is given."""
    return config_dir() / "hosts.toml"


def host_settings(host: str, path: Path | None = None) -> HostSettings:
    """What hosts.toml says of a host; nothing when it says nothing.

    Raises:
        UsageError: the file cannot be read, or holds what it should not.
    """
    path = path or hosts_file()
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return HostSettings()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Make it readable.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}", "Correct that line.") from error
    table = tables.get(host, {})
    unknown = sorted(set(table) - {"python"}) if isinstance(table, dict) else []
    if unknown:
        raise UsageError(f"{path}: unknown key {host}.{unknown[0]}", "Known is python.")
    try:
        return msgspec.convert(table, HostSettings)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {host}: {error}", 'Write python = "/path/to/python".') from error


def seen_file() -> Path:
    """Where the console remembers how hosts were."""
    return state_dir() / "hosts.json"


def last_seen() -> dict[str, Seen]:
    """How each host was when last seen; empty when nothing is remembered, or it cannot be read."""
    try:
        return msgspec.json.decode(seen_file().read_bytes(), type=dict[str, Seen])
    except (OSError, msgspec.DecodeError):
        return {}


def remember(host: str, status: str, model: str = "") -> None:
    """Keep how a host is now; a disk that takes nothing costs only the memory of it."""
    known = last_seen() | {host: Seen(time.time(), status, model)}
    newest = sorted(known.items(), key=lambda item: -item[1].time)[:MAX_SEEN]
    path = seen_file()
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.write_text(json.dumps({name: asdict(seen) for name, seen in newest}))
        part.chmod(0o600)
        part.replace(path)
