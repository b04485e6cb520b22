"""Playing what was recorded: on a screen, without one, or held against another recording."""

import asyncio
import math
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from kimi_agent.errors import Exit
from kimi_console.places import remember_recording
from kimi_console.showing import Show, present
from kimi_console.source.base import PIPE
from kimi_console.source.opening import Opened

if TYPE_CHECKING:
    from kimi_console.compare.comparison import Comparison
    from kimi_console.source.recorder import Batches


def compare_with(file: Path, other: Path, speed: float | None, at: str | None, **show: Any) -> int:
    """Compare two files: as one JSON object, as text, or on the screen that plays the first.

    Raises:
        UsageError: one of them cannot be read, or is nothing that can be played.
    """
    from kimi_console.compare.files import compare_files  # noqa: PLC0415 - reading logs costs 0.1 s
    from kimi_console.compare.text import comparison_text  # noqa: PLC0415

    shown, found = Show(**show), compare_files(file, other)
    if shown.screen:
        opened = Opened(file, speed=math.inf if speed is None else speed, at=at)
        return asyncio.run(_play(opened, shown, found))
    if shown.as_json:
        sys.stdout.buffer.write(orjson.dumps(found.as_dict(), option=orjson.OPT_APPEND_NEWLINE))
    else:
        sys.stdout.write(comparison_text(found))
    return Exit.OK


def play(file: Path, speed: float | None, at: str | None, *, follow: bool = False, **show: Any) -> int:
    """Play back a file.

    Returns:
        Without a screen, the exit code of the last status; else the screen's.

    Raises:
        UsageError: the file cannot be played.
    """
    shown = Show(**show)
    if shown.screen and file.is_file():
        remember_recording(file)
    if not shown.screen:
        return asyncio.run(present(_unseen(file, speed, at, follow=follow), shown))
    return asyncio.run(_play(Opened(file, speed=math.inf if speed is None else speed, at=at, follow=follow), shown))


def _unseen(file: Path, speed: float | None, at: str | None, *, follow: bool) -> "Batches":
    """The source for those without a screen."""
    from kimi_console.source.growing import GrowingSource  # noqa: PLC0415 - reading logs costs 0.1 s
    from kimi_console.source.replay import ReplaySource  # noqa: PLC0415

    return GrowingSource(str(file)) if follow or str(file) == PIPE else ReplaySource(file, speed, at)


async def _play(opened: Opened, show: Show, comparison: "Comparison | None" = None) -> int:
    """Show a recording on a screen until the operator leaves."""
    # The screen's modules take as long to load as a large file's first lines to be read: both at once.
    loading = asyncio.create_task(asyncio.to_thread(import_module, "kimi_console.tui.app"))
    try:
        player = await opened.open()
        await loading
        return await present(player, show, comparison=comparison, log=opened.log)
    finally:
        await opened.close()
