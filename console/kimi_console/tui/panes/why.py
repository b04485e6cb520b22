"""Why: the doctor's verdict, with what it rests on."""

import re
from typing import Final

from kimi_agent.model.events import Verdict
from kimi_agent.model.state import RingEntry, State
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Line, Role, crop, fit, hanging, paragraphs, spread, wrap
from kimi_console.tui.panes.base import Drawing, PaneSpec
from kimi_console.tui.view import GLYPHS, UNHEARD, View

_TROUBLE: Final = re.compile(r"^(?:\w+ → (?:HUNG|SLOW|FAILED)|(?:HUNG|SLOW) → |verdict |cleared)")
EVIDENCE_SHOWN = 5
LATCHED_SHOWN = 4


def _depends(view: View) -> tuple[object, ...]:
    run = view.run
    if run is None:
        return (view.lost, view.link_trouble, view.unheard)
    latched = latched_entries(view)
    keys = (view.link.state, view.read_only, startable(view.state))
    return (run.verdict, run.status, run.status_reason, run.exited, view.lost, view.link_trouble, latched, *keys)


def startable(state: State) -> str:
    """Why no bisection can be started now, in words; empty when one can."""
    run, table = state.run, state.bisect
    if table is not None and table.active:
        return "a bisection goes on"
    if run is None:
        return "there has been no start yet that could be taken apart"
    if table is not None and run.started.run in {one.run for one in table.attempts}:
        return ""
    if run.status not in ("HUNG", "FAILED"):
        return "a start is only taken apart when it hangs or has failed"
    return "" if run.ready_time is None else "only starts are compared, and this server had been ready"


def headline(verdict: Verdict, status: str) -> Line:
    """`✖ HUNG  TP1 is stopped`: a summary's first sentence where more follow, else kind and rank."""
    glyph, role = GLYPHS.get(status, ("·", "plain"))
    if status not in ("SLOW", "HUNG", "FAILED"):
        glyph, role = "⚠", "warn"
    word = "SLOW, NOT HUNG" if status == "SLOW" else status
    first, rest = sentences(verdict)
    kind = verdict.kind.replace("_", " ") + (f" {verdict.rank}" if verdict.rank else "")
    return [(f"{glyph} {word}", role), (f"  {first if rest else kind}", "bright")]


def sentences(verdict: Verdict) -> tuple[str, str]:
    """The summary's first sentence, and what follows it."""
    first, _, rest = verdict.summary.partition(". ")
    return first, rest


def one_line(view: View, cells: int) -> Line:
    """The verdict where there is room for one line only."""
    run = view.run
    if view.link_trouble:
        return crop([(f" {view.link_trouble}", "warn")], cells)
    if run is None:
        return [(UNHEARD if view.unheard else " nothing runs", "dim")]
    if run.verdict is None or run.verdict.kind == "none":
        return crop([(f" {run.status_reason or 'no problem seen'}", "dim")], cells)
    first, rest = sentences(run.verdict)
    line = [(" ", "plain"), *headline(run.verdict, run.status), (f"  {rest or first}", "plain")]
    return crop(line, cells)


def draw(view: View, width: int, height: int) -> Drawing:
    """Headline, summary, evidence, what it is not, what to do; nothing but one quiet line when all is well."""
    if view.link_trouble:
        link = paragraphs(view.link_trouble, "warn", width)
        return Drawing([], [*link, *_verdict(view, width, height - len(link))][:height])
    return Drawing([], _verdict(view, width, height))


