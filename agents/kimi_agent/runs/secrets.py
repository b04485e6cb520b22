"""Keys and tokens of a run: out of events and off the process list, which every user of a host can read."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from kimi_agent.redact_patterns import harmless, is_secret_name, spellings

HIDDEN: Final = "***"
SHORTEST: Final = 6
"""A shorter value would be hidden where it means something else; a key of that size is none."""
CONFIG_FLAG: Final = "--config"


class Secrets:
    """The secret values of one run."""

    def __init__(self, values: Sequence[str]) -> None:
        known = {spelled for value in values if len(value) >= SHORTEST for spelled in spellings(value)}
        self._spelled = sorted(known, key=len, reverse=True)

    @classmethod
    def of(cls, argv: Sequence[str], env: Mapping[str, str]) -> "Secrets":
        """What a command line and an environment hold under names such as `--api-key` or `HF_TOKEN`."""
        found = [value for name, value in env.items() if is_secret_name(name) and not harmless(name, value)]
        return cls([*found, *(argv[at][cut:] for at, cut, _ in _secret_values(argv))])

    def hide(self, text: str) -> str:
        """The text with `***` in place of every secret."""
        for value in self._spelled:
            if value in text:
                text = text.replace(value, HIDDEN)
        return text

    def hide_argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        """A command line for a person: no value of a secret's flag, however short, and no secret elsewhere."""
        shown = list(argv)
        for at, cut, _ in _secret_values(argv):
            shown[at] = shown[at][:cut] + HIDDEN
        return tuple(map(self.hide, shown))


def conceal(argv: Sequence[str], directory: Path) -> tuple[str, ...]:
    """A command line to start: secret flags are moved into a file of `directory` that only this user can read.

    SGLang reads that file through `--config`; a command line that has one of its own is left as it is.

    Raises:
        OSError: the file cannot be written.
    """
    found = list(_secret_values(argv))
    if not found or CONFIG_FLAG in argv:
        return tuple(argv)
    moved = {name: argv[at][cut:] for at, cut, name in found}
    gone = {at for at, _, _ in found} | {at - 1 for at, cut, _ in found if cut == 0}
    path = directory / "secrets.yaml"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        # JSON is YAML too, and quotes everything.
        json.dump(moved, file)
    return (*(word for at, word in enumerate(argv) if at not in gone), CONFIG_FLAG, str(path))


def _secret_values(argv: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """(place of the word, where in it the value begins, the flag's name) of every flag whose name says secret."""
    for at, word in enumerate(argv):
        flag, separator, value = word.partition("=")
        name = flag.removeprefix("--")
        if not flag.startswith("--") or not is_secret_name(name):
            continue
        if separator:
            if not harmless(name, value):
                yield at, len(flag) + 1, name
        elif at + 1 < len(argv) and not argv[at + 1].startswith("--") and not harmless(name, argv[at + 1]):
            yield at + 1, 0, name
