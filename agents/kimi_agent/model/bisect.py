"""A bisection as one event: the whole table, each time it changes, so that who comes later sees all of it."""

from dataclasses import dataclass
from typing import Final

NOTHING: Final = "nothing"
"""The attempt in which nothing is changed: what the others are held against."""
AGAIN: Final = "nothing, again"
ALL: Final = "all together"

OPEN: Final = ("waiting", "running", "stopped")
BAD: Final = ("hung", "failed")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start with one thing changed."""

    factor: str
    change: str
    """What is changed, in words."""
    outcome: str = "waiting"
    """waiting, running, passed, hung, failed, skipped (not tried, see `why`), stopped (by the operator)"""
    phase: str | None = None
    """The earliest phase that a rank was in at its end."""
    seconds: float | None = None
    """From launch to the outcome."""
    run: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class BisectChanged:
    """Starts of one profile with one factor changed at a time, to find the one that makes it hang or fail."""

    bisect: str
    name: str
    """The profile's."""
    profile: str
    """Hash of the profile, to know it again."""
    state: str
    """running, stopped, done"""
    attempts: tuple[Attempt, ...]
    target: str | None = None
    """The phase that a start must get past to count as passed; `None` until the reference has shown it."""
    limit: float | None = None
    """Seconds that an attempt gets to pass it."""
    earlier: bool = False
    """Whether the reference is a run of before the bisection."""
    first: bool = False
    """Whether it ends at the first factor that passes."""
    culprits: tuple[str, ...] = ()
    """The factors without which the start gets past the target."""
    conclusion: str = ""

    def attempt(self, factor: str) -> Attempt | None:
        """The attempt of a factor."""
        return next((one for one in self.attempts if one.factor == factor), None)

    @property
    def active(self) -> bool:
        """Whether it goes on."""
        return self.state == "running"
