"""A line of progress on a terminal: how much of how much, how fast, and when it will be done."""

from dataclasses import dataclass, field
from time import monotonic
from typing import TextIO

from kimi_agent.shards.tables import size
from kimi_agent.text import clean


@dataclass(slots=True)
class Meter:
    """Progress in bytes, since it was made."""

    stream: TextIO
    began: float = field(default_factory=monotonic)

    @classmethod
    def on(cls, stream: TextIO) -> "Meter | None":
        """A meter when the stream is a terminal."""
        return cls(stream) if stream.isatty() else None

    def show(self, done: int, total: int, what: str) -> None:
        """Write over the line; it is taken away when all is done."""
        line = progress(done, total, monotonic() - self.began) if done < total else ""
        self.stream.write(f"\r\x1b[K{line}{f'  {clean(what, 40)}' if line else ''}")
        self.stream.flush()


def progress(done: int, total: int, seconds: float) -> str:
    """`1.2 GiB of 48 GiB  310 MiB/s  2:35 left`; the rate is the mean since the start."""
    rate = done / seconds if seconds > 0 else 0.0
    left = f"  {size(rate)}/s  {clock((total - done) / rate)} left" if rate else ""
    return f"{size(done)} of {size(total)}{left}"


def clock(seconds: float) -> str:
    """A duration as m:ss, or h:mm:ss from an hour on."""
    whole = round(max(seconds, 0.0))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
