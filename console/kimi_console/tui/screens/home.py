"""The start screen: every host in one line, recordings, the demo; one key each."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from kimi_console.places import Place, ago
from kimi_console.source.session import Session
from kimi_console.tui import format as fmt
from kimi_console.tui.bar import Bar
from kimi_console.tui.cells import Line, crop, left, right, spread
from kimi_console.tui.pane import rule
from kimi_console.tui.rows import Rows
from kimi_console.tui.view import GLYPHS, View, short_model

REFRESH = 0.5
NO_HOSTS = "no host is known yet: type kimi-console connect [user@]host, or add a Host to ~/.ssh/config"
NAMES = 26
"""Cells for names, where the screen has room for them."""

Look = Callable[[str], tuple[Session, float] | None]
"""The session of a host that is open, and the time on that host's clock."""


class Home(Screen[None]):
    """Chooses a place; the app opens it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,escape", "app.quit", show=False)]

    def __init__(
        self,
        listed: Sequence[Place],
        look: Look,
        open_place: Callable[[Place], None],
        *,
        problem: str = "",
        ascii: bool = False,  # noqa: A002 - the option's name
    ) -> None:
        super().__init__()
        self._places = listed
        self._look = look
        self._open = open_place
        self._problem = problem or ("" if any(place.kind == "host" for place in listed) else NO_HOSTS)
        self._head = Bar(ascii=ascii)
        self._rule = Bar(ascii=ascii)
        self._rows = Rows(choosing=True, ascii=ascii)
        self._note = Bar(ascii=ascii)
        self._foot = Bar([(" Enter or its key open   ", "dim"), ("q", "accent"), (" leave", "dim")], ascii=ascii)

    def compose(self) -> ComposeResult:
        """First line, list, what is wrong, keys."""
        yield self._head
        yield self._rule
        yield self._rows
        yield self._note
        yield self._foot

    def on_mount(self) -> None:
        """Draw twice a second."""
        self._rows.focus()
        self.set_interval(REFRESH, self.draw)
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        """Other width, other lines."""
        self.call_after_refresh(self.draw)

    def on_screen_resume(self) -> None:
        """Back from a host."""
        self.draw()

    def draw(self) -> None:
        """Every place as it is now."""
        cells = self.size.width
        open_now = sum(1 for place in self._places if place.kind == "host" and self._look(place.name) is not None)
        beside = f"{open_now} open" if open_now else "nothing open yet"
        self._head.show(spread([(" kimi-console", "bright"), (f"  {beside}", "dim")], [], cells))
        self._rule.show(rule([("Where to?", "title")], cells, {}))
        self._note.show(crop([(f" {self._problem}", "warn")], cells) if self._problem else [])
        self._rows.fill([self._line(place, cells) for place in self._places])

    def _line(self, place: Place, cells: int) -> Line:
        names = min(NAMES, cells // 3)
        name = Path(place.name).name if place.kind == "recording" else place.name
        head: Line = [(f" {place.key or ' '} ", "accent"), (left(name, names), "bright"), (" ", "plain")]
        return crop([*head, *self._rest(place, cells - names - 4)], cells)

    def _rest(self, place: Place, cells: int) -> Line:
        if place.kind == "demo":
            return [("the whole job on this machine: real SGLang on its processors, a tiny model", "dim")]
        if place.kind == "recording":
            return [(f"recording  {ago(place.when or 0.0)}  {Path(place.name).parent}", "dim")]
        found = self._look(place.name)
        if found is None:
            seen = f"{place.words}, {ago(place.when)}" if place.when is not None else "not seen yet"
            return [(seen, "dim")]
        return host_line(View(place.name, found[0].state, found[0].link, found[1]), cells)

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        """Enter or a click."""
        self._open(self._places[event.row])

    def on_key(self, event: events.Key) -> None:
        """A place's own key."""
        for place in self._places:
            if place.key and event.character == place.key:
                event.stop()
                self._open(place)
                return


def host_line(view: View, cells: int) -> Line:
    """One host: status, model, tokens a second, and the worst that is known of it."""
    word, since = view.status
    run, link = view.run, view.link
    if view.state.time is None:
        return crop([(f"◐ {link.state}  ", "move"), (link.detail, "dim")], cells)
    glyph, role = GLYPHS.get(word, ("·", "plain"))
    age = fmt.duration(view.now - since) if since else ""
    line: Line = [(left(f"{glyph} {word}", 11), role), (right(age, 8), "dim"), ("  ", "plain")]
    if run is None:
        return crop([*line, (link.detail, "dim")], cells)
    load = run.throughput
    rates = [rate for rate in (load.prefill_rate, load.decode_rate) if rate is not None] if load and run.alive else []
    tokens = fmt.rate(sum(rates)) if rates else fmt.DASH
    line += [(left(short_model(run.started.model), 16), "plain"), (right(tokens, 6), "plain"), (" tok/s  ", "dim")]
    if word == "LOST":
        worst = link.detail
    else:
        worst = run.verdict.summary if run.verdict is not None and run.verdict.kind != "none" else ""
    return crop([*line, (worst, role if word in ("HUNG", "FAILED", "SLOW", "LOST") else "dim")], cells)
