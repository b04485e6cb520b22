"""The bisection: what would be done, the table as it grows, and what it came to."""

from typing import ClassVar

from textual import work
from textual.binding import Binding, BindingType

from kimi_agent.errors import KimiError
from kimi_agent.model.bisect import BAD, Attempt, BisectChanged
from kimi_agent.model.state import State
from kimi_console.source.session import Session
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Line, Role, hanging, left, paragraphs, right
from kimi_console.tui.panes.why import startable
from kimi_console.tui.screens.overlay import Overlay

REFRESH = 0.5
GLYPHS: dict[str, tuple[str, Role]] = {
    "passed": ("✓", "good"), "hung": ("✖", "bad"), "failed": ("✖", "bad"), "running": ("▸", "move"),
    "waiting": ("·", "dim"), "skipped": ("–", "dim"), "stopped": ("–", "warn"),
}  # fmt: skip


class BisectScreen(Overlay[None]):
    """Follows the state's table; starts, stops and goes on with a bisection."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,left", "close", show=False),
        Binding("s", "stop", show=False),
        Binding("b", "start", show=False),
    ]

    def __init__(self, session: Session, *, ascii: bool = False) -> None:  # noqa: A002 - the option's name
        super().__init__(ascii=ascii)
        self._session = session
        self.drawn: object = None
        self._error = ""

    def on_mount(self) -> None:
        """Follow the state."""
        self._rows.focus()
        self.set_interval(REFRESH, self.draw)

    def on_resize(self) -> None:
        """Other width, other lines."""
        self.drawn = None
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """The table, if it has changed."""
        state = self._session.state
        drawn = (state.bisect, state.run and state.run.status, self._error)
        if drawn == self.drawn:
            return
        self.drawn = drawn
        table = state.bisect
        title = f"  {table.name}  {table.state}" if table is not None else ""
        self.entitle("Bisect", (title, "dim"))
        self._rows.flow(lambda cells: bisect_lines(self._session.state, cells, self._error))
        self.hint(self._keys())

    def _keys(self) -> str:
        state = self._session.state
        if state.bisect is not None and state.bisect.active:
            return "s stop  Esc back, it goes on"
        if self._session.control is None or startable(state):
            return "Esc back"
        word = "go on" if state.bisect is not None and state.bisect.state == "stopped" else "start"
        return f"b {word}  Esc back"

    @work(group="bisect", exclusive=True, exit_on_error=False)
    async def _request(self, method: str, **params: object) -> None:
        control = self._session.control
        if control is None:
            return
        try:
            self._error = ""
            await control.request(method, **params)
        except KimiError as error:
            self._error = str(error)
        self.draw()

    def action_start(self) -> None:
        """Start one, or go on with the one that was broken off."""
        table = self._session.state.bisect
        if not startable(self._session.state):
            self._request("bisect", resume=table is not None and table.state == "stopped")

    def action_stop(self) -> None:
        """Break it off."""
        if self._session.state.bisect is not None and self._session.state.bisect.active:
            self._request("bisect_stop")


def bisect_lines(state: State, cells: int, error: str = "") -> list[Line]:
    """The table, or what a bisection would do."""
    lines = paragraphs(f"✖ {error}", "bad", cells) if error else []
    table = state.bisect
    if table is None:
        return lines + _offer(state, cells)
    lines += _aim(table, cells)
    lines += [[], [(f"   {left('changed', 18)} {left('outcome', 8)} {right('after', 6)}  why", "dim")]]
    for one in table.attempts:
        lines += _row(one, table, cells)
    if table.conclusion:
        role: Role = "accent" if table.culprits else "plain"
        lines += [[], *paragraphs(table.conclusion, role, cells)]
    return lines


def _aim(table: BisectChanged, cells: int) -> list[Line]:
    if table.target is None:
        return paragraphs("First nothing is changed, to see where the start stops.", "plain", cells)
    limit = f" within {fmt.duration(table.limit)}" if table.limit is not None else ""
    return paragraphs(
        f"A start passes when every rank gets past {table.target!r}{limit}; then it is stopped.", "plain", cells
    )


def _row(one: Attempt, table: BisectChanged, cells: int) -> list[Line]:
    glyph, role = GLYPHS.get(one.outcome, ("·", "plain"))
    named: Role = "accent" if one.factor in table.culprits else "bright" if one.outcome == "running" else "plain"
    after = fmt.duration(one.seconds) if one.seconds is not None else ""
    head: Line = [
        (f" {glyph} ", role), (left(one.factor, 18), named), (f" {left(one.outcome, 8)}", role),
        (f" {right(after, 6)}  ", "plain"),
    ]  # fmt: skip
    where = f"in {one.phase}" if one.outcome in BAD and one.phase else ""
    text = ": ".join(part for part in (where, one.why) if part) or one.change
    return hanging(head, text, "dim" if one.outcome in ("waiting", "skipped") else "plain", cells - 1)


def _offer(state: State, cells: int) -> list[Line]:
    reason = startable(state)
    if reason:
        return paragraphs(f"Not now: {reason}.", "plain", cells)
    run = state.run
    name = run.started.name if run is not None else ""
    told = (
        f"{name} is launched again and again, each time with one thing changed: without the capture plugin, without "
        "capture, without CUDA graphs, with another attention backend, without P2P, … whatever applies to this launch.",
        "Each start is stopped once every rank is past the phase in which this one stopped, or when its time is up.",
        "The run that hangs now is stopped first.",
    )
    return [line for text in told for line in [*paragraphs(text, "plain", cells), []]]
