"""Where the start screen can lead: hosts of the ssh config, recordings opened lately, the demo."""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kimi_agent.errors import KimiError
from kimi_console.hosts import last_seen
from kimi_console.paths import state_dir

KEPT = 9
"""Recordings remembered."""
HOST_KEYS = "123456789abcefgilmnoprstuvwxyz"
"""One key for each place, without those that move the cursor, leave or open the demo."""
DEMO_KEY = "d"

Kind = Literal["host", "recording", "demo"]


@dataclass(frozen=True, slots=True)
class Place:
    """One line of the start screen."""

    kind: Kind
    key: str
    """The key that opens it; empty when there are more places than keys."""
    name: str
    """What `connect` or `replay` is given."""
    words: str = ""
    """How it was when last seen."""
    when: float | None = None
    """Unix time of that."""


def places(hosts: Sequence[str]) -> list[Place]:
    """All places, each with its key: hosts as given with those seen before, recordings, the demo."""
    seen = last_seen()
    names = list(dict.fromkeys([*hosts, *sorted(seen, key=lambda host: -seen[host].time)]))
    found = [
        Place("host", "", name, _words(seen[name].status, seen[name].model), seen[name].time)
        if name in seen else Place("host", "", name)
        for name in names
    ]  # fmt: skip
    found += [Place("recording", "", str(path), when=path.stat().st_mtime) for path in recent_recordings()]
    keys = [*HOST_KEYS[: len(found)], *[""] * max(0, len(found) - len(HOST_KEYS))]
    keyed = [Place(one.kind, key, one.name, one.words, one.when) for one, key in zip(found, keys, strict=True)]
    return [*keyed, Place("demo", DEMO_KEY, "demo")]


def _words(status: str, model: str) -> str:
    return f"{status} {Path(model).name}".strip()


def known_hosts_of(config: Path | None) -> tuple[list[str], str]:
    """The hosts that the ssh config names, and what is wrong with it."""
    from kimi_console.remote.config import named_hosts  # noqa: PLC0415 - asyncssh costs 0.2 s

    try:
        return named_hosts(config), ""
    except KimiError as error:
        return [], str(error)


def recent_recordings() -> list[Path]:
    """The recordings opened or made lately that still exist, newest first."""
    try:
        listed = json.loads((state_dir() / "recordings.json").read_bytes())
    except (OSError, ValueError):
        return []
    paths = [Path(name) for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    return [path for path in paths if path.is_file()]


def remember_recording(path: Path) -> None:
    """Put a recording first among the recent ones; a disk that takes nothing costs only the memory of it."""
    names = [str(path.absolute()), *(str(one) for one in recent_recordings() if one != path.absolute())][:KEPT]
    target = state_dir() / "recordings.json"
    part = target.with_name(f".{target.name}.{os.getpid()}")
    with suppress(OSError):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.write_text(json.dumps(names))
        part.chmod(0o600)
        part.replace(target)


def ago(when: float) -> str:
    """`3 min ago`, `5 h ago`, `2 d ago`."""
    seconds = max(0.0, time.time() - when)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now"
