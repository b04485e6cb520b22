"""Cost of the log's path: `python tests/bench/log_view.py [lines]` prints machine, method and a table."""

import asyncio
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import textual
from textual.app import App, ComposeResult

from kimi_console.store.filter import LogFilter
from kimi_console.store.spool import LogSpool
from kimi_console.tui.log_view import LogView
from kimi_console.tui.paint import ROLE_CLASSES

LINE = "[2025-11-29 14:03:01 TP{}] Decode batch, #running-req: 48, #token: 1201195, token usage: 0.39, {}"


class LogApp(App[None]):
    """Nothing but a log."""

    COMPONENT_CLASSES: ClassVar[set[str]] = set(ROLE_CLASSES)
    CSS = "LogView { height: 1fr; }"

    def __init__(self, spool: LogSpool) -> None:
        super().__init__()
        self.view = LogView(spool)

    def compose(self) -> ComposeResult:
        """The view alone."""
        yield self.view


@contextmanager
def row(what: str, count: int) -> Iterator[None]:
    """Time a step and print its row."""
    begin = time.perf_counter()
    yield
    spent = time.perf_counter() - begin
    print(f"{what:<44} {spent:9.3f} s {count / spent:14,.0f} /s")


async def frames(spool: LogSpool, batch: list[str], count: int) -> None:
    """Paint a 120 × 40 window `count` times, with new lines before each."""
    app = LogApp(spool)
    async with app.run_test(size=(120, 40)) as pilot:
        with row(f"frames, {len(batch):,} new lines before each", count):
            for _ in range(count):
                spool.append(batch)
                app.view.tick()
                for y in range(app.view.size.height):
                    app.view.render_line(y)
        await pilot.pause()


def main(lines: int) -> None:
    """Append, search, filter, paint."""
    machine = f"{platform.machine()} {os.cpu_count()} cores"
    print(f"{machine}, Python {platform.python_version()}, textual {textual.__version__}")
    print(f"one run, {lines:,} lines of 110 characters in batches of 1,000; spool in the temporary directory\n")
    spool = LogSpool()
    batch = [LINE.format(i % 8, i) for i in range(1000)]
    with row("append", lines):
        for _ in range(lines // 1000):
            spool.append(batch)
    with row("search that finds nothing", lines):
        spool.search(re.compile("nothing like it"), 0)
    index = LogFilter(spool, re.compile("TP3"))
    with row("filter", lines):
        index.build()
    asyncio.run(frames(spool, batch, 200))
    print(f"{'largest memory of the process':<44} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:9.1f} MiB")
    spool.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
