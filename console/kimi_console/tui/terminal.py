"""The terminal: whether there is one that can show the console, and whether it is still there."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, Final, Protocol, TextIO

from textual.app import App

from kimi_agent.errors import UsageError

CHECK: Final = 5.0
"""Seconds between two looks whether the terminal is still there."""


class Stream(Protocol):
    """What is asked of standard input and standard error, which Textual draws on."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""


def check_terminal(
    environ: Mapping[str, str], stdin: Stream | TextIO = sys.stdin, stderr: Stream | TextIO = sys.stderr
) -> None:
    """Refuse where the console cannot be drawn.

    Raises:
        UsageError: there is no terminal, or it is a dumb one.
    """
    elsewhere = "Use kimi-console diagnose or kimi-agent run --json there"
    if not stdin.isatty() or not stderr.isatty():
        raise UsageError("the console needs a terminal, and standard input or standard error is none", elsewhere)
    if environ.get("TERM", "dumb") in ("dumb", ""):
        raise UsageError("TERM=dumb: this terminal cannot move its cursor", f"Set TERM, or: {elsewhere}")


def no_color(environ: Mapping[str, str]) -> bool:
    """Whether NO_COLOR asks for no colours (no-color.org: set and not empty)."""
    return bool(environ.get("NO_COLOR"))


def leave_with_terminal(app: App[Any]) -> None:
    """End cleanly when the terminal or the login goes: SIGHUP, SIGTERM, and a terminal that vanished silently.

    To be called from the running app. Without a look at the terminal an app whose SIGHUP is ignored reads an end of
    file for ever.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGHUP, signal.SIGTERM):
        loop.add_signal_handler(number, app.exit, None, 128 + number)

    def look() -> None:
        if not os.isatty(sys.__stdin__.fileno() if sys.__stdin__ else 0):
            app.exit(return_code=128 + signal.SIGHUP)

    app.set_interval(CHECK, look)
