"""Writing a bundle: every piece through one redactor, into one zip that only this user can read."""

import json
import os
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from kimi_agent.bugreport import gather
from kimi_agent.bugreport.private import redactor_of
from kimi_agent.errors import KimiError
from kimi_agent.paths import Home
from kimi_agent.redact import Redactor

ABOUT: Final = """This is a bundle for a bug report, made by kimi-console.

  server.log     the beginning and the end of the server's log
  verdict.json   what the doctor said last, and the samples that it rested on
  events.ndjson  the last events of the run
  stacks/        the stacks of the run's processes, where it was alive
  run.json       command line and profile
  versions.json  host.json  agent.log

Taken out, and replaced by stand-ins that are the same in all files (host-1, user-1, addr-1, ...):
secrets, host and user names, addresses, home directories, prompts. How many of each: removed.json.
Read it before you send it.
"""


def default_name(home: Home, run: str | None) -> str:
    """A file name for the bundle of a run, or of the newest.

    Raises:
        UsageError: there is no such run.
    """
    record = gather.find_run(home, run)
    now = time.time()
    moment = f"{time.strftime('%m%d%H%M%S', time.localtime(now))}{int(now * 1000) % 1000:03}"
    return f"kimi-bundle-{record.run if record is not None else 'no-run'}-{moment}.zip"


def write_bundle(home: Home, run: str | None, path: Path, hosts: Iterable[str] = ()) -> dict[str, Any]:
    """Write a run's bundle; `hosts` are names under which an operator knows this host.

    Returns:
        {"bundle": its path, "run", "size": bytes, "removed": {kind: count}, "files": [name]}

    Raises:
        UsageError: there is no such run.
        KimiError: the file exists or cannot be written.
    """
    record = gather.find_run(home, run)
    argv: Sequence[str] = record.argv if record is not None else ()
    env = record.profile.get("env") if record is not None else None
    variables = [
        dict(os.environ),
        {str(name): str(value) for name, value in env.items()} if isinstance(env, dict) else {},
    ]
    redactor = redactor_of(argv, variables, hosts)
    events = gather.events_of(home, record.run if record is not None else None)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            into = _Into(archive, redactor)
            into.text("README.txt", (ABOUT,))
            if record is not None:
                into.lines("server.log", gather.log_pieces(home.run(record.run) / "server.log"))
                into.data("run.json", gather.about_run(record))
            into.data("verdict.json", gather.latest(events))
            into.rows("events.ndjson", gather.thinned(events))
            into.lines("agent.log", gather.log_pieces(home.log, 0, 256 << 10))
            into.data("versions.json", gather.versions(record))
            into.data("host.json", gather.host_facts(home, record))
            for pid, text in gather.stacks_of(home, record).items():
                into.lines(f"stacks/{pid}.txt", (text,))
            removed = redactor.report()
            into.text("removed.json", (json.dumps(removed, indent=1),))
    except FileExistsError as error:
        raise KimiError(f"{path} exists already", "Choose another name with -o.") from error
    except OSError as error:
        path.unlink(missing_ok=True)
        raise KimiError(f"{path} cannot be written: {error.strerror}", "Choose another place with -o.") from error
    return {"bundle": str(path), "run": record.run if record is not None else None, "size": path.stat().st_size,
            "removed": removed, "files": into.names}  # fmt: skip


class _Into:
    """A zip that everything enters redacted."""

    def __init__(self, archive: zipfile.ZipFile, redactor: Redactor) -> None:
        self._archive = archive
        self._redactor = redactor
        self.names: list[str] = []

    def lines(self, name: str, pieces: Iterable[str]) -> None:
        """A text of any length, in pieces."""
        stream = self._redactor.stream()
        self.text(name, pieces, stream.feed, stream.end)

    def data(self, name: str, value: Any) -> None:
        """A JSON-like value."""
        self.text(name, (json.dumps(self._redactor.data(value), indent=1, default=str),))

    def rows(self, name: str, values: Iterable[Any]) -> None:
        """JSON-like values, one a line."""
        self.text(name, (json.dumps(self._redactor.data(value)) + "\n" for value in values))

    def text(
        self,
        name: str,
        pieces: Iterable[str],
        feed: Callable[[str], str] = str,
        end: Callable[[], str] = str,
    ) -> None:
        """Text that is clean already, or that `feed` and `end` make so."""
        self.names.append(name)
        info = zipfile.ZipInfo(name, time.localtime()[:6])
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = 0o600 << 16
        with self._archive.open(info, "w", force_zip64=True) as entry:
            for piece in pieces:
                entry.write(feed(piece).encode("utf-8", "replace"))
            entry.write(end().encode("utf-8", "replace"))
