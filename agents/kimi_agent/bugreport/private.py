"""What is private on this host: names, homes and secrets that a redactor is to know beforehand."""

import os
import pwd
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kimi_agent.host.procfs import read_text
from kimi_agent.redact import GENERIC, Redactor
from kimi_agent.redact_patterns import is_secret_name

PEOPLE: Final = range(1000, 60_000)
"""User ids of people, as distributions give them."""
ADDRESSES: Final = ("--dist-init-addr", "--nccl-init-addr", "--host")
_TOKEN_FILES: Final = (".cache/huggingface/token", ".huggingface/token")
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*")


def redactor_of(argv: Sequence[str], environments: Iterable[Mapping[str, str]], hosts: Iterable[str] = ()) -> Redactor:
    """A redactor that knows this host, its people, and the secrets of a command line and of environments.

    `hosts` are further names, such as the one under which an operator knows this host.
    """
    variables = list(environments)
    people = _people()
    secrets = [value for each in variables for name, value in each.items() if is_secret_name(name) and value]
    secrets += [value for flag, value in _flags(argv) if is_secret_name(flag.lstrip("-"))]
    secrets += [token for home in people.values() if (token := _token(home))]
    given = [value.rpartition(":")[0].strip("[]") or value for flag, value in _flags(argv) if flag in ADDRESSES]
    return Redactor(
        hosts=[name for name in (*_own_names(), *hosts, *given) if _NAME.fullmatch(name) and not _is_number(name)],
        users=[*people, *_named_users(variables)],
        homes=[home for home in (*people.values(), *(each.get("HOME", "") for each in variables)) if len(home) > 2],
        secrets=secrets,
    )


def _flags(argv: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Every flag with the word after it."""
    for place, token in enumerate(argv):
        if token.startswith("--"):
            flag, separator, value = token.partition("=")
            following = argv[place + 1] if place + 1 < len(argv) else ""
            yield flag, value if separator else following


def _is_number(name: str) -> bool:
    return name.replace(".", "").isdecimal()


def _own_names() -> set[str]:
    """What this host calls itself, whole and up to its first dot, without asking any name server."""
    names = {os.uname().nodename, (read_text("/etc/hostname") or "").strip()}
    for line in (read_text("/etc/hosts") or "").splitlines():
        names.update(line.partition("#")[0].split()[1:])
    whole = {name for name in names if name and not name.startswith("ip6-")}
    return whole | {name.partition(".")[0] for name in whole} - GENERIC


def _people() -> dict[str, str]:
    """The names and homes of this user and of all others who are people."""
    found = {}
    for entry in pwd.getpwall():
        if entry.pw_uid in PEOPLE or entry.pw_uid == os.getuid():
            found[entry.pw_name] = entry.pw_dir
            full = entry.pw_gecos.split(",")[0].strip()
            if " " in full:
                found[full] = entry.pw_dir
    return found


def _named_users(variables: Iterable[Mapping[str, str]]) -> list[str]:
    wanted = ("USER", "LOGNAME", "SUDO_USER", "USERNAME")
    return [value for each in variables for name in wanted if (value := each.get(name))]


def _token(home: str) -> str | None:
    for name in _TOKEN_FILES:
        try:
            return (Path(home) / name).read_text("utf-8").strip() or None
        except (OSError, UnicodeDecodeError):
            continue
    return None
