"""Where each pane stands: a pure function of the screen's size and of what is going on."""

from dataclasses import dataclass
from typing import Final

SMALLEST: Final = (60, 15)
WIDE: Final = (100, 30)
TOP: Final = 11
"""Height of the launch pane: rule, heading, eight phases, one line more."""
MIDDLE: Final = 10
LOG: Final = 4
"""The log is never lower than this."""
PARTS: Final = ("launch", "why", "ranks", "throughput", "host", "log", "dump")


@dataclass(frozen=True, slots=True)
class Box:
    """A region of the screen, in cells."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides the layout besides the size."""

    ranks: int = 0
    alarm: int = 0
    """Lines that the verdict wants over the whole width; 0 when it needs no attention."""
    dump: int = 0
    """Lines of the dump pane below its rule."""
    chosen: str = "launch"
    """The pane that a small screen shows."""
    zoomed: bool = False
    """Whether the chosen pane has the screen for itself."""


def too_small(width: int, height: int) -> bool:
    """Whether nothing useful fits."""
    return width < SMALLEST[0] or height < SMALLEST[1]


def is_wide(width: int, height: int) -> bool:
    """Whether the panes stand side by side."""
    return width >= WIDE[0] and height >= WIDE[1]


def plan(width: int, height: int, now: Situation) -> dict[str, Box]:
    """The boxes of everything that is shown; a part that is not named is hidden."""
    if too_small(width, height):
        return {}
    boxes = {"header": Box(0, 0, width, 1), "footer": Box(0, height - 1, width, 1)}
    if now.zoomed:
        return boxes | {now.chosen: Box(0, 1, width, height - 2)}
    return boxes | (_wide(width, height, now) if is_wide(width, height) else _narrow(width, height, now))


def _wide(width: int, height: int, now: Situation) -> dict[str, Box]:
    left = round(width * 0.59)
    right, rest = left, width - left
    middle = max(MIDDLE, min(now.ranks + 2, height - 2 - TOP - LOG - 1 - now.dump))
    y_middle, y_log = 1 + TOP, 1 + TOP + middle
    dump = min(1 + now.dump, height - 1 - y_log - LOG)
    y_dump = height - 1 - dump
    boxes = {
        "launch": Box(0, 1, left, TOP),
        "ranks": Box(0, y_middle, left, middle),
        "dump": Box(0, y_dump, width, dump),
    }
    if now.alarm:
        return boxes | _alarm(boxes, width, now.alarm, y_log)
    rates = 6 if middle < 12 else 7
    return boxes | {
        "why": Box(right, 1, rest, TOP), "throughput": Box(right, y_middle, rest, rates),
        "host": Box(right, y_middle + rates, rest, middle - rates),
        "log": Box(0, y_log, width, y_dump - y_log),
    }  # fmt: skip


def _alarm(boxes: dict[str, Box], width: int, lines: int, y: int) -> dict[str, Box]:
    """The verdict takes the log's width, and as much of its height as it wants; the log's end stands at its place."""
    left, middle, room = boxes["launch"].width, boxes["ranks"], boxes["dump"].y - y
    rest, why = width - left, room if lines + 1 > room - LOG else lines + 1
    found = {"why": Box(0, y, width, why)}
    if why < room:
        found["log"] = Box(0, y + why, width, room - why)
        found["throughput"] = Box(left, 1, rest, TOP)
        return found | {"host": Box(left, middle.y, rest, middle.height)}
    return found | {"log": Box(left, 1, rest, TOP), "host": Box(left, middle.y, rest, middle.height)}


def _narrow(width: int, height: int, now: Situation) -> dict[str, Box]:
    boxes = {"verdict": Box(0, 1, width, 1), "dumpline": Box(0, height - 2, width, 1)}
    room = height - 4
    if now.chosen == "log":
        return boxes | {"log": Box(0, 2, width, room)}
    wanted = {
        "launch": TOP if now.ranks else 3, "why": max(6, now.alarm + 1), "ranks": now.ranks + 2,
        "throughput": 7, "host": 6, "dump": 4,
    }  # fmt: skip
    pane = max(3, min(wanted.get(now.chosen, TOP), room - LOG))
    return boxes | {now.chosen: Box(0, 2, width, pane), "log": Box(0, 2 + pane, width, room - pane)}


def joints(boxes: dict[str, Box]) -> dict[str, dict[int, str]]:
    """For each pane, where in its rule a vertical border arrives, and as which character."""
    edges = {
        (box.x + box.width - 1, box.y, box.y + box.height)
        for name, box in boxes.items() if name in PARTS and has_edge(name, boxes)
    }  # fmt: skip
    found: dict[str, dict[int, str]] = {}
    for name, box in boxes.items():
        if name not in PARTS:
            continue
        marks: dict[int, str] = {}
        for x, top, bottom in edges:
            if not box.x <= x < box.x + box.width:
                continue
            above = any(a[0] == x and a[1] < box.y <= a[2] for a in edges)
            below = top <= box.y < bottom
            marks[x - box.x] = "┼" if above and below else "┬" if below else marks.get(x - box.x, "┴" if above else "─")
        found[name] = marks
    return found


def has_edge(name: str, boxes: dict[str, Box]) -> bool:
    """Whether a pane has a neighbour at its right, and so a border there."""
    box = boxes[name]
    return any(other.x == box.x + box.width for part, other in boxes.items() if part in PARTS)
