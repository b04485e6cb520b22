"""What every source of events looks like: live, replay and demo alike."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kimi_agent.model.events import Event

PIPE: Final = "-"
"""Names standard input where a file is asked for."""


@dataclass(frozen=True, slots=True)
class Link:
    """How the console hears of the host."""

    state: str
    """connecting, live, lost, replay, ended"""
    detail: str = ""
    """Why, and what happens next, in words."""
    since: float = 0.0
    """Unix time of the last change."""


class Source(Protocol):
    """A stream of event batches, and whether it is alive."""

    title: str
    """What is watched: a host name or a file."""

    @property
    def link(self) -> Link:
        """How the source stands now."""

    def batches(self) -> AsyncIterator[Sequence[Event]]:
        """The events, in order, in batches as they come; ends when the source does."""

    async def close(self) -> None:
        """Let go of the source; the agent and the server stay as they are."""


class Control(Protocol):
    """The part of a live source that acts on the host; a replay has none."""

    read_only: bool

    async def request(self, method: str, **params: Any) -> Any:
        """Call a method of `kimi_agent.wire.rpc`.

        Raises:
            KimiError: the agent refused, with its message and hint, or the link is down.
        """

    def redial(self) -> None:
        """Try to connect at once instead of waiting for the next attempt."""
