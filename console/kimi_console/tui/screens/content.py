"""What the sheets say: help, events, evidence, explanations, the command line."""

import shlex

from kimi_agent.model.state import RunState
from kimi_console.source.session import Session
from kimi_console.tui import format as fmt
from kimi_console.tui.actions import ACTIONS, GROUPS
from kimi_console.tui.cells import Line, Role, hanging, left, paragraphs, wrap
from kimi_console.tui.panes.base import Drawing, PaneSpec
from kimi_console.tui.panes.dump import identities
from kimi_console.tui.panes.why import headline
from kimi_console.tui.view import View

LEVELS: dict[str, Role] = {"info": "plain", "good": "good", "warning": "warn", "error": "bad"}
GLYPHS = {"info": "·", "good": "✓", "warning": "⚠", "error": "✖"}


def help_lines(session: Session, cells: int) -> list[Line]:
    """Every key by group; what does not apply now says why."""
    lines: list[Line] = []
    for group in GROUPS:
        lines += [[], [(f" {group}", "title")]]
        for action in ACTIONS:
            if action.group != group:
                continue
            reason = action.why_not(session)
            text = f"{action.help}  ({reason})" if reason else action.help
            head: Line = [(f" {action.shown:>4}  ", "dim" if reason else "focus")]
            lines += hanging(head, text, "dim" if reason else "plain", cells - 1)
    lines += [[], [(" in the log", "title")]]
    for key, text in (("↑ ↓", "scroll; scrolling up stops following, and nothing moves under you"),
                      ("← →", "scroll sideways: long lines are cut, not wrapped"),
                      ("Esc", "end a zoom, then a search, then a filter")):  # fmt: skip
        lines.append([(f" {key:>4}  ", "focus"), (text, "plain")])
    return lines[1:]


def event_lines(session: Session, cells: int) -> list[Line]:
    """The ring of changes, oldest first."""
    ring = session.state.ring
    lines: list[Line] = []
    for entry in ring:
        role = LEVELS.get(entry.level, "plain")
        head: Line = [(f" {fmt.clock(entry.time)} ", "dim"), (f"{GLYPHS.get(entry.level, '·')} ", role)]
        lines += hanging(head, entry.text, role, cells - 1)
    return lines or [[(" nothing has happened yet", "dim")]]


def doctor_lines(view: View, cells: int) -> list[Line]:
    """The verdict in full."""
    run = view.run
    verdict = run.verdict if run else None
    if run is None or verdict is None:
        return [[(" the doctor has not said anything yet", "dim")]]
    if verdict.kind == "none":
        lines: list[Line] = [[(" ✓ no problem seen", "good")]]
        lines += paragraphs(verdict.summary or run.status_reason, "plain", cells)
    else:
        lines = [[(" ", "plain"), *headline(verdict, run.status), (f"   confidence {verdict.confidence:.2g}", "dim")]]
        lines += paragraphs(verdict.summary, "bright", cells)
    if run.verdict_time is not None:
        lines.append([(f" said at {fmt.clock(run.verdict_time)}", "dim")])
    parts: tuple[tuple[str, tuple[str, ...], Role], ...] = (
        ("evidence", verdict.evidence, "plain"), ("not", verdict.ruled_out, "dim"), ("do", verdict.advice, "plain"),
    )  # fmt: skip
    for title, texts, role in parts:
        if texts:
            lines += [[], [(f" {title}", "title")]]
            for text in texts:
                lines += hanging([("   ", "plain")], text, role, cells - 1)
    return lines


def explain_lines(spec: PaneSpec, view: View, cells: int) -> list[Line]:
    """Where a pane's values come from."""
    lines: list[Line] = []
    for name, text in spec.explain:
        lines += hanging([(" " + left(name, 25) + " ", "bright")], text, "plain", cells - 1)
    if spec.id == "dump" and view.run is not None:
        spelled = identities(view.run, cells - 2)
        if spelled:
            lines += [[], [(" the captured layers", "title")]]
            lines += _plain(spelled)
            lines.append([(" the last hidden state is post-norm", "dim")])
    return lines


LOG_EXPLAINED = PaneSpec(
    "log", 6, "Log", lambda view: (), lambda view, width, height: Drawing(),
    (
        ("time rank text", "the server's own output, in its order; the date is left out"),
        ("colours", "red for errors, bold for warnings, dim for access lines; each rank has its own colour"),
        ("following", "the end is in sight and stays there"),
        ("new below", "lines that came since you scrolled up; End goes to them"),
    ),
)  # fmt: skip


def command_line(run: RunState) -> str:
    """The run's command line, ready to paste."""
    return shlex.join(run.started.argv)


def command_lines(run: RunState, cells: int) -> list[Line]:
    """The run's command line and where it runs."""
    started = run.started
    facts = (("python", started.python), ("log", started.log), ("address", f"{started.host}:{started.port}"))
    lines = [*_plain(wrap(command_line(run), cells - 2, "  ")), []]
    for name, value in facts:
        lines.append([(f" {name:<9}", "dim"), (value, "plain")])
    return lines


def _plain(rows: list[str]) -> list[Line]:
    return [[(f" {row}", "plain")] for row in rows]
