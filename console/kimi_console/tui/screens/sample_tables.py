"""One sample as lines: its layers beside the dump's, its tokens, its histograms; pure functions over JSON."""

from typing import Any

from kimi_agent.counts import many
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Line, Span, hanging, paragraphs
from kimi_console.tui.token_grid import shade

Facts = dict[str, Any]


def heat_row(facts: Facts, token: int, cells: int) -> tuple[Line, Line]:
    """The whole sample in one line of shades, and a line under it with its marks and where the cursor is."""
    heat = facts["heat"]
    held, width = len(heat["cells"]), max(1, cells - 2)
    if not held:
        return [], []
    shown = min(held, width)
    spans: Line = [(" ", "plain")]
    marks = [" "] * shown
    for cell in range(shown):
        span = range(cell * held // shown, max(cell * held // shown + 1, (cell + 1) * held // shown))
        values = [heat["cells"][place] for place in span if heat["cells"][place] is not None]
        spans.append(shade(max(values) if values else None, heat["low"], heat["high"]))
        inside = {heat["marks"][place] for place in span}
        marks[cell] = "!" if "!" in inside else "^" if "^" in inside else " "
    here = min(shown - 1, token * shown // max(1, facts["rows"]))
    under: Line = [(" ", "plain")]
    for cell, mark in enumerate(marks):
        span_: Span = ("▲", "accent") if cell == here else (mark, "bad" if mark == "!" else "warn")
        under.append(span_)
    return spans, under


def layers(facts: Facts, cells: int) -> list[Line]:
    """Two lines a layer: its rms beside the dump's, and what is wrong with its rows."""
    lines: list[Line] = []
    names = list(facts["layers"])
    for place, (name, numbers) in enumerate(facts["layers"].items()):
        chosen = name == facts["layer"]
        dump = facts["dump_layers"].get(name)
        beside = f"dump {dump['rms']:.3g} ± {dump['rms_spread']:.2g}" if dump else "dump –"
        lines.append([
            ("▸" if chosen else " ", "accent"), (f"{name:>5} ", "focus" if chosen else "bright"),
            (f" rms {numbers['rms']:<6.3g}", "plain"), (f" {beside:<18}", "dim"),
            (f" max {numbers['max_abs']:.3g}", "plain"),
        ])  # fmt: skip
        cosine = numbers["cosine_before"]
        before = "" if cosine is None else f"cos to {names[place - 1]} {cosine:.3f}  "
        lines.append([
            ("    ", "plain"), (before, "plain"), _counted(numbers["non_finite"], "not finite"),
            _counted(numbers["zero_rows"], "zero"), _counted(numbers["duplicate_rows"], "same"),
        ])  # fmt: skip
    return lines


def _counted(number: int, what: str) -> Span:
    return f"{number:,} {what}  ", "bad" if number else "dim"


def histograms(facts: Facts) -> list[Line]:
    """Norms of the chosen layer's rows, and magnitudes of its values, each as one line of bars."""
    norms, values = facts["norms"], facts["values"]
    lines: list[Line] = [[(f" norms at {facts['layer']}", "title"), (f"  {many(facts['read'], 'row')}", "dim")]]
    if norms["counts"]:
        lines.append(
            [(f" {norms['low']:.3g} ", "dim"), (bars(norms["counts"]), "move"), (f" {norms['high']:.3g}", "dim")]
        )
    lines.append([(" values, by powers of two", "title"), (f"  of {many(values['rows'], 'row')}", "dim")])
    if values["counts"]:
        low, high = values["low"], values["low"] + len(values["counts"])
        lines.append([(f" 2^{low} ", "dim"), (bars(values["counts"]), "move"), (f" 2^{high}", "dim"),
                      (f"  zero {fmt.short(values['zero'])}", "dim")])  # fmt: skip
    return lines


def bars(counts: list[int]) -> str:
    """Counts as bars; what is not empty shows, however small."""
    top = max(counts, default=0)
    return "".join(" " if not count else fmt.BARS[min(7, count * 8 // (top + 1))] for count in counts)


def token_lines(facts: Facts, token: Facts | None, names: list[str], cells: int) -> list[Line]:
    """The token under the cursor, and what is wrong with it."""
    if token is None:
        return [[(" reading…", "dim")]]
    lines: list[Line] = [[
        (" position ", "dim"), (f"{token['position']:,}", "bright"), ("  id ", "dim"), (f"{token['id']}", "bright"),
        (f"  {token['text']!r}" if token["text"] else "", "plain"),
    ]]  # fmt: skip
    norms = "  ".join(
        f"{name} {fmt.DASH if value is None else f'{value:.4g}'}"
        for name, value in zip(names, token["norm"], strict=True)
    )
    lines += hanging([(" norm ", "dim")], norms, "plain", cells)
    if token["mark"] == "!":
        lines += hanging([(" ✖ ", "bad")], str(token["why"]), "bad", cells)
    elif token["mark"] == "^":
        lines += hanging([(" ^ ", "warn")], str(token["why"]), "warn", cells)
    return lines


def about(facts: Facts, text_source: str, cells: int) -> list[Line]:
    """The sample's accounts, how much of it was read, and what its shard's hashes say."""
    lines: list[Line] = [[
        (f" {facts['prompt_tokens']:,} prompt + {facts['output_tokens']:,} output tokens", "plain"),
        (f"  finished: {facts['finish_reason']}", "dim"),
    ]]  # fmt: skip
    expected = facts["prompt_tokens"] + facts["output_tokens"] - 1
    whole = facts["rows"] == expected - sum(facts["missing"].values())
    all_there = "as many as there must be" if whole and not facts["missing"] else f"{expected:,} would be whole"
    lines.append([(f" {many(facts['rows'], 'row')}", "plain"), (f"  {all_there}", "dim" if whole else "bad")])
    for reason, rows in facts["missing"].items():
        lines.append([(f" {many(rows, 'row')} missing: {reason}", "warn")])
    if facts["bad_rows"] or facts["outliers"]:
        lines.append([
            (f" ! {many(facts['bad_rows'], 'row')} cannot be right", "bad" if facts["bad_rows"] else "dim"),
            (f"   ^ {facts['outliers']:,} stand out", "warn" if facts["outliers"] else "dim"),
        ])  # fmt: skip
    if facts["read"] < facts["rows"]:
        lines.append([(f" read {facts['read']:,} of {many(facts['rows'], 'row')}", "move")])
    elif facts["damaged"]:
        text = f"{', '.join(facts['damaged'])} changed after it was committed: do not train on this shard"
        lines += hanging([(" ✖ ", "bad")], text, "bad", cells)
    elif facts["checked"]:
        lines.append([(" ✓ the shard is as it was committed", "good")])
    return lines + paragraphs(f"text: {text_source}", "dim", cells)
