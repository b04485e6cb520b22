"""A dump from the agent's side: start and stop on every writer rank, accounts summed over them, commits followed."""

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from kimi_agent.counts import many
from kimi_agent.errors import KimiError
from kimi_agent.host.procfs import starttime
from kimi_agent.model.events import Body, CaptureReported, DumpSampled, ShardCommitted
from kimi_agent.model.state import State
from kimi_agent.runs import plugin
from kimi_agent.runs.content import Content, self_check
from kimi_agent.runs.plugin import RankPlugin
from kimi_capture.directory import is_held, shard_prefix

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
DRAIN = 30.0
"""Seconds that a stop waits for requests in flight."""
START_DEADLINE = 600.0
"""Seconds in which a rank begins: it opens every shard of a dump that it resumes."""
ACTIVE = frozenset({"writing", "draining", "paused"})
LAST_SHARDS = 30.0
"""Seconds that the shards which a rank handed over before its death get to be committed."""
LOOK = 0.05
"""Seconds between two looks whether they are."""
STATES = ("failed", "paused", "writing", "draining", "stopped")
"""A dump is in the first of these that any of its writers is in."""


class DumpError(KimiError):
    """A dump cannot be started or stopped."""

    slug = "dump"


@dataclass(slots=True)
class _Commits:
    """How far one dump's commits.jsonl has been read, and what it says of this run's part."""

    directory: Path
    since: float
    """Unix time; what was committed before is an earlier run's."""
    told: int = 0
    """So many shards of this run are in the journal already."""
    offset: int = 0
    inode: int = 0
    shards: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """(rows, samples, bytes) by shard."""
    content: Content = field(default_factory=Content)

    def read(self) -> list[dict[str, Any]]:
        """The new commits of this run, except those that were told."""
        try:
            with (self.directory / "commits.jsonl").open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self.inode or found.st_size < self.offset:  # a repair put another in its place
                    self.inode, self.offset = found.st_ino, 0
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [commit for line in whole.splitlines() if (commit := self._take(line))]

    def _take(self, line: bytes) -> dict[str, Any] | None:
        try:
            commit: dict[str, Any] = orjson.loads(line)
            shard, counts = str(commit["shard"]), (commit["rows"], commit["samples"], commit["bytes"])
            if float(commit["time"]) < self.since or shard in self.shards:
                return None
        except (ValueError, TypeError, KeyError):
            return None  # shards verify names such a line
        self.shards[shard] = counts
        self.content.add(self.directory / shard)
        return commit if len(self.shards) > self.told else None

    def totals(self) -> tuple[int, int, int]:
        """Rows, samples and bytes of this run's shards."""
        rows, samples, size = (sum(counts[place] for counts in self.shards.values()) for place in range(3))
        return rows, samples, size


def last_dump(run: str, state: State) -> DumpSampled | None:
    """What the journal knows last of the run's dump."""
    return state.run.dump if state.run is not None and state.run.started.run == run else None


