"""A feed from a dataset to a dump: passes of requests until all is committed that can be, and the accounts."""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

from kimi_agent.errors import KimiError, UsageError
from kimi_agent.feed.accounts import Accounts, account
from kimi_agent.feed.drive import Driver, Failure, Server
from kimi_agent.feed.report import Progress, Reporter
from kimi_agent.feed.requests import Batch, Request, Wanted, gather
from kimi_agent.feed.target import Target, begin_dump, committed, trouble_of
from kimi_agent.shards.masks import FEED, mask_line, read_masks
from kimi_agent.shards.tables import size
from kimi_agent.tasks import end
from kimi_agent.wire.client import Client
from kimi_capture.directory import append_durably

PASSES: Final = 3
"""Times that a request is sent whose rows do not come to be committed."""
REPORT: Final = 1.0
"""Seconds between two words of progress."""
INTERRUPTED: Final = "the feed was interrupted"


@dataclass(frozen=True, slots=True)
class Options:
    """How a dataset is fed."""

    dataset: Path
    regenerate: bool
    new: int
    temperature: float
    template: Path | None
    concurrency: int
    deadline: float


@dataclass(slots=True)
class Feed:
    """One dataset on its way into one dump."""

    client: Client
    target: Target
    options: Options
    report: Reporter
    failures: dict[str, Failure] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    gone: str = ""
    """Why it ended before all was sent."""
    tokens: int = 0
    began: float = field(default_factory=monotonic)

    def run(self) -> Accounts:
        """Feed everything that the dump does not have yet; the accounts hold for the dump as it is then.

        Raises:
            UsageError: the dataset or the dump cannot be used, or the disk is too small for what is to come.
            KimiError: the agent or the dump failed.
        """
        with tempfile.TemporaryFile(dir=self._spool()) as spool:
            batch = gather(self._wanted(), spool)
            self.report.gathered(batch)
            have = committed(self.target.directory)
            todo = [request for request in batch.requests if request.rid not in have]
            self._refuse_what_does_not_fit(todo)
            if todo:
                have = self._fill(batch, todo, have)
            return account(batch, have, self.failures, self.gone, self.sent)

    def _spool(self) -> Path:
        """A directory for the tokens, on the dump's disk: /tmp may be memory."""
        root = self.target.directory.parent
        root.mkdir(parents=True, exist_ok=True)
        return root

    def _wanted(self) -> Wanted:
        options, target = self.options, self.target
        return Wanted(
            options.dataset, target.tokenizer, target.python, "--trust-remote-code" in target.argv,
            options.template or target.template, options.regenerate, options.new, options.temperature, target.longest,
        )  # fmt: skip

    def _refuse_what_does_not_fit(self, todo: list[Request]) -> None:
        needed = sum(request.rows for request in todo) * self.target.bytes_per_row
        room = self.target.room()
        self.report.forecast(len(todo), needed, room)
        if needed > room:
            keep = f"{self.target.profile.capture.keep_free_gib:g} GiB"
            raise UsageError(
                f"{size(needed)} are to come and the disk of {self.target.directory} takes {size(max(room, 0))} "
                f"(the launch keeps {keep} free)",
                "Free space, feed less, or launch with [capture] directory on a larger disk.",
                slug="disk",
            )

    def _fill(self, batch: Batch, todo: list[Request], have: set[str]) -> set[str]:
        """Send in passes; returns the request ids that are committed."""
        for turn in range(PASSES):
            try:
                begin_dump(self.client, self.target)
            except KimiError as error:
                if turn == 0:
                    raise
                self.gone = error.message  # what the passes before captured is still to be accounted for
                break
            have = committed(self.target.directory)
            todo = [request for request in todo if request.rid not in have and not self._final(request)]
            self._write_masks(batch.requests)
            asyncio.run(self._send(batch, todo, turn))
            self._end_dump()
            have = committed(self.target.directory)
            todo = [request for request in todo if request.rid not in have and not self._final(request)]
            if not todo or self.gone:
                break
        return have

    def _final(self, request: Request) -> bool:
        failure = self.failures.get(request.rid)
        return failure is not None and failure.final

    def _write_masks(self, requests: Iterable[Request]) -> None:
        """Every mask lies in the dump before the first row that it is for."""
        known = read_masks(self.target.directory)
        lines = b"".join(
            mask_line(request.rid, request.mask, row=request.row, tokens=request.tokens, dataset=self._name)
            for request in requests
            if request.mask is not None and request.rid not in known
        )
        if lines:
            append_durably(self.target.directory / FEED, lines)

    @property
    def _name(self) -> str:
        return os.fsencode(self.options.dataset.name).decode("utf-8", "replace")

    async def _send(self, batch: Batch, todo: list[Request], turn: int) -> None:
        target, options = self.target, self.options
        host = target.profile.server
        server = Server(host.host, host.port, target.key, options.deadline, options.temperature)
        driver = Driver(server, batch.ids, options.concurrency)
        rows = {request.rid: request.rows for request in todo}
        tell = partial(self._tell_once, driver, len(rows), sum(rows.values()), turn, monotonic())
        with _interruptible(driver):
            telling = asyncio.create_task(self._tell(driver, tell))
            try:
                done = await driver.run(self._noted(todo))
            finally:
                await end(telling)
        tell()
        self.failures = {rid: one for rid, one in self.failures.items() if rid not in rows} | done.failures
        self.tokens += done.tokens
        self.gone = done.gone

    def _noted(self, todo: list[Request]) -> Iterator[Request]:
        for request in todo:
            self.sent.add(request.rid)
            yield request

    async def _tell(self, driver: Driver, tell: Callable[[], None]) -> None:
        while True:
            tell()
            if trouble := await asyncio.to_thread(trouble_of, self.client):
                driver.stop(trouble)
            await asyncio.sleep(REPORT)

    def _tell_once(self, driver: Driver, requests: int, rows: int, turn: int, began: float) -> None:
        """How far a pass is that sends so many requests of so many rows in all."""
        done, seconds = driver.done, monotonic() - began
        ended = done.answered + len(done.failures)
        share = ended / max(requests, 1)
        left = seconds * (1 - share) / share if share else None
        rate = done.tokens / seconds if seconds else 0.0
        written = (self.tokens + done.tokens) * self.target.bytes_per_row
        to_come = int(rows * (1 - share)) * self.target.bytes_per_row
        self.report.progress(Progress(
            turn + 1, ended, requests, rate, written, to_come, self.target.room(), left, done.in_flight, done.waiting,
        ))  # fmt: skip

    def _end_dump(self) -> None:
        try:
            self.client.request("dump_stop")
        except KimiError as error:
            self.gone = self.gone or f"the dump cannot be stopped: {error.message}"


@contextlib.contextmanager
def _interruptible(driver: Driver) -> Iterator[None]:
    """An interrupt lets what is in flight come to its end; a second one does not."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def stop() -> None:
        driver.stop(INTERRUPTED)
        for number in signals:
            loop.remove_signal_handler(number)

    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def summary(feed: Feed, accounts: Accounts) -> dict[str, Any]:
    """What `feed --json` ends with."""
    return {
        "event": "done",
        "ok": not accounts.missing,
        "dump": str(feed.target.directory),
        **accounts.as_json(),
        "tokens": feed.tokens,
        "seconds": round(monotonic() - feed.began, 3),
        "ended_early": feed.gone or None,
    }
