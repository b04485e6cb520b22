"""Errors that reach a person.

KimiError                 a message (what and where) and a hint (what to do)
├── UsageError            wrong input: exit 2
├── PreflightError        the launch cannot work: exit 2
├── LaunchError           the server could not be started: exit 5
└── UnavailableError      no agent, and no way to start one: exit 6
"""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of both commands; 0 to 5 are the verdict's (DESIGN.md §4)."""

    OK = 0
    """Ready, or starting within its baseline, or the command did what was asked."""
    USAGE = 2
    """Wrong arguments, profile or input file."""
    SLOW = 3
    """Slow but advancing."""
    HUNG = 4
    """Hung."""
    FAILED = 5
    """The server failed, or what was checked is not right."""
    UNAVAILABLE = 6
    """A host, an agent or a file could not be reached."""
    INTERRUPTED = 130
    """Stopped by the operator."""


class KimiError(Exception):
    """An error for a person: `message` names what and where, `hint` what to do."""

    exit: Exit = Exit.FAILED
    slug: str = "error"
    """Stable name of the kind of error, for scripts and the wire."""

    def __init__(self, message: str, hint: str = "", *, slug: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if slug is not None:
            self.slug = slug

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class UsageError(KimiError):
    """The input is wrong; nothing was started."""

    exit = Exit.USAGE
    slug = "usage"


class PreflightError(KimiError):
    """The launch cannot work, known before anything was started."""

    exit = Exit.USAGE
    slug = "preflight"


class LaunchError(KimiError):
    """The server could not be started."""

    exit = Exit.FAILED
    slug = "launch"


class UnavailableError(KimiError):
    """No agent answers, and none could be started."""

    exit = Exit.UNAVAILABLE
    slug = "unavailable"
