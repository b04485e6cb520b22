"""A source without a screen: its events as NDJSON, or its changes as lines of text, on standard output."""

import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import datetime

from kimi_agent.model.events import Event, PhaseEntered
from kimi_agent.model.reduce import resume
from kimi_agent.model.state import State
from kimi_agent.wire.codec import encode_event
from kimi_console.source.recorder import Batches


class TextPrinter:
    """Turns batches into lines: every entry of the ring of changes, and every phase entered."""

    def __init__(self) -> None:
        self.state = State()

    def lines(self, batch: Sequence[Event]) -> list[str]:
        """The lines that a batch is worth."""
        lines: list[str] = []
        for event in batch:
            before = self.state
            self.state = resume(before, event)
            if isinstance(event.body, PhaseEntered):
                lines.append(f"{_clock(event.time)} info    {event.body.rank} {event.body.phase}")
            if self.state.ring is not before.ring:
                entry = self.state.ring[-1]
                lines.append(f"{_clock(entry.time)} {entry.level:7} {entry.text}")
        return lines


async def stream(source: Batches, *, as_json: bool, flush: Callable[[], None] = sys.stdout.flush) -> State:
    """Write a source's events to standard output until it ends.

    Args:
        source: where the events come from; the caller closes it.
        as_json: NDJSON lines of the wire's format, else lines for a person.
        flush: called after every batch.

    Returns:
        The state after the last event.

    Raises:
        BrokenPipeError: nobody reads any more.
    """
    printer = TextPrinter()
    async with aclosing(source.batches()) as batches:
        async for batch in batches:
            lines = printer.lines(batch)
            if as_json:
                sys.stdout.buffer.write(b"".join(encode_event(event) + b"\n" for event in batch))
            elif lines:
                sys.stdout.write("\n".join(lines) + "\n")
            flush()
    return printer.state


def _clock(time: float) -> str:
    return datetime.fromtimestamp(time).strftime("%H:%M:%S")
