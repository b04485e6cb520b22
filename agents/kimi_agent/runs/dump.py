"""A dump from the agent's side: start and stop on every writer rank, accounts summed over them, commits followed."""

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from kimi_agent.errors import KimiError
from kimi_agent.model.events import Body, CaptureReported, DumpSampled, ShardCommitted
from kimi_agent.runs import plugin
from kimi_agent.runs.plugin import RankPlugin

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
DRAIN = 30.0
"""Seconds that a stop waits for requests in flight."""
STATES = ("failed", "paused", "writing", "draining", "stopped")
"""A dump is in the first of these that any of its writers is in."""


class DumpError(KimiError):
    """A dump cannot be started or stopped."""

    slug = "dump"


@dataclass(slots=True)
class _Commits:
    """How far one dump's commits.jsonl has been read."""

    directory: Path
    offset: int = 0


class DumpControl:
    """The capture of one run, over all its writer ranks."""

    def __init__(self, run: str, sockets: Path, root: Path, emit: Callable[[Body], object]) -> None:
        self._run = run
        self._sockets = sockets
        self._root = root
        self._emit = emit
        self._reported: dict[str, CaptureReported] = {}
        self._last: DumpSampled | None = None
        self._last_time = 0.0
        self._commits: _Commits | None = None
        self._counter = 0

    async def poll(self) -> list[RankPlugin]:
        """Ask every plugin once and journal what changed; the plugins that answered."""
        plugins = await plugin.poll(self._sockets)
        for one in plugins:
            self._report(one.status)
        self._sample([one.status["dump"] for one in plugins if one.writer and one.status.get("dump")])
        return plugins

    async def start(self, name: str | None) -> dict[str, Any]:
        """Start a dump on every writer rank.

        Raises:
            DumpError: no rank can write, a dump is running, the name is not usable, or a rank refused.
        """
        writers = await self._writers()
        if any((one.status.get("dump") or {}).get("state") in ("writing", "draining", "paused") for one in writers):
            raise DumpError("a dump is already being written", "Stop it first.")
        name = self._free_name(name)
        directory = self._root / name
        done: list[RankPlugin] = []
        try:
            for one in writers:
                reply = await plugin.call(one.socket, {"op": "start", "dump": name, "directory": str(directory)})
                done.append(one)
        except KimiError:
            await asyncio.gather(*(plugin.call(one.socket, {"op": "stop", "drain": 0}) for one in done))
            raise
        self._commits = _Commits(directory)
        await self.poll()
        return {"dump": name, "directory": str(directory), "boundaries": reply.get("boundaries", [])}

    async def stop(self, drain: float = DRAIN) -> dict[str, Any]:
        """Stop the dump: requests in flight may end within `drain` seconds, then everything is committed.

        Raises:
            DumpError: no dump is running, or a rank failed to commit.
        """
        writers = [one for one in await self._writers() if one.status.get("dump")]
        active = [one for one in writers if one.status["dump"]["state"] in ("writing", "draining", "paused")]
        if not active:
            raise DumpError("no dump is running", "Start one first.")
        request = {"op": "stop", "drain": drain}
        await asyncio.gather(*(plugin.call(one.socket, request, drain + 60) for one in active))
        await self.poll()
        last = self._last
        if last is None:
            raise DumpError(
                "the writers stopped but report no dump", "Look at the shards with kimi-agent shards verify."
            )
        return {"dump": last.dump, "rows": last.committed, "samples": last.samples, "shards": last.shards}

    async def _writers(self) -> list[RankPlugin]:
        plugins = await self.poll()
        writers = [one for one in plugins if one.writer]
        if not plugins:
            raise DumpError("no rank's capture plugin answers", "Launch with [capture] enabled and wait for the ranks.")
        if not writers or any(one.status.get("stage") == "registered" for one in plugins):
            raise DumpError("the model is not loaded yet", "Wait until the server is READY.")
        return writers

    def _free_name(self, name: str | None) -> str:
        if name is None:
            self._counter += 1
            name = f"{time.strftime('%Y%m%d-%H%M%S')}-{self._run.rsplit('-', maxsplit=1)[-1]}-{self._counter}"
        if not NAME.fullmatch(name):
            raise DumpError(f"{name!r} cannot name a dump", "Use letters, digits, '.', '_' and '-', 100 at most.")
        if (self._root / name).exists():
            raise DumpError(f"{self._root / name} exists already", "Choose another name.")
        return name

    def _report(self, status: dict[str, Any]) -> None:
        rank = status.get("rank")
        if not isinstance(rank, str) or status.get("stage") == "registered":
            return
        report = CaptureReported(
            run=self._run,
            rank=rank,
            pid=int(status["pid"]),
            writer=bool(status.get("writer")),
            model_class=status.get("model_class"),
            boundaries=tuple(status.get("boundaries") or ()),
            hidden_size=status.get("hidden_size"),
            dtype=status.get("dtype"),
            plugin=str(status.get("plugin", "")),
            warnings=tuple(status.get("warnings") or ()),
        )
        if self._reported.get(rank) != report:
            self._reported[rank] = report
            self._emit(report)

    def _sample(self, dumps: list[dict[str, Any]]) -> None:
        if not dumps:
            return
        sample = self._sum(dumps)
        settled = self._last is not None and self._last.state == sample.state == "stopped"
        if settled and self._last is not None and self._last.dump == sample.dump:
            return
        self._last, self._last_time = sample, time.monotonic()
        self._follow_commits(sample)
        self._emit(sample)

    def _sum(self, dumps: list[dict[str, Any]]) -> DumpSampled:
        name = dumps[0]["name"]
        missing: Counter[str] = Counter()
        for dump in dumps:
            missing.update(dump.get("missing") or {})
        captured = sum(dump["captured"] for dump in dumps)
        rate = None
        if self._last is not None and self._last.dump == name:
            rate = (captured - self._last.captured) / max(1e-3, time.monotonic() - self._last_time)
        directory = Path(dumps[0]["directory"])
        return DumpSampled(
            run=self._run,
            dump=name,
            state=min((dump["state"] for dump in dumps), key=STATES.index),
            directory=str(directory),
            served=sum(dump["served"] for dump in dumps),
            captured=captured,
            committed=sum(dump["committed"] for dump in dumps),
            missing=tuple(sorted(missing.items())),
            samples=sum(dump["samples"] for dump in dumps),
            shards=sum(dump["shards"] for dump in dumps),
            bytes=sum(dump["bytes"] for dump in dumps),
            rate=rate,
            bytes_per_token=dumps[0].get("bytes_per_token"),
            free=_free_bytes(directory),
            errors=tuple(error for dump in dumps for error in dump.get("errors") or ()),
        )

    def _follow_commits(self, sample: DumpSampled) -> None:
        if self._commits is None or self._commits.directory != Path(sample.directory):
            self._commits = _Commits(Path(sample.directory))
        commits = self._commits
        try:
            with (commits.directory / "commits.jsonl").open("rb") as file:
                file.seek(commits.offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        commits.offset += len(whole)
        for line in whole.splitlines():
            commit = orjson.loads(line)
            path = str(commits.directory / commit["shard"])
            self._emit(ShardCommitted(self._run, sample.dump, path, commit["rows"], commit["samples"], commit["bytes"]))


def _free_bytes(directory: Path) -> int | None:
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
