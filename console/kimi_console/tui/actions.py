"""Everything the operator can do, once: bindings, footer, command palette and help are made from this table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kimi_console.source.session import Session
from kimi_console.tui.panes.dump import active
from kimi_console.tui.panes.why import startable

Reason = Callable[[Session], str]
"""Why an action cannot be done now, in words; empty when it can."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do."""

    id: str
    key: str
    """Textual's name of the key."""
    shown: str
    """The key as the operator reads it."""
    label: str
    """One or two words, for the footer."""
    help: str
    """One sentence, for palette and help."""
    group: str
    why_not: Reason
    rank: int = 0
    """Place in the footer, smallest first; 0 is not in the footer."""


def _always(session: Session) -> str:
    return ""


def _acts(session: Session) -> str:
    if session.control is None:
        return "a recording cannot be acted on: connect to a host"
    if session.control.read_only:
        return "this connection is read-only: connect again without --read-only"
    if session.link.state != "live":
        return f"the link is {session.link.state}: wait, or press r to try at once"
    return ""


def _asks(session: Session) -> str:
    if session.control is None:
        return "a recording has no agent to ask: connect to a host"
    return "" if session.link.state == "live" else f"the link is {session.link.state}: wait, or press r to try at once"


def _launch(session: Session) -> str:
    run = session.state.run
    if run is not None and run.alive and session.control is not None:
        return f"run {run.started.run} is still there: stop it first (s)"
    return _acts(session)


def _stop(session: Session) -> str:
    run = session.state.run
    if run is None:
        return "nothing runs"
    return _acts(session) if run.alive else f"run {run.started.run} has already ended"


def _dump(session: Session) -> str:
    run = session.state.run
    if run is None or not run.alive:
        return "nothing runs: launch a profile with capture first"
    if not run.started.capture:
        return "capture is off in this run's profile: set [capture] enabled = true and launch again"
    if not active(run) and not any(report.writer for report in run.capture):
        return "no rank's capture plugin has reported yet"
    return _acts(session)


def _feed(session: Session) -> str:
    run = session.state.run
    if run is not None and run.alive and not run.started.capture:
        return "capture is off in this run's profile: set [capture] enabled = true and launch again"
    return _asks(session)


def _has_run(session: Session) -> str:
    return "" if session.state.run is not None else "there has been no run yet"


def _has_verdict(session: Session) -> str:
    run = session.state.run
    return "" if run is not None and run.verdict is not None else "the doctor has not said anything yet"


def _hosts(session: Session) -> str:
    return "" if session.elsewhere is not None else "one host only: start kimi-console alone for all of them"


def _bisect(session: Session) -> str:
    if session.state.bisect is not None:
        return ""
    return startable(session.state) or _acts(session)


def _bundle(session: Session) -> str:
    return _acts(session)


def _redial(session: Session) -> str:
    if session.control is None:
        return "there is no link to redial"
    return "the link is up" if session.link.state == "live" else ""


def _replays(session: Session) -> str:
    return "" if session.player is not None else "this is not a recording: kimi-console replay FILE plays one"


def _compares(session: Session) -> str:
    return "" if session.comparison is not None else "open a recording with --against OTHER to compare it"


PANES: Final = ("launch", "why", "ranks", "throughput", "host", "log", "dump")