def _verdict(view: View, width: int, height: int) -> list[Line]:
    run = view.run
    if run is None:
        return [[(UNHEARD if view.unheard else " nothing runs", "dim")]]
    verdict = run.verdict
    if verdict is None or verdict.kind == "none":
        return _quiet(view, width)
    confidence: Line = [(f"confidence {verdict.confidence:.2g} ", "dim")]
    lines = [spread([(" ", "plain"), *headline(verdict, run.status)], confidence, width)]
    first, rest = sentences(verdict)
    lines += paragraphs(rest or first, "bright", width, "   " if width > 80 else " ")
    advice = _labelled("Do", verdict.advice, "accent", "plain", width)
    ruled_out = _labelled("not", (" · ".join(verdict.ruled_out),) if verdict.ruled_out else (), "dim", "dim", width)
    room = height - len(lines) - len(advice)
    for index, text in enumerate(verdict.evidence[:EVIDENCE_SHOWN]):
        item = _evidence(text, width)
        hidden = len(verdict.evidence) - index
        if len(item) > room:
            lines.append([(f"   … {hidden} more: d", "dim")])
            room = 0
            break
        lines += item
        room -= len(item)
    lines += ruled_out[: max(0, room)]
    return [*lines, *advice, _keys(view)][:height]


def _keys(view: View) -> Line:
    """What can be pressed now to know more."""
    acts = view.link.state == "live" and not view.read_only
    bisect = ["b bisect"] if acts and not startable(view.state) else []
    return [("   " + "   ".join(["d evidence", *bisect, *(["w write bundle"] if acts else [])]), "dim")]


def _quiet(view: View, width: int) -> list[Line]:
    run = view.run
    if run is None:
        return []
    if run.exited is not None:
        asked = "stopped by the operator" if run.exited.asked else "ended by itself"
        lines = paragraphs(f"{asked}, exit code {fmt.DASH if run.exited.code is None else run.exited.code}",
                           "dim" if run.exited.asked else "bad", width)  # fmt: skip
        left = [line for text in run.exited.left for line in paragraphs(f"left behind: {text}", "warn", width)]
        return lines + left
    if run.verdict is None and run.status not in ("READY", "STARTING"):
        return paragraphs(run.status_reason or "the doctor has not looked yet", "plain", width)
    text = "no problem seen" if run.verdict is not None else "the doctor has seen nothing to explain so far"
    reason = paragraphs(run.status_reason, "dim", width) if run.status_reason else []
    return [*paragraphs(text, "dim", width), *reason, *_latched(view, width)]


def latched_entries(view: View) -> tuple[RingEntry, ...]:
    """The last times that this run was not well, and that it was again: what flashed by stays readable."""
    run = view.run
    if run is None:
        return ()
    told = [entry for entry in view.state.ring if entry.time >= run.time and _TROUBLE.search(entry.text)]
    return tuple(told[-LATCHED_SHOWN:])


def _latched(view: View, width: int) -> list[Line]:
    lines: list[Line] = [
        crop([(f" {fmt.clock(entry.time)} ", "dim"), (entry.text, "warn" if entry.level != "good" else "dim")], width)
        for entry in latched_entries(view)
    ]
    return [[], [(fit(" earlier in this run, E shows all", width), "dim")], *lines] if lines else []


def _evidence(text: str, width: int) -> list[Line]:
    source, _, rest = text.partition(" ")
    source, rest = source.rstrip(":"), rest.strip()
    return hanging([(f"   {source:<7}", "dim")], rest, "plain", width - 1)


def _labelled(label: str, texts: tuple[str, ...], label_role: Role, role: Role, width: int) -> list[Line]:
    lines: list[Line] = []
    for text in texts:
        for line in wrap(text, max(8, width - 11)):
            lines.append([(f"   {label:<7}", label_role), (line, role)])
            label = ""
    return lines


WHY = PaneSpec(
    "why", 2, "Why", _depends, draw,
    (
        ("verdict", "the agent's doctor, from the log, /proc, NVML, stacks and ports; it never stops anything"),
        ("confidence", "0 to 1: how surely the evidence separates this cause from the others"),
        ("log proc nvml stack port", "where a line of evidence was read; so are plugin, lock, disk, kernel, cgroup"),
        ("not", "causes that were checked and ruled out, each with its reason"),
        ("Do", "what helps; d shows everything in full"),
    ),
)  # fmt: skip
