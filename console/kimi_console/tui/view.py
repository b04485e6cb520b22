"""What the panes draw from: one moment of a session."""

from dataclasses import dataclass
from typing import Final

from kimi_agent.model.phases import ORDER, READY
from kimi_agent.model.state import RunState, State
from kimi_console.source.base import Link
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Role

GLYPHS: Final[dict[str, tuple[str, Role]]] = {
    "IDLE": ("○", "dim"),
    "STARTING": ("◐", "move"),
    "READY": ("●", "good"),
    "SLOW": ("◐", "warn"),
    "HUNG": ("✖", "bad"),
    "FAILED": ("✖", "bad"),
    "STOPPING": ("◐", "move"),
    "LOST": ("◌", "warn"),
}
UNHEARD: Final = " nothing is known of this host yet"
STALE_AFTER: Final = 10.0
"""Seconds without a sample after which a value is shown grey with its age."""


@dataclass(frozen=True, slots=True)
class View:
    """A session at one moment; `now` is on the host's clock."""

    title: str
    state: State
    link: Link
    now: float
    read_only: bool = False

    @property
    def run(self) -> RunState | None:
        """The latest run."""
        return self.state.run

    @property
    def lost(self) -> bool:
        """Whether what is shown may no longer be so."""
        return self.link.state in ("lost", "connecting") and self.state.time is not None

    @property
    def unheard(self) -> bool:
        """Whether nothing is known of the host yet: then nothing may be said of it either."""
        return self.link.state == "connecting" and self.state.time is None

    @property
    def link_trouble(self) -> str:
        """What stands between the console and the host, in words; empty when nothing does."""
        link = self.link
        return f"link {link.state}: {link.detail}" if link.state in ("lost", "connecting") and link.detail else ""

    @property
    def known(self) -> float:
        """The last moment that is known of: now, or the last event when the link is lost."""
        return self.state.time if self.lost and self.state.time is not None else self.now

    @property
    def replay(self) -> bool:
        """Whether this is a recording."""
        return self.link.state in ("replay", "ended")

    @property
    def status(self) -> tuple[str, float | None]:
        """The one status word, and since when it holds."""
        if self.link.state == "lost":
            return "LOST", self.link.since or None
        if self.unheard:
            return fmt.DASH, None
        if self.run is None:
            return "IDLE", None
        return self.run.status, self.run.status_since

    def stale(self, time: float | None) -> str:
        """The age of a sample, in words, when it is too old to be true now; else nothing."""
        if time is None or not (self.now - time > STALE_AFTER or self.lost):
            return ""
        return fmt.age(self.now - time)


def front(run: RunState) -> str:
    """The phase of the slowest rank."""
    return min((rank.phase for rank in run.ranks), key=ORDER.__getitem__, default=READY)


def short_model(path: str) -> str:
    """A model's name without its directory or organisation."""
    return path.rstrip("/").rsplit("/", 1)[-1] or path


def run_end(run: RunState, now: float) -> float:
    """Now, or when the run ended."""
    return run.exit_time if run.exit_time is not None else now
