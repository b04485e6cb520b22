"""The board: every pane at its place, drawn from one session."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.screen import Screen
from textual.widget import Widget

from kimi_agent.profile import Profile
from kimi_console.source.session import Session
from kimi_console.tui.actions import ACTIONS, BY_ID, footer_actions, footer_label
from kimi_console.tui.bar import Bar
from kimi_console.tui.cells import Line, crop, width
from kimi_console.tui.clock import HostClock
from kimi_console.tui.commands import Commands
from kimi_console.tui.log_pane import LogPane
from kimi_console.tui.pane import Pane
from kimi_console.tui.panes import dump, header, why
from kimi_console.tui.panes.base import PaneSpec
from kimi_console.tui.panes.dump import DUMP
from kimi_console.tui.panes.host import HOST
from kimi_console.tui.panes.launch import LAUNCH
from kimi_console.tui.panes.ranks import RANKS
from kimi_console.tui.panes.throughput import THROUGHPUT
from kimi_console.tui.panes.why import WHY
from kimi_console.tui.plan import Box, Situation, has_edge, is_wide, joints, plan, too_small
from kimi_console.tui.replay import ReplayKeys
from kimi_console.tui.rows import Content
from kimi_console.tui.screens import content
from kimi_console.tui.screens.sheet import Sheet
from kimi_console.tui.view import View

REFRESH = 0.5
"""Seconds between two drawings of the panes."""
SPECS: tuple[PaneSpec, ...] = (LAUNCH, WHY, RANKS, THROUGHPUT, HOST, DUMP)


def _palette() -> type[Provider]:
    from kimi_console.tui.palette import ActionProvider  # noqa: PLC0415 - the palette knows the board

    return ActionProvider


class Board(Screen[None]):
    """The main screen."""

    COMMANDS: ClassVar = {_palette}
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(action.key, f"run('{action.id}')", action.label, id=action.id, show=False) for action in ACTIONS),
        Binding("escape", "back", show=False),
    ]

    def __init__(
        self,
        session: Session,
        profiles: Sequence[Path | Profile],
        clock: HostClock,
        *,
        ascii: bool = False,  # noqa: A002
    ) -> None:
        super().__init__()
        self.session = session
        self.clock = clock
        self.chosen: str | None = None
        """The pane that the operator chose; on a small screen the one that is shown."""
        self.zoomed = False
        self._ascii = ascii
        self._commands = Commands(self, session, profiles, ascii=ascii)
        self._boxes: dict[str, Box] = {}
        self._panes = {spec.id: Pane(spec, ascii=ascii) for spec in SPECS}
        self.log_pane = LogPane(session.log, ascii=ascii)
        self._bars = {name: Bar(ascii=ascii, id=name) for name in ("header", "verdict", "dumpline", "footer", "small")}
        for _, part in self._parts():
            part.display = False  # none has a place yet, and a screen that nobody sees takes as long to draw
        self.replay = ReplayKeys(self, session.player, self.log_pane.view) if session.player is not None else None
        self.log_pane.view.keys_given_up = self.replay is not None
        session.on_change(self._changed)

    def compose(self) -> ComposeResult:
        """All parts; the plan decides which are shown."""
        yield from self._bars.values()
        yield from self._panes.values()
        yield self.log_pane

    def on_mount(self) -> None:
        """Draw twice a second; the log has its own pace."""
        self.set_interval(REFRESH, self.draw)
        self.log_pane.view.focus()

    def on_resize(self) -> None:
        """Another size, another plan."""
        self.call_after_refresh(self.draw)

    def _changed(self) -> None:
        state = self.session.state
        if state.time is not None and self.session.link.state == "live":
            self.clock.observe(state.time)
        if self.session.version == 1:
            self.call_later(self.draw)

    def view(self) -> View:
        """The session now."""
        session = self.session
        return View(
            session.source.title, session.state, session.link,
            session.player.now if session.player is not None else self.clock.now(session.link, session.state.time),
            read_only=session.control is not None and session.control.read_only,
        )  # fmt: skip

    def draw(self) -> None:
        """Place the panes and draw those whose part of the state has changed."""
        view = self.view()
        self._place(view)
        cells = self.size.width
        self._bars["header"].show(header.draw(view, cells))
        self._bars["footer"].show(self.replay.bar(cells) if self.replay is not None else self._footer(cells))
        if "verdict" in self._boxes:
            self._bars["verdict"].show(why.one_line(view, cells))
            self._bars["dumpline"].show(dump.narrow(view, cells))
        for name, pane in self._panes.items():
            if name in self._boxes:
                pane.show(view)
        run = view.run
        self.log_pane.view.rank_cells = max((len(rank.rank) for rank in run.ranks), default=0) if run else 0
        self.log_pane.draw_title()

    def _shown_pane(self, view: View) -> str:
        if self.chosen is not None:
            return self.chosen
        run = view.run
        if run is not None and run.status in ("HUNG", "FAILED"):
            return "why"
        return "ranks" if run is not None and run.ready_time is not None else "launch"

    def _situation(self, view: View) -> Situation:
        run, cells = view.run, self.size.width
        alarm = 0
        if run is not None and run.verdict is not None and run.status in ("HUNG", "FAILED"):
            alarm = len(WHY.draw(view, cells, 40).lines)
        return Situation(
            ranks=len(run.ranks) if run else 0, alarm=alarm,
            dump=len(DUMP.draw(view, cells, 6).lines) if dump.active(run) or not alarm else 0,
            chosen=self._shown_pane(view), zoomed=self.zoomed,
        )  # fmt: skip

    def _place(self, view: View) -> None:
        cells, rows = self.size
        boxes = plan(cells, rows, self._situation(view))
        if too_small(cells, rows):
            text = f" {cells} × {rows} is too small: kimi-console needs 60 × 15"
            self._bars["small"].show([(text, "warn")])
            boxes = {"small": Box(0, 0, cells, 1)}
        if boxes == self._boxes:
            return
        self._boxes = boxes
        marks = joints(boxes)
        for name, widget in self._parts():
            box = boxes.get(name)
            widget.display = box is not None
            if box is None:
                continue
            widget.styles.offset = (box.x, box.y)
            widget.styles.width = box.width
            widget.styles.height = box.height
            if isinstance(widget, Pane | LogPane):
                widget.joints = marks.get(name, {})
                widget.edge = has_edge(name, boxes)
                widget.refresh()
        self.call_after_refresh(self.draw)

    def _parts(self) -> list[tuple[str, Widget]]:
        return [*self._bars.items(), *self._panes.items(), ("log", self.log_pane)]

    def _footer(self, cells: int) -> Line:
        line: Line = []
        must = [BY_ID[name] for name in ("help", "palette")]
        actions = footer_actions(self.session)
        room = cells - sum(len(action.shown) + len(action.label) + 3 for action in must)
        for action in [*(action for action in actions if action not in must), *must]:
            part: Line = [(f" {action.shown}", "focus"), (f" {footer_label(action, self.session)} ", "dim")]
            if action in must or width(line) + width(part) <= room:
                line += part
        return crop(line, cells)

    def action_run(self, name: str) -> None:
        """Do one of the registry's actions, or say why it cannot be done now."""
        reason = BY_ID[name].why_not(self.session)
        if reason:
            self.notify(reason, severity="warning", markup=False)
            return
        if name.startswith("pane_"):
            self.choose(name.removeprefix("pane_"))
        else:
            self.doers()[name]()
        self.draw()

    def doers(self) -> dict[str, Callable[[], object]]:
        """What does each action of the registry (but for the panes' numbers)."""
        log = self.log_pane
        return {
            "launch": self._commands.launch, "stop": self._commands.stop, "dump": self._commands.dump,
            "inspect": self._commands.inspect, "feed": self._commands.feed, "redial": self._commands.redial,
            "bisect": self._commands.bisect, "bundle": self._commands.bundle,
            "doctor": lambda: self._sheet("Doctor", lambda cells: content.doctor_lines(self.view(), cells)),
            "explain": self._explain,
            "events": lambda: self._sheet("Events", lambda cells: content.event_lines(self.session, cells), end=True),
            "help": lambda: self._sheet("Help", lambda cells: content.help_lines(self.session, cells)),
            "command": self._command, "compare": self._compare,
            "search": lambda: log.ask("search"), "filter": lambda: log.ask("filter"),
            "next": lambda: log.view.find_again(backward=False),
            "previous": lambda: log.view.find_again(backward=True),
            "follow": log.view.action_follow,
            "zoom": self._zoom, "theme": self.app.search_themes,
            "hosts": lambda: self.session.elsewhere and self.session.elsewhere(),
            "palette": self.app.action_command_palette, "quit": lambda: self.app.call_later(self.app.action_quit),
            **(self.replay.doers() if self.replay is not None else {}),
        }  # fmt: skip

    def choose(self, pane: str) -> None:
        """Choose a pane: on a small screen it is shown, on a large one it gets the focus."""
        self.chosen = pane
        self._place(self.view())
        if pane == "log":
            self.log_pane.view.focus()
        else:
            self._panes[pane].focus()

    def on_pane_chosen(self, event: Pane.Chosen) -> None:
        """A pane was clicked."""
        self.choose(event.pane.spec.id)

    def _focused(self) -> str:
        if isinstance(self.focused, Pane):
            return self.focused.spec.id
        return "log" if is_wide(*self.size) or self.chosen == "log" else self._shown_pane(self.view())

    def _zoom(self) -> None:
        if not self.zoomed:
            self.chosen = self._focused()
        self.zoomed = not self.zoomed

    def _sheet(self, title: str, lines: Content, *, end: bool = False) -> None:
        self.app.push_screen(Sheet(title, lines, end=end, ascii=self._ascii))

    def _explain(self) -> None:
        pane = self._focused()
        spec = content.LOG_EXPLAINED if pane == "log" else self._panes[pane].spec
        self._sheet(f"{spec.name}: what it says", lambda cells: content.explain_lines(spec, self.view(), cells))

    def _command(self) -> None:
        run = self.session.state.run
        if run is not None:
            self.app.copy_to_clipboard(content.command_line(run))
            self._sheet(f"Command line of {run.started.run}  copied", lambda cells: content.command_lines(run, cells))

    def _compare(self) -> None:
        found = self.session.comparison
        if found is not None:
            from kimi_console.tui.screens.comparison import comparison_lines  # noqa: PLC0415 - rarely shown

            self._sheet("Compared", lambda cells: comparison_lines(found, cells))

    def action_back(self) -> None:
        """Leave the prompt, a zoom, a search, a filter, the chosen pane: the first that there is."""
        log = self.log_pane.view
        if self.log_pane.asking:
            self.log_pane.close_prompt()
        elif self.zoomed:
            self.zoomed = False
        elif log.query_search is not None:
            log.set_search("")
        elif log.query_filter is not None:
            log.set_filter("")
        else:
            self.chosen = None
            log.focus()
        self.draw()
