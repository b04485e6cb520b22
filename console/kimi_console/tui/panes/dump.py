"""Dump: what is captured, what is missing and why, and how long the disk lasts."""

import re

from kimi_agent.counts import many
from kimi_agent.model.events import DumpSampled
from kimi_agent.model.state import RunState
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Line, Role, crop, fit, paragraphs
from kimi_console.tui.panes.base import Drawing, PaneSpec
from kimi_console.tui.view import View

WORDS: dict[str, tuple[str, Role]] = {
    "idle": ("○", "dim"),
    "writing": ("●", "good"),
    "draining": ("◐", "move"),
    "stopped": ("■", "dim"),
    "paused": ("◐", "warn"),
    "failed": ("✖", "bad"),
}
ACTIVE = frozenset({"writing", "draining", "paused", "failed"})


def _depends(view: View) -> tuple[object, ...]:
    run = view.run
    if run is None:
        return (None,)
    return (run.dump, run.capture, run.exited, view.stale(run.dump_time), view.lost)


def active(run: RunState | None) -> bool:
    """Whether a dump takes rows now."""
    return run is not None and run.dump is not None and run.dump.state in ("writing", "draining", "paused")


def layer_identity(boundary: int, flag: int | None) -> str:
    """A boundary in every convention: `boundary 31 = input of block 31 = output of block 30 · flag 31 · …`."""
    spelled = "?" if flag is None else str(flag)
    return (
        f"boundary {boundary} = input of block {boundary} = output of block {boundary - 1}"
        f" · flag {spelled} · SpecForge {boundary - 1} · vLLM {boundary}"
    )


def flags(run: RunState) -> dict[int, int]:
    """Each captured boundary's spelling in SGLang's flag, where both lists are known."""
    captured = boundaries(run)
    if len(captured) != len(run.started.layers):
        return {}
    return dict(zip(sorted(captured), sorted(run.started.layers), strict=True))


def boundaries(run: RunState) -> tuple[int, ...]:
    """The boundaries that the plugin reported."""
    return next((report.boundaries for report in run.capture if report.boundaries), ())


def summary(view: View, cells: int) -> Line:
    """The dump in one line."""
    run = view.run
    if run is None:
        return [("nothing runs", "dim")]
    if run.dump is None or run.dump.state not in ACTIVE:
        return crop(_idle(run), cells)
    dump = run.dump
    glyph, role = WORDS[dump.state]
    missing = sum(rows for _, rows in dump.missing)
    line: Line = [
        (f"{glyph} {dump.state}", role), (f"  {dump.dump}", "bright"),
        (f"  captured {fmt.short(dump.captured)}", "plain"),
        (f"  missing {fmt.short(missing)}", "warn" if missing else "dim"),
        (f"  {many(dump.shards, 'shard')}", "plain"),
    ]  # fmt: skip
    return crop(line, cells)


def draw(view: View, width: int, height: int) -> Drawing:
    """Accounts, speed and disk of the dump; when none is written, what could be captured."""
    run = view.run
    if run is None:
        return Drawing([("nothing runs", "dim")], [])
    dump = run.dump
    if dump is None or dump.state == "idle":
        reason = _why_not(run)
        return Drawing(_idle(run), [[(f" {reason}", "dim")]] if reason else [])
    age = view.stale(run.dump_time) if dump.state in ACTIVE else ""
    base: Role = "stale" if age or not run.alive else "plain"
    glyph, role = WORDS.get(dump.state, ("·", "plain"))
    title: Line = [(f"{glyph} {dump.state}", "stale" if age else role), (f"  {dump.dump}", "bright")]
    if age:
        title.append((f"  {age}", "stale"))
    else:
        title.append((f"  {_layers(run)}", "dim"))
    lines = [_accounts(dump, base), _speed(dump, base), *_content(dump, base), _disk(dump, base)]
    lines[1:1] = _trouble(dump, width)
    lines += [line for error in dump.errors[-2:] for line in paragraphs(f"✖ {error}", "bad", width)]
    return Drawing(title, [crop(line, width) for line in lines][:height])


def _trouble(dump: DumpSampled, width: int) -> list[Line]:
    """Why nothing is written now, and how many writes failed."""
    lines = paragraphs(f"◐ {dump.reason}", "warn", width) if dump.state == "paused" and dump.reason else []
    if dump.write_errors:
        lines.append([(f"✖ {many(dump.write_errors, 'write')} failed", "bad")])
    return lines


def _why_not(run: RunState) -> str:
    if not run.started.capture:
        return "capture is off in this run's profile: [capture] enabled = true"
    if not run.capture:
        return "no rank's capture plugin has reported yet"
    return ""


