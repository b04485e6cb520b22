"""When a headless run ends or starts again by itself. Pure: times come with the events."""

from dataclasses import dataclass

from kimi_agent.model.events import Event, ThroughputSampled
from kimi_agent.model.state import RunState

FIRST_DELAY = 5.0
LAST_DELAY = 300.0
GOOD_FOR = 600.0
"""Seconds of READY after which earlier failures are forgotten."""
HUNG_FOR = 60.0
"""Seconds of HUNG after which `restart = hung` stops the server."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What a headless run does without being asked."""

    restart: str = "never"
    """never, failed or hung: after a server that ended by itself, or also after one that hangs."""
    restarts: int = 5
    """Starts in a row that may fail before it is given up."""
    lifetime: float | None = None
    """Seconds after which the server is stopped."""
    idle_stop: float | None = None
    """Seconds without a request after which a ready server is stopped."""


class Keeper:
    """Follows one command's runs by their events."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._begun: float | None = None
        self._busy: float | None = None
        """When the server was last seen with requests, or last was not known to have none."""
        self._failures = 0

    def launched(self) -> None:
        """A run begins."""
        self._busy = None

    def take(self, event: Event, run: RunState | None) -> str | None:
        """What an event makes due: `lifetime`, `idle` or `hung`; `run` is the state after it."""
        now, policy = event.time, self._policy
        self._begun = now if self._begun is None else self._begun
        if policy.lifetime is not None and now - self._begun >= policy.lifetime:
            return "lifetime"
        if run is None or not run.alive:
            return None
        if run.status == "READY" and now - run.status_since >= GOOD_FOR:
            self._failures = 0
        if policy.restart == "hung" and run.status == "HUNG" and now - run.status_since >= HUNG_FOR:
            return "hung"
        return "idle" if self._idle(event, run) else None

    def _idle(self, event: Event, run: RunState) -> bool:
        limit, body = self._policy.idle_stop, event.body
        if limit is None or run.status != "READY":
            self._busy = None
        elif isinstance(body, ThroughputSampled) and (body.running != 0 or body.waiting != 0):
            self._busy = event.time
        elif isinstance(body, ThroughputSampled):
            self._busy = event.time if self._busy is None else self._busy
            return event.time - self._busy >= limit
        return False

    def retry(self) -> float | None:
        """Seconds to wait before the next start after a failure; `None` when it is given up."""
        if self._policy.restart == "never" or self._failures >= self._policy.restarts:
            return None
        self._failures += 1
        return min(LAST_DELAY, FIRST_DELAY * 2.0 ** min(self._failures - 1, 16))

    @property
    def failures(self) -> int:
        """Starts in a row that have failed."""
        return self._failures
