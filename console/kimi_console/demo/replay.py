"""`kimi-console demo --replay`: real hangs that come with the console, with no engine at all."""

from pathlib import Path
from typing import Final

from kimi_agent.errors import UsageError
from kimi_agent.record.format import SUFFIX
from kimi_console.commands import play

RECORDINGS: Final = Path(__file__).parent / "recordings"
FIRST: Final = "startup"
"""The one that is shown when none is named."""
SPEED: Final = 4.0


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
    speed = None if headless or as_json else SPEED
    return play(found[name], speed, None, headless=headless, as_json=as_json)
