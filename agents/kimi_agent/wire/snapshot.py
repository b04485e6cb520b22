"""A snapshot as one line of the wire: the state whole, and as many of the log's last lines as still fit."""

from collections.abc import Sequence

from kimi_agent.model.events import Event, Snapshot
from kimi_agent.model.state import State
from kimi_agent.wire.codec import MAX_LINE, encode_event


def snapshot_line(state: State, first: int, lines: Sequence[str]) -> bytes | None:
    """The event that stands for all events up to the state's last.

    Args:
        state: what they made.
        first: number of the first of `lines` in the log of the state's run.
        lines: the end of that log.

    Returns:
        The line without its newline; `None` where the state alone is too long for one.
    """
    bare = len(encode_event(Event(state.seq, state.time or 0.0, Snapshot(state))))
    room = MAX_LINE - bare - 64
    if room < 0:
        return None
    kept = len(lines)
    while kept and (room := room - _cost(lines[kept - 1])) >= 0:
        kept -= 1
    tail = Snapshot(state, first + kept, tuple(lines[kept:]))
    return encode_event(Event(state.seq, state.time or 0.0, tail))


def _cost(line: str) -> int:
    """Most bytes that a line takes: a quote, a backslash or a control character is escaped."""
    return len(line.encode("utf-8", "replace")) * (1 if line.isalnum() else 2) + 3
