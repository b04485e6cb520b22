"""`kimi-console demo --replay`: real hangs that come with the console, with no engine at all."""

from contextlib import closing
from pathlib import Path
from typing import Final

from kimi_agent.errors import UsageError
from kimi_agent.record.format import SUFFIX
from kimi_agent.record.reader import Recording
from kimi_console.playing import play

RECORDINGS: Final = Path(__file__).parent / "recordings"
FIRST: Final = "startup"
"""The one that is shown when none is named."""
BEFORE: Final = 5.0
"""Seconds before the verdict at which the replay begins."""


def bundled() -> dict[str, Path]:
    """The recordings that are here, by name."""
    return {path.name.removesuffix(SUFFIX): path for path in sorted(RECORDINGS.glob(f"*{SUFFIX}"))}


def replay_demo(name: str, *, headless: bool, as_json: bool) -> int:
    """Play one of the bundled recordings.

    Raises:
        UsageError: there is none of this name.
    """
    found = bundled()
    name = name or FIRST
    if name not in found:
        raise UsageError(f"there is no recording {name}", f"One of: {', '.join(found)}.")
    if headless or as_json:
        return play(found[name], None, None, headless=headless, as_json=as_json)
    return play(found[name], 1.0, _just_before(found[name]))


def _just_before(path: Path) -> str:
    """Where to begin, for `--at`: a moment before the server is found to hang, the last time that it is."""
    with closing(Recording(path)) as recording:
        hangs = [mark.time for mark in recording.marks() if mark.text.startswith("HUNG")]
        return f"+{max(0.0, max(hangs, default=recording.begin) - recording.begin - BEFORE):.1f}"