def _layers(run: RunState) -> str:
    found = boundaries(run)
    return f"boundaries {' '.join(map(str, found))} + last (post-norm)" if found else "boundaries –"


def _idle(run: RunState) -> Line:
    dump = run.dump
    word = dump.state if dump else "idle"
    if not run.started.capture:
        return [("off", "dim")]
    line: Line = [(word, "dim"), (f"  {_layers(run)}", "plain" if boundaries(run) else "dim")]
    if dump is not None:
        line.append((f"  {fmt.size(dump.bytes_per_token)}/token", "dim"))
        line.append((f"  {dump.directory} {_room(dump)}", "dim"))
    return line


def _room(dump: DumpSampled) -> str:
    tokens = dump.free // dump.bytes_per_token if dump.free is not None and dump.bytes_per_token else None
    return f"{fmt.size(dump.free)} free = {fmt.short(tokens)} tokens"


def _accounts(dump: DumpSampled, base: Role) -> Line:
    missing = sum(rows for _, rows in dump.missing)
    reasons = " · ".join(f"{reason} {fmt.short(rows)}" for reason, rows in dump.missing if rows)
    line: Line = [
        (" served ", "dim"), (f"{fmt.short(dump.served)}", base), ("  captured ", "dim"),
        (f"{fmt.short(dump.captured)}", base), ("  committed ", "dim"), (f"{fmt.short(dump.committed)}", base),
        ("  missing ", "dim"), (f"{fmt.short(missing)}", "warn" if missing and base == "plain" else base),
        (f" ({reasons})" if reasons else "", "dim"),
    ]  # fmt: skip
    return line


def _bytes_per_second(dump: DumpSampled) -> float | None:
    return dump.rate * dump.bytes_per_token if dump.rate and dump.bytes_per_token else None


def _speed(dump: DumpSampled, base: Role) -> Line:
    return [
        (" ", "plain"), (fmt.rate(dump.rate), base), (" tok/s  ", "dim"),
        (fmt.size(_bytes_per_second(dump)), base),
        ("/s  samples ", "dim"), (fmt.short(dump.samples), base), ("  shards ", "dim"), (fmt.count(dump.shards), base),
        (" committed, ", "dim"), (fmt.size(dump.bytes), base),
    ]  # fmt: skip


def _content(dump: DumpSampled, base: Role) -> list[Line]:
    """What the rows look like, and how much of the engine's time capture took."""
    line: Line = []
    if dump.self_check:
        line += [(" self-check  ", "dim"), (dump.self_check, _judged(dump.self_check, base))]
    if dump.held_back:
        line += [("  engine held back ", "dim"), (f"{dump.held_back:.1f} s", base)]
    return [line] if line else []


def _judged(words: str, base: Role) -> Role:
    """Red for a drift and for broken rows."""
    return "bad" if "DRIFT" in words or re.search(r"(?:non-finite|zero rows) [1-9]", words) else base


def _disk(dump: DumpSampled, base: Role) -> Line:
    line: Line = [(f" {dump.directory} ", "dim")]
    speed = _bytes_per_second(dump)
    seconds = dump.free / speed if speed and dump.free is not None else None
    low = seconds is not None and seconds < 1800
    line.append((_room(dump), "warn" if low and base == "plain" else base))
    if seconds is not None:
        line.append((f"  full in {fmt.duration(seconds)} at this rate", "warn" if low else "dim"))
    return line


def narrow(view: View, cells: int) -> Line:
    """The dump's line on a small screen, its name before it."""
    return crop([(" Dump  ", "dim"), *summary(view, max(0, cells - 7))], cells)


def identities(run: RunState, cells: int) -> list[str]:
    """Every captured boundary in every convention, cut to the width."""
    spelled = flags(run)
    return [fit(layer_identity(boundary, spelled.get(boundary)), cells) for boundary in boundaries(run)]


DUMP = PaneSpec(
    "dump", 7, "Dump", _depends, draw,
    (
        ("boundaries", "boundary b is the residual stream after b blocks, as the model really captures it"),
        ("served captured missing", "tokens (rows of the model) that requests went through, that were taken, and that "
                                    "a trainer will not find, by reason"),
        ("committed", "rows in shards that are complete, durable and listed"),
        ("self-check", "the model's head applied to captured rows against the engine's own logits, and how many broken "
                       "rows the committed shards have; a drift is red: stop, and run shards verify --model"),
        ("free", "bytes free on the dump's file system, and the tokens that fit into them"),
        ("full in", "free bytes at the present rate"),
    ),
)  # fmt: skip
