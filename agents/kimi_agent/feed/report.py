"""What a feed says while it runs: a line on a terminal, or JSON lines for a script."""

import sys
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import orjson

from kimi_agent.feed.requests import Batch
from kimi_agent.shards.meter import clock
from kimi_agent.shards.tables import size


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a feed is."""

    turn: int
    """The pass, from 1; later ones send again what was not committed."""
    done: int
    of: int
    """Requests of this pass."""
    tokens_per_second: float
    bytes: int
    """Written so far, about."""
    bytes_to_come: int
    free: int
    """Bytes that the disk takes before the dump would pause."""
    seconds_left: float | None
    in_flight: int
    waiting: int | None
    """Requests in the engine's queue; None when it does not say."""


class Reporter:
    """Speaks to a person on stderr when that is a terminal, and to a script on stdout when asked to."""

    def __init__(self, *, as_json: bool, terminal: TextIO = sys.stderr) -> None:
        self._json = as_json
        self._terminal = terminal if terminal.isatty() else None

    def event(self, value: dict[str, Any]) -> None:
        """One JSON line, if JSON was asked for."""
        if self._json:
            sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
            sys.stdout.buffer.flush()

    def gathered(self, batch: Batch) -> None:
        """The dataset was read."""
        same = sum(map(len, batch.duplicates.values()))
        self.event({
            "event": "dataset", "rows": batch.rows, "requests": len(batch.requests), "duplicates": same,
            "unusable": len(batch.missing), "tokens": batch.expected_rows,
        })  # fmt: skip

    def forecast(self, requests: int, needed: int, room: int) -> None:
        """What is to come, and what the disk takes."""
        self.event({"event": "forecast", "requests": requests, "bytes": needed, "free": room})

    def progress(self, now: Progress) -> None:
        """How far it is, about once a second."""
        self.event({"event": "progress", **asdict(now)})
        if self._terminal is not None:
            self._terminal.write(f"\r\x1b[K{words(now)}")
            self._terminal.flush()

    def end(self) -> None:
        """The line of progress goes away."""
        if self._terminal is not None:
            self._terminal.write("\r\x1b[K")
            self._terminal.flush()


def words(now: Progress) -> str:
    """`312/2,000  1,840 tok/s  1.2 GiB + 6.4 GiB to come, 80 GiB free  3:12 left  24 in flight, 4 queued`."""
    again = f"pass {now.turn}  " if now.turn > 1 else ""
    left = "" if now.seconds_left is None else f"  {clock(now.seconds_left)} left"
    queued = "–" if now.waiting is None else f"{now.waiting}"
    disk = f"{size(now.bytes)} + {size(now.bytes_to_come)} to come, {size(max(now.free, 0))} free"
    rate = f"{now.tokens_per_second:,.0f} tok/s"
    return f"{again}{now.done:,}/{now.of:,}  {rate}  {disk}{left}  {now.in_flight} in flight, {queued} queued"
