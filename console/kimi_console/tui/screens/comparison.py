"""Two starts beside each other, as lines."""

from collections.abc import Sequence

from kimi_agent.counts import many
from kimi_console.compare.comparison import ArgumentPair, Comparison, OnlyLine, PhasePair
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Column, Line, Role, Span, fit, hanging, left, table
from kimi_console.tui.view import GLYPHS

PLAIN = 0.25
"""A phase that differs by less than this share, or a second, is not worth a colour."""
LONGEST = 240
"""Characters of a line of the log that are shown: the arguments of a server alone are ten thousand."""


def comparison_lines(found: Comparison, cells: int) -> list[Line]:
    """What differs, the most telling first."""
    lines: list[Line] = []
    for name, side in (("A", found.a), ("B", found.b)):
        glyph, role = GLYPHS.get(side.status, ("·", "plain"))
        facts = f"{fmt.duration(side.seconds)}  {many(side.lines, 'line')}"
        who: Line = [(f" {name} ", "focus"), (f"{fit(side.title, 36)}  ", "bright")]
        lines.append([*who, (f"{glyph} {side.status}  ", role), (facts, "plain")])
        if side.verdict:
            lines += hanging([("   ", "plain")], side.verdict, "warn", cells - 1)
    lines += [[], *_parting(found, cells), [], *_arguments(found.arguments, cells), *_phases(found, cells)]
    for name, only in (("A", found.only_a), ("B", found.only_b)):
        lines += [[], *_only(name, only, cells)]
    return lines


def _parting(found: Comparison, cells: int) -> list[Line]:
    parting = found.parting
    if parting is None:
        return [[(" Both say the same until they are ready.", "good")]]
    lines: list[Line] = [[(" They part in ", "title"), (parting.phase, "bright")]]
    if parting.after:
        lines += hanging([("   both  ", "dim")], _short(parting.after), "plain", cells - 1)
    for name, line in (("A", parting.a), ("B", parting.b)):
        said = _short(line) if line is not None else "nothing that the other does not say"
        lines += hanging([(f"   {name}     ", "focus")], said, "plain" if line is not None else "dim", cells - 1)
    return lines


def _short(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}… ({len(line) - LONGEST:,} characters more)"


def _arguments(pairs: Sequence[ArgumentPair], cells: int) -> list[Line]:
    if not pairs:
        return []
    lines: list[Line] = [[(" Their servers' arguments differ in ", "title"), (f"{len(pairs)}", "bright")]]
    wide = min(32, max(len(pair.name) for pair in pairs))
    half = max(8, (cells - wide - 9) // 2)
    for pair in pairs:
        a, b = (left(fmt.DASH if value is None else value, half) for value in (pair.a, pair.b))
        lines.append([(f"   {left(pair.name, wide)}  ", "bright"), (a, "plain"), ("  ", "plain"), (b, "plain")])
    return [*lines, []]


def _phases(found: Comparison, cells: int) -> list[Line]:
    columns = (Column("phase", 14, "left"), Column("A", 10), Column("B", 10), Column("difference", 12))
    rows: list[list[Span]] = [
        [(pair.phase, "bright" if pair.phase == found.slower else "plain"), (_seconds(pair.a), "plain"),
         (_seconds(pair.b), "plain"), _difference(pair)]
        for pair in found.phases
    ]  # fmt: skip
    return table(columns, rows, cells)


def _seconds(value: float | None) -> str:
    return fmt.DASH if value is None else f"{value:.1f} s" if value < 60 else fmt.duration(value)


def _difference(pair: PhasePair) -> Span:
    if pair.a is None or pair.b is None:
        return ("not in A" if pair.a is None else "not in B", "warn")
    difference = pair.a - pair.b
    role: Role = "warn" if abs(difference) > max(1.0, PLAIN * max(pair.a, pair.b)) else "dim"
    return (f"{difference:+.1f} s", role)


def _only(name: str, only: Sequence[OnlyLine], cells: int) -> list[Line]:
    if not only:
        return [[(f" No line of {name} that the other does not say", "dim")]]
    lines: list[Line] = [[(f" Only {name} says", "title"), (f"  {len(only)} kinds of lines", "dim")]]
    for one in only:
        times = f" ×{one.count}" if one.count > 1 else ""
        lines.append([(f" {one.number:>6} ", "dim"), (f"{one.phase:<12}  ", "rank0"),
                      (fit(one.line, max(8, cells - 24 - len(times))), "plain"), (times, "dim")])  # fmt: skip
    return lines
