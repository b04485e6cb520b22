"""What a check says."""

from dataclasses import dataclass
from typing import Final

OK: Final = "ok"
WARN: Final = "warn"
REFUSE: Final = "refuse"
UNCHECKED: Final = "not checked"
ORDER: Final = (REFUSE, WARN, UNCHECKED, OK)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, or could not be."""

    check: str
    """Stable name of what was looked at; for a refusal the name of the problem."""
    outcome: str
    """ok, warn (it may go wrong), refuse (it will), not checked (`message` says why)"""
    message: str
    hint: str = ""
    """What to do; empty where nothing is to be done."""


def ok(check: str, message: str) -> Check:
    """Nothing is wrong."""
    return Check(check, OK, message)


def warn(check: str, message: str, hint: str) -> Check:
    """It may go wrong."""
    return Check(check, WARN, message, hint)


def refuse(check: str, message: str, hint: str) -> Check:
    """It will go wrong."""
    return Check(check, REFUSE, message, hint)


def unchecked(check: str, why: str) -> Check:
    """It could not be looked at."""
    return Check(check, UNCHECKED, why)
