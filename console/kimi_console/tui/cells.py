"""Styled text without a toolkit: a line is a list of spans, a span is text and a role that a theme colours."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import rich.cells

Role = Literal[
    "plain", "dim", "bright", "good", "move", "warn", "bad", "accent", "title", "rule", "stale", "match", "cursor",
    "focus", "heat0", "heat1", "heat2", "heat3", "heat4", "rank0", "rank1", "rank2", "rank3",
]  # fmt: skip
ROLES: Final[tuple[Role, ...]] = get_args(Role)

LONGEST_WORD: Final = 8
"""Lines that one word may take."""

Span = tuple[str, Role]
Line = list[Span]

_ASCII: Final = str.maketrans(
    {
        "─": "-", "│": "|", "┬": "+", "┴": "+", "┼": "+", "├": "+", "┤": "+", "█": "#", "░": ".", "✓": "v", "✖": "X",
        "▸": ">", "·": ".", "●": "*", "○": "o", "◐": "~", "◌": "o", "–": "-", "…": "~", "→": ">", "←": "<", "▲": "^",
        "▼": "v", "▶": ">", "■": "#", "×": "x", "±": "+", "≥": ">", "≤": "<", "›": ">", "‹": "<", "⚠": "!", "↵": "<",
        "▁": "_", "▂": ".", "▃": ":", "▄": "-", "▅": "=", "▆": "+", "▇": "*", "⇧": "^", "’": "'",
        "—": "-", "‘": "'", "↑": "^", "↓": "v",
    }
)  # fmt: skip


def _plain(text: str) -> bool:
    """Whether every character takes one cell, as nearly all text does: ASCII and the signs that the console draws."""
    return (text.isascii() or text.translate(_ASCII).isascii()) and text.isprintable()


def cell_len(text: str) -> int:
    """Cells that a text takes."""
    return len(text) if _plain(text) else rich.cells.cell_len(text)


def set_cell_size(text: str, cells: int) -> str:
    """Text cut or filled with blanks to a number of cells."""
    return text[: max(0, cells)].ljust(cells) if _plain(text) else rich.cells.set_cell_size(text, cells)


def to_ascii(text: str) -> str:
    """The same text in ASCII, cell for cell; what has no likeness becomes `?`."""
    if text.isascii():
        return text
    text = text.translate(_ASCII)
    return text if text.isascii() else "".join(c if c.isascii() else "?" * cell_len(c) for c in text)


def width(line: Iterable[Span]) -> int:
    """Cells that a line takes."""
    return sum(cell_len(text) for text, _ in line)


def fit(text: str, cells: int) -> str:
    """Text cut to a number of cells, with `…` where it was cut."""
    if cell_len(text) <= cells:
        return text
    return set_cell_size(text, cells - 1).rstrip() + "…" if cells > 0 else ""


def left(text: str, cells: int) -> str:
    """Text at the left of a field."""
    return set_cell_size(fit(text, cells), cells)


def right(text: str, cells: int) -> str:
    """Text at the right of a field."""
    text = fit(text, cells)
    return " " * (cells - cell_len(text)) + text


def crop(line: Sequence[Span], cells: int) -> Line:
    """A line cut to a number of cells, with `…` where it was cut."""
    if width(line) <= cells:
        return list(line)
    kept: Line = []
    room = cells
    for text, role in line:
        if room <= 0:
            break
        if cell_len(text) >= room:
            kept.append((fit(text, room) if cell_len(text) > room else fit(text + "…", room), role))
            break
        kept.append((text, role))
        room -= cell_len(text)
    return kept


def spread(start: Sequence[Span], end: Sequence[Span], cells: int) -> Line:
    """One part at the left and one at the right; the left one gives way."""
    room = cells - width(end)
    if room <= 0:
        return crop(end, cells)
    start = crop(start, room)
    return [*start, (" " * (room - width(start)), "plain"), *end]


def wrap(text: str, cells: int, indent: str = "") -> list[str]:
    """Text in lines of at most `cells` cells, broken at spaces; later lines begin with `indent`.

    A word that is longer than a line, such as a path, is broken; one that is longer than `LONGEST_WORD` lines is cut.
    """
    lines: list[str] = []
    line = ""
    for word in text.split():
        joined = f"{line} {word}" if line.strip() else f"{line}{word}"
        if cell_len(joined) > cells and line.strip():
            lines.append(line)
            joined = indent + word
        *whole, line = _pieces(joined, cells, indent)
        lines += whole
    return [*lines, line] if line.strip() or not lines else lines


def _pieces(text: str, cells: int, indent: str) -> list[str]:
    """One word in as many lines as it takes."""
    pieces: list[str] = []
    while cell_len(text) > cells and len(pieces) < LONGEST_WORD - 1 and cell_len(indent) + 1 < cells:
        pieces.append(set_cell_size(text, cells).rstrip())
        text = indent + text[len(pieces[-1]) :].lstrip()
    return [*pieces, fit(text, cells)]


def paragraphs(text: str, role: Role, cells: int, indent: str = " ") -> list[Line]:
    """Wrapped text as lines, each indented."""
    return [[(indent + line, role)] for line in wrap(text, max(8, cells - cell_len(indent)))]


def hanging(head: Sequence[Span], text: str, role: Role, cells: int) -> list[Line]:
    """Wrapped text behind a head; later lines begin under its first word."""
    indent = width(head)
    first, *rest = wrap(text, max(12, cells - indent))
    return [[*head, (first, role)], *([(" " * indent, role), (line, role)] for line in rest)]


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column of fixed width."""

    title: str
    cells: int
    align: Literal["left", "right"] = "right"
    drop: int = 0
    """Where room is short, columns go in the order of this number, highest first; 0 stays."""

    def put(self, text: str) -> str:
        """Text in this column's field."""
        return left(text, self.cells) if self.align == "left" else right(text, self.cells)


def kept_columns(columns: Sequence[Column], cells: int, gap: int = 2) -> list[int]:
    """Places of the columns that fit in `cells`: no column is ever cut."""
    kept = list(range(len(columns)))
    while sum(columns[i].cells + gap for i in kept) > cells:
        droppable = [i for i in kept if columns[i].drop]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda i: (columns[i].drop, i)))
    return kept


def table(columns: Sequence[Column], rows: Sequence[Sequence[Span]], cells: int, gap: int = 2) -> list[Line]:
    """A heading and rows; each row has one span for each column."""
    kept = kept_columns(columns, cells, gap)
    space = " " * gap
    heading: Line = [(" " + space.join(columns[i].put(columns[i].title) for i in kept), "dim")]
    lines = [heading]
    for row in rows:
        line: Line = [(" ", "plain")]
        for i in kept:
            text, role = row[i]
            line += [(columns[i].put(text), role), (space, "plain")]
        lines.append(line[:-1])
    return lines
