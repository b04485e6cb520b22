"""Proof of capture mode by mode: how many rows each kind of step computed, and how many of them had hidden states."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

Entries = Sequence[tuple[str, int, int]]
PROOF: Final = "KIMI_PROOF_"
"""How the request ids begin that only prove the capture; their rows are nobody's data."""
IDLE: Final = "IDLE"


@dataclass(slots=True)
class Count:
    """Steps of one kind."""

    steps: int = 0
    computed: int = 0
    """Rows of requests."""
    captured: int = 0
    """Of those, the rows for which the model gave states of every boundary."""


class Modes:
    """The counts of one rank since it began. One thread writes, any may read."""

    def __init__(self) -> None:
        self.counts: dict[str, Count] = {}

    def book(self, mode: str, computed: int, captured: int) -> bool:
        """Count a step; True when it is the first of its mode that lacks rows."""
        count = self.counts.setdefault(mode, Count())
        complete = count.computed == count.captured
        count.steps += 1
        count.computed += computed
        count.captured += captured
        return complete and captured < computed

    def describe(self) -> dict[str, dict[str, int]]:
        """The `modes` part of a status."""
        return {
            mode: {"steps": count.steps, "computed": count.computed, "captured": count.captured}
            for mode, count in list(self.counts.items())
        }


def mode_of(batch: Any, entries: Entries, *, graph: bool) -> str:
    """What kind of step a ForwardBatch was: IDLE, EXTEND, CHUNKED, MIXED or DECODE, the last with how it ran.

    SGLang runs a mixed batch as EXTEND, so it is known by its rows: a request's single next token beside a prompt.
    """
    if not entries:
        return IDLE
    how = "_GRAPH" if graph else ""
    if batch.forward_mode.is_decode():
        return f"DECODE{how}"
    follows = [(start > 0, length) for _, start, length in entries]
    if len(entries) > 1 and (True, 1) in follows:
        return f"MIXED{how}"
    return f"CHUNKED{how}" if any(later for later, _ in follows) else f"EXTEND{how}"


def rows_given(output: Any, rows: int, boundaries: int) -> int:
    """For how many of a step's rows its output has the states of every boundary and the last."""
    aux, last = getattr(output, "hidden_states", None), getattr(output, "last_hidden_states", None)
    if aux is None or last is None or aux.shape[-1] != boundaries * last.shape[-1]:
        return 0
    return min(rows, len(aux), len(last))
