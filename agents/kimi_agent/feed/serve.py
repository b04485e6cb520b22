"""A feed that a client asked for: `kimi-agent feed` in a process of its own, followed by what it prints."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from kimi_agent import child
from kimi_agent.errors import UsageError
from kimi_agent.paths import Home
from kimi_agent.text import clean
from kimi_agent.wire.codec import MAX_LINE

NAMED: Final = 20
"""Missing rows that are told one by one."""
PATIENCE: Final = 20.0
"""Seconds for what is in flight when the agent ends."""


@dataclass(slots=True)
class _Feed:
    dataset: str
    dump: str
    process: asyncio.subprocess.Process
    began: float
    stopping: bool = False
    told: dict[str, Any] = field(default_factory=dict)
    """The last of each kind of line, by its `event`."""
    missing: list[dict[str, Any]] = field(default_factory=list)
    words: str = ""
    """What it said last on stderr."""
    ended: float | None = None


def _file(given: str) -> Path:
    """A file by its whole path.

    Raises:
        UsageError: there is none.
    """
    path = Path(given).expanduser()
    if not path.is_absolute() or not path.is_file():
        raise UsageError(f"there is no file {clean(given)!r} here", "Give its whole path on this host.")
    return path


class Feeds:
    """At most one feed of one agent; the last one stays to be looked at."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._feed: _Feed | None = None
        self._starting = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None

    def methods(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """What a client may call."""
        return {"feed_start": self.start, "feed": self.status, "feed_stop": self.stop}

    async def start(
        self, dataset: str, dump: str, regenerate: bool = False, max_new_tokens: int = 512, chat_template: str = ""
    ) -> dict[str, Any]:
        """Begin, or go on with what an earlier one left; how it stands.

        Raises:
            UsageError: one goes on, or the dataset, the dump or the template is named wrongly.
        """
        async with self._starting:
            if self._feed is not None and self._feed.ended is None:
                raise UsageError(f"{self._feed.dataset} is being fed", "Stop it first.", slug="busy")
            path = _file(dataset)
            template = _file(chat_template) if chat_template else None
            if not dump or Path(dump).name != dump or dump.startswith((".", "-")):
                raise UsageError(f"{clean(dump)!r} is no name for a dump", "Give a name without a slash.")
            options = ["--max-new-tokens", str(int(max_new_tokens)), *(["--regenerate"] if regenerate else [])]
            options += ["--chat-template", str(template)] if template is not None else []
            process = await self._spawn(path, dump, options)
            self._feed = _Feed(str(path), dump, process, time.time())
            self._following = asyncio.create_task(self._follow(self._feed))
        return await self.status()

    async def status(self) -> dict[str, Any]:
        """How the last feed stands; `state` is none, reading, feeding, stopping or done."""
        feed = self._feed
        if feed is None:
            return {"state": "none"}
        return {
            "state": self._state(feed),
            "dataset": clean(feed.dataset),
            "dump": clean(feed.dump),
            "seconds": round((feed.ended or time.time()) - feed.began, 1),
            "rows": feed.told.get("dataset"),
            "forecast": feed.told.get("forecast"),
            "progress": feed.told.get("progress"),
            "summary": feed.told.get("done"),
            "missing": feed.missing,
            "error": feed.words if feed.ended is not None and feed.process.returncode else "",
        }

    async def stop(self) -> dict[str, Any]:
        """Let what is in flight come to its end, and send no more; asked again, end it at once.

        Raises:
            UsageError: none goes on.
        """
        feed = self._feed
        if feed is None or feed.ended is not None:
            raise UsageError("no feed goes on", "Start one first.", slug="no_feed")
        feed.stopping = True
        with contextlib.suppress(ProcessLookupError):
            feed.process.send_signal(signal.SIGINT)
        return await self.status()

    async def close(self) -> None:
        """End what goes on, because the agent ends; the same feed goes on where it stopped."""
        if self._following is None or self._following.done() or self._feed is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._feed.process.send_signal(signal.SIGINT)
        await asyncio.wait((self._following,), timeout=PATIENCE)
        if not self._following.done():
            child.kill(self._feed.process)
            await asyncio.wait((self._following,))

    async def _spawn(self, path: Path, dump: str, options: Sequence[str]) -> asyncio.subprocess.Process:
        arguments = ["feed", str(path), "--dump", dump, "--home", str(self._home.root), "--json"]
        return await child.start("-m", "kimi_agent", *arguments, *options, limit=MAX_LINE)

    async def _follow(self, feed: _Feed) -> None:
        await asyncio.gather(self._facts(feed), self._words(feed))
        await feed.process.wait()
        feed.ended = time.time()

    @staticmethod
    async def _facts(feed: _Feed) -> None:
        while feed.process.stdout is not None and (line := await feed.process.stdout.readline()):
            told: dict[str, Any] = orjson.loads(line)
            if told["event"] != "row":
                feed.told[told["event"]] = told
            elif len(feed.missing) < NAMED:
                feed.missing.append(told | {"why": clean(str(told["why"]))})

    @staticmethod
    async def _words(feed: _Feed) -> None:
        while feed.process.stderr is not None and (line := await feed.process.stderr.readline()):
            if words := clean(line.decode("utf-8", "replace").strip()):
                feed.words = words.removeprefix("kimi-agent: ")

    @staticmethod
    def _state(feed: _Feed) -> str:
        if feed.ended is not None:
            return "done"
        return "stopping" if feed.stopping else "feeding" if "progress" in feed.told else "reading"
