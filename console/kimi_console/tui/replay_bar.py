"""The replay's bar, in the footer's place: speed, clock, where it stands, what is marked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kimi_agent.record.format import Mark
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Line, Role, width

SHAPES: Final[dict[str, tuple[str, Role]]] = {
    "error": ("✖", "bad"), "verdict": ("▲", "warn"), "launch": ("L", "accent"), "exit": ("■", "dim"),
    "dump": ("D", "good"), "status": ("┼", "move"), "phase": ("┴", "dim"), "gap": ("!", "warn"),
}  # fmt: skip
"""How each kind of mark is drawn; where several fall on one cell, the first of these kinds is shown."""
_RANK: Final = {kind: rank for rank, kind in enumerate(SHAPES)}
SHORTEST: Final = 12


@dataclass(frozen=True, slots=True)
class Position:
    """A replay at one moment."""

    playing: bool
    ended: bool
    speed: float
    begin: float
    now: float
    end: float
    marks: Sequence[Mark] = ()
    note: str = ""


def draw(at: Position, keys: Line, cells: int) -> Line:
    """`▶ 8x  14:03:22 ──●───▲──✖── 23:11:07  keys`; the keys go first where room is short, and never the clock."""
    head: Line = [(f" {_state(at)}", "accent"), (f" {speed(at.speed):<5} ", "bright"), (moment(at.now, at), "bright")]
    tail: Line = [(f" {moment(at.end, at)} ", "dim")]
    if at.note:
        tail.append((f"{at.note} ", "move"))
    room = cells - width(head) - width(tail) - 1
    shown = keys if room - width(keys) >= 3 * SHORTEST else []
    track = _track(at, max(0, room - width(shown)))
    return [*head, (" ", "rule"), *track, *tail, *shown]


def speed(value: float) -> str:
    """`8x`, `0.25x`, `max`."""
    return "max" if value == float("inf") else f"{value:g}x"


def moment(then: float, at: Position) -> str:
    """A time of day; in a log without dates or times, how long since its beginning."""
    return fmt.clock(then) if at.begin > 1e8 else fmt.duration(then - at.begin).rjust(8)


def _state(at: Position) -> str:
    if at.ended:
        return "■"
    return "▶" if at.playing else "‖"


def _track(at: Position, cells: int) -> Line:
    if cells < SHORTEST:
        return []
    span = max(at.end - at.begin, 1e-9)

    def cell(time: float) -> int:
        return max(0, min(cells - 1, int((time - at.begin) / span * (cells - 1) + 0.5)))

    shown: dict[int, str] = {}
    for mark in at.marks:
        place = cell(mark.time)
        if place not in shown or _RANK.get(mark.kind, 99) < _RANK.get(shown[place], 99):
            shown[place] = mark.kind
    here = cell(at.now)
    line: Line = []
    for index in range(cells):
        if index == here:
            line.append(("●", "focus"))
        elif index in shown:
            line.append(SHAPES.get(shown[index], ("·", "dim")))
        else:
            line.append(("─", "accent" if index < here else "rule"))
    return line
