"""Host keys: the known_hosts files as OpenSSH reads them, and what to say about a key that is not in them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from kimi_agent.errors import UnavailableError, UsageError

Matched = tuple[Sequence[Any], ...]
"""asyncssh's answer about one host: host keys, CA keys, revoked keys, and four kinds of X.509 entries."""


@dataclass(slots=True)
class HostKeys:
    """The keys known for one host, and the key that it showed. Checking is always strict."""

    files: tuple[Path, ...]
    """User files, then global files, in order; those that do not exist count as empty."""
    name: str = ""
    """The host as known_hosts spells it: `host` or `[host]:port`."""
    known: list[asyncssh.SSHKey] = field(default_factory=list)
    shown: asyncssh.SSHKey | None = None
    found_in: Path | None = None
    """The file that holds the first known key."""

    def match(self, host: str, addr: str, port: int | None) -> Matched:
        """The entries of all files for a host; `asyncssh` calls this with its `known_hosts` argument's convention.

        Raises:
            UsageError: a file holds something that is not a known_hosts entry.
        """
        self.name = f"[{host}]:{port}" if port else host
        merged: list[list[Any]] = [[] for _ in range(7)]
        for file in self.files:
            found = self._match_file(file, host, addr, port)
            if found and found[0] and self.found_in is None:
                self.found_in = file
            for kind, keys in zip(merged, found, strict=False):
                kind.extend(keys)
        self.known = merged[0]
        return tuple(merged)

    def _match_file(self, file: Path, host: str, addr: str, port: int | None) -> Matched:
        try:
            text = file.read_text("utf-8", "replace")
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}", "Make it readable.") from error
        try:
            matched: Matched = asyncssh.match_known_hosts(text.encode(), host, addr, port)
        except ValueError as error:
            raise UsageError(f"{file} is not a known_hosts file: {error}", "Correct or remove that line.") from error
        return matched

    def refuse(self, host: str, trust: str, cause: str) -> UnavailableError:
        """What to say when the host's key was not accepted.

        Args:
            host: the host as the operator knows it.
            trust: the ssh command that shows the key and offers to add it.
            cause: asyncssh's reason, for the cases that are neither an unknown nor a changed key.
        """
        if self.shown is None:
            return UnavailableError(f"{host} has a host key that is not accepted: {cause}", f"Look with {trust}.")
        now = fingerprint(self.shown)
        if not self.known:
            place = host if self.name == host else f"{host} ({self.name})"
            return UnavailableError(
                f"{place} is not a known host; it shows {kind(self.shown)} {now}",
                f"If that is its key, add it: {trust}, and answer yes.",
                slug="unknown_host_key",
            )
        same = [key for key in self.known if key.algorithm == self.shown.algorithm] or self.known
        file = f" -f {self.found_in}" if self.found_in not in (None, Path.home() / ".ssh" / "known_hosts") else ""
        target = f"'{self.name}'" if self.name.startswith("[") else self.name
        return UnavailableError(
            f"{host} has changed its host key (was {fingerprint(same[0])}, now {now})",
            f"If the machine was reinstalled: ssh-keygen -R {target}{file}, then connect again.",
            slug="changed_host_key",
        )


def fingerprint(key: asyncssh.SSHKey) -> str:
    """`SHA256:…` as ssh-keygen prints it."""
    return str(key.get_fingerprint())


def kind(key: asyncssh.SSHKey) -> str:
    """The key's type as known_hosts spells it."""
    return key.algorithm.decode("ascii", "replace")