ACTIONS: Final[tuple[Action, ...]] = (
    Action("launch", "l", "l", "launch", "Launch a profile: shows the exact command line and its problems first.",
           "server", _launch, 1),
    Action("stop", "s", "s", "stop", "Stop the server, after asking, and check that all it held is released.",
           "server", _stop, 2),
    Action("dump", "D", "D", "dump", "Start a dump of hidden states, or end the one that is written.",
           "capture", _dump, 3),
    Action("feed", "F", "F", "feed", "Drive a dataset through the server into a dump, or see how far that is.",
           "capture", _feed),
    Action("inspect", "i", "i", "inspect", "Look into dumps, shards, samples and tokens.", "capture", _asks, 5),
    Action("doctor", "d", "d", "doctor", "Show the verdict with all its evidence.", "understand", _has_verdict, 4),
    Action("bisect", "b", "b", "bisect", "Find what a start hangs on: launch it again, one thing changed at a time.",
           "understand", _bisect, 4),
    Action("bundle", "w", "w", "bundle", "Write a bundle for a bug report here, with nothing private in it.",
           "understand", _bundle),
    Action("explain", "e", "e", "explain", "Explain the cells of the pane that is chosen.", "understand", _always, 12),
    Action("events", "E", "E", "events", "List every change of state and verdict.", "understand", _always, 13),
    Action("command", "c", "c", "command", "Show and copy the exact command line of the run.",
           "understand", _has_run, 14),
    Action("search", "slash", "/", "search", "Search the log: text, /regex/ or a rank like TP3.", "log", _always, 6),
    Action("next", "n", "n", "next", "Go to the next match.", "log", _always),
    Action("previous", "N", "N", "previous", "Go to the match before.", "log", _always),
    Action("filter", "f", "f", "filter", "Show only matching lines of the log; ! before it shows the others.",
           "log", _always, 7),
    Action("follow", "end", "End", "follow", "Go to the log's end and follow it.", "log", _always),
    Action("zoom", "z", "z", "zoom", "Give the chosen pane the whole screen, or take it back.", "screen", _always, 8),
    *(
        Action(f"pane_{pane}", str(number), str(number), pane, f"Choose the {pane} pane.", "screen", _always)
        for number, pane in enumerate(PANES, 1)
    ),
    Action("play", "space", "space", "pause", "Hold the clock, or let it go on.", "replay", _replays),
    Action("back", "left", "←→", "5 s", "Go 5 seconds back.", "replay", _replays),
    Action("ahead", "right", "→", "5 s on", "Go 5 seconds on.", "replay", _replays),
    Action("far_back", "shift+left", "⇧", "60 s", "Go a minute back.", "replay", _replays),
    Action("far_ahead", "shift+right", "⇧→", "60 s on", "Go a minute on.", "replay", _replays),
    Action("step", "full_stop", ".", "step", "Hold the clock and take one event.", "replay", _replays),
    Action("step_back", "comma", ",", "step back", "Hold the clock and take one event back.", "replay", _replays),
    Action("next_mark", "m", "m", "mark", "Go to the next launch, phase, error, verdict, dump or end.",
           "replay", _replays),
    Action("previous_mark", "M", "M", "mark before", "Go to the mark before.", "replay", _replays),
    Action("faster", "plus,equals_sign", "+", "faster", "Play at twice the speed, up to no waiting at all.",
           "replay", _replays),
    Action("slower", "minus", "-", "slower", "Play at half the speed, down to a quarter.", "replay", _replays),
    Action("go_to", "g", "g", "go to", "Go to a time.", "replay", _replays),
    Action("rewind", "ctrl+home", "^Home", "begin", "Go to the beginning, and wait there.", "replay", _replays),
    Action("to_end", "ctrl+end", "^End", "end", "Go to the last event.", "replay", _replays),
    Action("share", "x", "x", "share", "Write a slice, its log, its state or the screen to a file.",
           "replay", _replays),
    Action("compare", "v", "v", "compare", "Show where this recording and the other one part.",
           "understand", _compares),
    Action("theme", "t", "t", "theme", "Choose a theme.", "screen", _always),
    Action("redial", "r", "r", "redial", "Try to connect at once.", "screen", _redial, 1),
    Action("hosts", "H", "H", "hosts", "Go to the list of hosts; this one stays open.", "screen", _hosts, 9),
    Action("help", "question_mark", "?", "help", "Show all keys.", "screen", _always, 10),
    Action("palette", "ctrl+p", "^p", "palette", "Find a command by its name.", "screen", _always, 11),
    Action("quit", "q", "q", "quit", "Leave the console; the server goes on.", "screen", _always, 15),
)  # fmt: skip

BY_ID: Final = {action.id: action for action in ACTIONS}
GROUPS: Final = ("server", "capture", "understand", "log", "replay", "screen")


def footer_actions(session: Session) -> list[Action]:
    """What applies now, the most useful first."""
    shown = [action for action in ACTIONS if action.rank and not action.why_not(session)]
    return sorted(shown, key=lambda action: action.rank)


def footer_label(action: Action, session: Session) -> str:
    """The action's word, as it stands now."""
    if action.id == "dump":
        return "end dump" if active(session.state.run) else "dump"
    return action.label