class DumpControl:
    """The capture of one run, over all its writer ranks."""

    def __init__(
        self, run: str, sockets: Path, root: Path, emit: Callable[[Body], object], last: DumpSampled | None = None
    ) -> None:
        """`last` is what an earlier agent journaled of the run's dump."""
        self._run = run
        self._sockets = sockets
        self._root = root
        self._emit = emit
        self._reported: dict[str, CaptureReported] = {}
        self._last = last
        self._last_time = 0.0
        self._commits: _Commits | None = None
        self._writers_seen: dict[int, dict[str, Any]] = {}
        """Each writer's last word of its dump, by process."""
        self._dead_since: dict[int, float] = {}
        """Since when (monotonic) a writer is known to be dead, by process."""
        self._failure: str | None = None
        """Why the dump ended, when its writers cannot say it any more."""
        self._counter = 0

    async def poll(self) -> list[RankPlugin]:
        """Ask every plugin once and journal what changed; the plugins that answered."""
        plugins = await plugin.poll(self._sockets)
        for one in plugins:
            self._report(one.status)
            self._take_word(one.status)
        self._failure = self._failure or self._death()
        self._sample()
        return plugins

    def _take_word(self, status: dict[str, Any]) -> None:
        if status.get("writer") and status.get("dump"):
            self._writers_seen[int(status["pid"])] = status["dump"] | {"rank": status.get("rank")}

    def _death(self) -> str | None:
        """Which writer died, once what the dead handed over is written."""
        if self._settling():
            return None
        return next(
            (f"rank {dump['rank']} (process {pid}) died while it was writing" for pid, dump in self._dead()), None
        )

    def _dead(self) -> list[tuple[int, dict[str, Any]]]:
        """The writers that died in the middle of a dump: process and last word."""
        writers = self._writers_seen.items()
        return [(pid, dump) for pid, dump in writers if dump["state"] in ACTIVE and starttime(pid) is None]

    async def settle(self) -> None:
        """Wait until what dead writers handed over is written, `LAST_SHARDS` seconds at most."""
        while self._settling():  # noqa: ASYNC110
            await asyncio.sleep(LOOK)

    def _settling(self) -> bool:
        """Whether what a dead writer handed over is being written, for less than `LAST_SHARDS` seconds."""
        now = time.monotonic()
        return any(
            now - self._dead_since.setdefault(pid, now) < LAST_SHARDS and _written(dump) for pid, dump in self._dead()
        )

    def end(self, reason: str) -> None:
        """The run is over: a dump that nobody stopped has failed, and what was committed is its end."""
        if self._last is not None and self._last.state in ACTIVE:
            self._fail(self._last, self._failure or reason)

    async def start(self, name: str | None, *, resume: bool = False) -> dict[str, Any]:
        """Start a dump on every writer rank; with `resume`, go on with one that is there.

        Raises:
            DumpError: no rank can write, a dump is running, the name is not usable, or a rank refused.
        """
        writers = await self._writers()
        if any((one.status.get("dump") or {}).get("state") in ACTIVE for one in writers):
            raise DumpError("a dump is already being written", "Stop it first.")
        name = self._existing_name(name) if resume else self._free_name(name)
        directory = self._root / name
        request = {"op": "start", "dump": name, "directory": str(directory), "resume": resume}
        done: list[RankPlugin] = []
        try:
            for one in writers:
                reply = await plugin.call(one.socket, request, START_DEADLINE)
                done.append(one)
        except KimiError:
            await asyncio.gather(*(plugin.call(one.socket, {"op": "stop", "drain": 0}) for one in done))
            raise
        self._writers_seen.clear()
        self._dead_since.clear()
        self._failure = None
        await self.poll()
        return {"dump": name, "directory": str(directory), "boundaries": reply.get("boundaries", [])}

    async def stop(self, drain: float = DRAIN) -> dict[str, Any]:
        """Stop the dump: requests in flight may end within `drain` seconds, then everything is committed.

        Raises:
            DumpError: no dump is running, or a rank failed to commit.
        """
        await self.poll()
        alive = [(pid, dump) for pid, dump in self._writers_seen.items() if starttime(pid) is not None]
        going = [pid for pid, dump in alive if dump["state"] != "stopped"]
        if not going:
            raise DumpError("no dump is running", "Start one first.")
        request, sockets = {"op": "stop", "drain": drain}, [plugin.socket_of(self._sockets, pid) for pid in going]
        for reply in await asyncio.gather(*(plugin.call(socket, request, drain + 60) for socket in sockets)):
            self._take_word(reply["status"])
        self._sample()
        last = self._last
        if last is None:
            raise DumpError(
                "the writers stopped but report no dump", "Look at the shards with kimi-agent shards verify."
            )
        return {"dump": last.dump, "rows": last.committed, "samples": last.samples, "shards": last.shards}

    async def _writers(self) -> list[RankPlugin]:
        """All writer ranks. Raises DumpError when there is none, or a rank that may be one does not answer."""
        plugins = await self.poll()
        if plugins and (silent := plugin.silent(self._sockets, plugins)):
            hint = "Try again; if it stays so, look at the verdict."
            raise DumpError(f"the capture plugin of process {silent[0]} does not answer", hint)
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

    def _existing_name(self, name: str | None) -> str:
        if name is None or not NAME.fullmatch(name) or not (self._root / name).is_dir():
            raise DumpError(f"there is no dump {name!r} in {self._root} to resume", "Name one that is there.")
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

    def _sample(self) -> None:
        if not self._writers_seen:
            return
        newest = max(self._writers_seen.values(), key=lambda dump: dump.get("started") or 0)
        sample = self._sum([dump for dump in self._writers_seen.values() if dump["name"] == newest["name"]])
        last = self._last
        same = last is not None and (last.dump, last.started) == (sample.dump, sample.started)
        if same and last is not None and last.state in ("stopped", "failed"):
            if self._failure is not None or last == replace(sample, rate=last.rate, free=last.free):
                return
        elif self._failure is not None:
            self._fail(sample, self._failure)
            return
        self._follow_commits(sample)
        self._tell(sample)

    def _tell(self, sample: DumpSampled) -> None:
        self._last, self._last_time = sample, time.monotonic()
        self._emit(sample)

    def _fail(self, sample: DumpSampled, reason: str) -> None:
        """The last sample of a dump whose writers are gone: what is committed is all there is."""
        commits = self._follow_commits(sample)
        rows, samples, size = commits.totals()
        missing = Counter(dict(sample.missing))
        missing["dump failed"] += max(0, sample.captured - rows)
        self._tell(replace(
            sample, state="failed", reason=reason, rate=None, captured=rows, committed=rows, samples=samples,
            served=max(sample.served, rows + missing.total()), shards=len(commits.shards), bytes=size,
            missing=tuple(sorted((why, count) for why, count in missing.items() if count)),
            errors=(
                *sample.errors,
                f"{reason}; {many(rows, 'row is', 'rows are')} committed: resume it, or run kimi-agent shards repair",
            ),
        ))  # fmt: skip

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
            write_errors=sum(dump.get("write_errors") or 0 for dump in dumps),
            reason=next((dump["reason"] for dump in dumps if dump.get("reason")), None),
            started=min((dump["started"] for dump in dumps if dump.get("started")), default=None),
            self_check=self_check(dumps, self._commits.content if self._commits else Content()),
            held_back=sum(dump.get("held_back_s") or 0.0 for dump in dumps),
        )

    def _follow_commits(self, sample: DumpSampled) -> _Commits:
        directory, since = Path(sample.directory), sample.started or 0.0
        commits = self._commits
        if commits is None or (commits.directory, commits.since) != (directory, since):
            before = self._last
            known = before is not None and (before.directory, before.started) == (sample.directory, sample.started)
            commits = self._commits = _Commits(directory, since, before.shards if known and before else 0)
        for commit in commits.read():
            path = str(directory / commit["shard"])
            self._emit(ShardCommitted(self._run, sample.dump, path, commit["rows"], commit["samples"], commit["bytes"]))
        return commits


def _written(dump: dict[str, Any]) -> bool:
    """Whether a writer's part of a dump is being written, by whatever process."""
    return is_held(Path(dump["directory"]), shard_prefix(dump["rank"]))


def _free_bytes(directory: Path) -> int | None:
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
