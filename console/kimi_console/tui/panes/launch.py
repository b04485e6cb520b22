"""Launch: the phases of the start, this one beside the last good one, rank by rank."""

from kimi_agent.counts import many
from kimi_agent.model.phases import MEANING, ORDER, PHASES
from kimi_agent.model.starts import PhaseSpan, lateness, phase_spans, remaining
from kimi_agent.model.state import RunState
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Line, Role, Span, fit, paragraphs
from kimi_console.tui.panes.base import Drawing, PaneSpec
from kimi_console.tui.view import UNHEARD, View, front, run_end

BAR = 8


def _depends(view: View) -> tuple[object, ...]:
    run = view.run
    if run is None:
        return (view.read_only, view.replay, view.link_trouble, view.unheard)
    moving = run.alive and run.ready_time is None
    clock = int(view.now) if moving else 0
    return (run.ranks, run.progress, run.status, run.exited, run.baseline, run.unmatched, clock, view.lost)


def draw(view: View, width: int, height: int) -> Drawing:
    """One line a phase; a progress bar's position below them."""
    run = view.run
    if run is None:
        if view.link_trouble:
            return Drawing([], paragraphs(view.link_trouble, "warn", width))
        return Drawing([] if view.unheard else [("nothing launched", "dim")], [[(_how_to_launch(view), "dim")]])
    spans, good = phase_spans(run), run.baseline
    starts = good.starts if good is not None else 1
    reference = "good" if width < 56 else "last good" if starts == 1 else f"of {starts} good"
    heading = f"   {'phase':<14}{'now':>8}{reference:>{_good_width(width)}}"
    lines: list[Line] = [[(heading + ("     ranks past it" if width >= 44 else ""), "dim")]]
    lines += [_row(view, run, phase, spans.get(phase), width) for phase in PHASES[:-1]]
    footer = _progress(run, width) if run.ready_time is None else None
    if footer:
        lines.append(footer)
    elif run.unmatched is not None and run.ready_time is None and len(lines) < height:
        lines.append([(fit(f" not known: {run.unmatched.last}", width), "warn")])
    elif good is None and run.ready_time is None and len(lines) < height:
        text = " last good – : no start of this launch has become ready here yet"
        lines.append([(fit(text, width), "dim")])
    return Drawing(_title(view, run), lines)


def _how_to_launch(view: View) -> str:
    if view.unheard:
        return UNHEARD
    if view.replay:
        return " no launch in this recording so far"
    return " nothing runs: this connection is read-only" if view.read_only else " press l to launch a profile"


def _good_width(width: int) -> int:
    return 12 if width >= 56 else 8


def _unmatched(run: RunState) -> Line:
    """How much of the start's log could not be placed: a rewording shows itself so."""
    if run.unmatched is None:
        return []
    lines = many(run.unmatched.lines, "line")
    return [(f"  {lines}, {fmt.duration(run.unmatched.seconds)} matched no phase", "warn")]


def _title(view: View, run: RunState) -> Line:
    if run.ready_time is not None:
        return [(f"ready in {fmt.duration(run.ready_time - run.time)}", "dim"), *_unmatched(run)]
    if run.exited is not None:
        return [(f'ended in "{front(run)}"', "bad")]
    if not run.ranks:
        return []
    place: Line = [(f"{run.past(front(run))}/{len(run.ranks)} past {front(run)}", "dim")]
    return [*place, *_expected(view, run), *_unmatched(run)]


def _expected(view: View, run: RunState) -> Line:
    """When it should be ready, or by how much it is late, by good starts."""
    left = remaining(run, view.known)
    if left is None or run.status in ("HUNG", "FAILED"):
        return []
    late = lateness(run, view.known)
    if late >= 1:
        return [(f"  {fmt.duration(late)} late", "warn")]
    return [(f"  about {fmt.duration(left)} to go", "plain")]


def _row(view: View, run: RunState, phase: str, span: PhaseSpan | None, width: int) -> Line:
    total, past = len(run.ranks), run.past(phase)
    reference = dict(run.baseline.phases).get(phase) if run.baseline else None
    slowest = dict(run.baseline.slowest).get(phase, reference) if run.baseline else None
    over = span is not None and span.end is None
    took = None if span is None else (span.end or run_end(run, view.known)) - span.start
    mark, role = _mark(run, phase, past, over)
    slow = over and slowest is not None and took is not None and took > 1.5 * slowest + 5
    shown: Role = "warn" if slow else "bright" if over else "dim" if past == total else "plain"
    line: Line = [(f" {mark} ", role), (f"{phase:<14}", "bright" if over else "plain" if past else "dim")]
    line.append((f"{fmt.duration(took) if span else '':>8}", shown))
    line.append((f"{fmt.duration(reference):>{_good_width(width)}}", "dim"))
    if width >= 44 and (span is not None or past):
        line += _ranks_past(run, phase, past, total, width - 3 - 14 - 8 - _good_width(width))
    return line


def _mark(run: RunState, phase: str, past: int, over: bool) -> Span:
    if past == len(run.ranks) and past:
        return "✓", "good"
    if over and (not run.alive or run.status in ("HUNG", "FAILED")):
        return "✖", "bad"
    return ("▸", "move") if over or past else ("·", "dim")


def _ranks_past(run: RunState, phase: str, past: int, total: int, room: int) -> Line:
    full, empty = fmt.bar(past, total, BAR)
    role: Role = "dim" if past == total else "move"
    line: Line = [("     ", "plain"), (full, "rule" if past == total else role), (empty, "rule"),
                  (f" {past}/{total}", role)]  # fmt: skip
    late = run.laggards(phase)
    if 0 < past < total:
        names = "   " + " ".join(late)
        spare = room - 5 - BAR - len(f" {past}/{total}")
        line.append((names if len(names) <= spare else fit(f"   {len(late)} late", spare), "warn"))
    return line


def _progress(run: RunState, width: int) -> Line | None:
    progress = run.progress
    if progress is None or not run.ranks or ORDER.get(progress.phase, -1) < ORDER[front(run)]:
        return None
    full, empty = fmt.bar(progress.done, progress.total, 16 if width >= 44 else 8)
    text = f"   {progress.what} {progress.done}/{progress.total}  "
    return [(fit(text, max(0, width - 24)), "plain"), (full, "move"), (empty, "rule"),
            (f" {fmt.share(progress.done, progress.total):>5}", "dim")]  # fmt: skip


LAUNCH = PaneSpec(
    "launch", 1, "Launch", _depends, draw,
    (
        *((phase, MEANING[phase]) for phase in PHASES[:-1]),
        ("now", "from the first rank that entered the phase to the last that left it, from the server's log"),
        ("last good", "the same of the last starts that became ready on this host with the same model, layout, "
                      "SGLang and flags, their median; a phase that takes half as long again as the slowest is marked"),
        ("to go", "until ready, by those good starts and by the bar of the present phase; or by how much it is late"),
        ("matched no phase", "lines that read like the opening of a phase in words that this version of the "
                                   "console does not know, and the seconds until the next known one"),
        ("ranks past it", "how many ranks have left the phase, and which have not"),
    ),
)  # fmt: skip
