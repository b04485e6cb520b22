"""What a feed drives: the running server, its dump root, and the dump that it fills."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_agent.engine import options
from kimi_agent.engine.http import get_json
from kimi_agent.errors import KimiError, UnavailableError, UsageError
from kimi_agent.paths import Home
from kimi_agent.profile import Profile, parse
from kimi_agent.runs import plugin, record
from kimi_agent.shards.dumps import is_dump
from kimi_agent.wire.client import Client
from kimi_capture.format import FormatError, read_commits, read_manifest, read_shard

GIB = 1 << 30
ROW_EXTRA = 20
"""Bytes of a row beside its states: token, position, RMS."""


@dataclass(frozen=True, slots=True)
class Target:
    """The running server and the dump."""

    run: str
    profile: Profile
    argv: tuple[str, ...]
    python: str
    directory: Path
    """Of the dump."""
    exists: bool
    """Whether it is there, to be gone on with."""
    longest: int | None
    """Most tokens of a request with its answer."""
    bytes_per_row: int

    @property
    def key(self) -> str | None:
        """The server's API key."""
        return options.value(self.argv, "--api-key")

    @property
    def tokenizer(self) -> str:
        """The server's tokenizer: a directory or a name."""
        return options.value(self.argv, "--tokenizer-path") or self.profile.server.model

    @property
    def template(self) -> Path | None:
        """The server's own chat template, where it was given as a file."""
        given = options.value(self.argv, "--chat-template")
        return Path(given) if given and Path(given).is_file() else None

    def room(self) -> int:
        """Bytes that the dump's disk can take before the dump would pause. Raises UsageError."""
        place = self.directory
        while not place.exists():
            place = place.parent
        try:
            found = os.statvfs(place)
        except OSError as error:
            raise UsageError(f"the disk of {self.directory} cannot be looked at: {error.strerror}") from error
        return found.f_bavail * found.f_frsize - int(self.profile.capture.keep_free_gib * GIB)


def find_target(client: Client, home: Home, dump: Path) -> Target:
    """The server that this host's agent runs, and the dump in it.

    Raises:
        UsageError: the dump cannot lie there, or is no dump.
        UnavailableError: no server is READY, or its ranks do not capture.
    """
    run = client.request("status")["run"]
    if run is None or not run["alive"] or run["status"] != "READY":
        said = f"the server is {run['status']}" if run and run["alive"] else "no server is running"
        raise UnavailableError(f"{said}, and a feed needs one that is READY", "Launch it: kimi-agent run PROFILE.")
    known = record.load(home.run(run["run"]))
    profile = parse(known.profile, str(home.run(run["run"]) / "run.json"))
    root = Path(profile.capture.directory) if profile.capture.directory else home.dumps
    directory = root / dump if dump.parent == Path() else dump.absolute()
    if directory.parent.resolve() != root.resolve():
        raise UsageError(
            f"{directory} is not in {root}, where this launch writes its dumps",
            f"Give {root / dump.name}, or launch with [capture] directory = {str(directory.parent)!r}.",
        )
    if directory.exists() and not is_dump(directory):
        raise UsageError(f"{directory} is there and is not a dump", "Name one that is not there yet.")
    shape = asyncio.run(_shape(profile, known.argv, home.run_sockets(run["run"])))
    python = profile.server.python or known.argv[0]
    return Target(run["run"], profile, known.argv, python, directory, directory.exists(), *shape)


def committed(directory: Path) -> set[str]:
    """The request ids in a dump's committed shards.

    Raises:
        KimiError: a shard cannot be read; nothing can be said of its rows.
    """
    rids: set[str] = set()
    if not directory.exists():
        return rids
    try:
        for commit in read_commits(directory)[0]:
            rids.update(commit.rids or (sample.rid for sample in read_shard(directory / commit.shard).meta.samples))
    except (OSError, FormatError) as error:
        raise KimiError(f"{error}", f"Set it right with: kimi-agent shards repair {directory}") from error
    return rids


def begin_dump(client: Client, target: Target) -> None:
    """Start the dump, or go on with it, so that its committed requests are all that it has.

    Raises:
        KimiError: another dump is being written, or the ranks refuse.
    """
    run = client.request("status")["run"]
    if run is None or not run["alive"]:
        raise UnavailableError("the server has ended", "Launch it again; the same feed goes on where it stopped.")
    dump = run["dump"]
    if dump and dump["state"] in ("writing", "draining", "paused"):
        if Path(dump["directory"]).resolve() != target.directory.resolve():
            raise UsageError(f"the dump {dump['dump']} is being written", "Stop it first.", slug="dump")
        client.request("dump_stop")  # what a killed feed left in flight comes to its end, and is committed
    resume = target.directory.exists()
    client.request("dump_start", name=target.directory.name, resume=resume)
    try:
        read_manifest(target.directory)
    except (OSError, FormatError) as error:
        raise KimiError(f"the dump did not begin: {error}", "See the agent's log.") from error


def trouble_of(client: Client) -> str:
    """Why sending more would be in vain: the server or the dump is not well; empty while both are.

    Raises:
        KimiError: the agent does not answer.
    """
    run = client.request("status")["run"]
    if run is None or not run["alive"]:
        return "the server has ended"
    if run["status"] in ("HUNG", "FAILED"):
        return f"the server is {run['status']}: {run['reason']}"
    dump = run["dump"]
    if dump and dump["state"] in ("paused", "failed"):
        return f"the dump is {dump['state']}: {dump['reason'] or 'see the agent'}"
    return ""


async def _shape(profile: Profile, argv: tuple[str, ...], sockets: Path) -> tuple[int | None, int]:
    """The longest request, and the bytes of a row."""
    server = profile.server
    info: Any = await get_json(server.host, server.port, "/server_info", options.value(argv, "--api-key"), 30.0)
    writers = [one.status for one in await plugin.poll(sockets) if one.writer]
    if not writers:
        raise UnavailableError("no rank of the server captures", "Launch with [capture] enabled.")
    told = info if isinstance(info, dict) else {}
    limits = [told.get(key) for key in ("context_length", "max_total_num_tokens", "max_req_input_len")]
    known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    width = {"float32": 4}.get(str(writers[0].get("dtype")), 2)
    states = len(writers[0].get("boundaries") or ()) + 1
    size = states * int(writers[0].get("hidden_size") or 0) * width + ROW_EXTRA
    return min(known) if known else None, size
