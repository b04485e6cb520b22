"""A bundle over the wire: a child process writes it, a client reads it piece by piece."""

import base64
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from kimi_agent.bugreport.archive import default_name
from kimi_agent.child import run_command
from kimi_agent.errors import KimiError, UsageError
from kimi_agent.paths import Home, private_dir

DEADLINE: Final = 180.0
PIECE: Final = 512 << 10
"""Bytes of one answer: as base64 in JSON well below the longest line of the wire."""
KEPT: Final = 5


class Bundles:
    """The bundles of one agent, the newest few of which it keeps."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._directory = home.root / "bundles"

    def methods(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """What a client may call."""
        return {"bundle": self.make, "bundle_read": self.read}

    async def make(self, run: str | None = None, hosts: Sequence[str] = ()) -> dict[str, Any]:
        """Write a bundle of a run, or of the newest: what `kimi-agent bundle --json` prints, with `bundle` as a name.

        `hosts` are names under which the client knows this host, which are taken out too.

        Raises:
            KimiError: it could not be written.
        """
        private_dir(self._directory)
        name = default_name(self._home, run)
        command = ["bundle", "--home", str(self._home.root), "-o", str(self._directory / name), "--json"]
        command += ["--run", run] if run is not None else []
        command += [word for host in hosts for word in ("--host", str(host))]
        try:
            code, out, words = await run_command(*command, deadline=DEADLINE)
        except TimeoutError as error:
            raise KimiError(f"the bundle was not written in {DEADLINE:.0f} s", "Look at the host's load.") from error
        if code:
            raise KimiError(words or "the bundle could not be written", slug="bundle")
        self._forget_old()
        answer: dict[str, Any] = json.loads(out)
        return answer | {"bundle": name}

    async def read(self, bundle: str, offset: int = 0) -> dict[str, Any]:
        """A piece of a bundle from `offset` on: {"data": base64, "size": bytes of the whole}.

        Raises:
            UsageError: there is no such bundle.
        """
        path = self._directory / bundle
        if Path(bundle).name != bundle or not path.is_file() or offset < 0:
            raise UsageError(f"there is no bundle {bundle!r} here", "Make one again.", slug="no_bundle")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(offset)
            return {"data": base64.b64encode(file.read(PIECE)).decode(), "size": size}

    def _forget_old(self) -> None:
        for path in sorted(self._directory.glob("*.zip"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            path.unlink(missing_ok=True)
