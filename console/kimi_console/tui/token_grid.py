"""A sample's tokens as a grid: the text of each, and under it its norm as a shade that needs no colour."""

from collections.abc import Sequence
from math import log
from typing import Any, ClassVar, Final

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Line, Role, Span, left
from kimi_console.tui.paint import Brush

CELLS: Final = 9
"""Width of a token."""
PAGE: Final = 500
"""Tokens that are asked for at a time."""
KEPT: Final = 12
HEAT: Final[tuple[Role, ...]] = ("heat0", "heat1", "heat2", "heat3", "heat4")


def shade(value: float | None, low: float, high: float) -> tuple[str, Role]:
    """A norm between those of a layer's plain rows, in logarithms: a bar's height, and its colour again."""
    if value is None:
        return "?", "dim"
    if value <= 0 or high <= low or low <= 0:
        share = 0.0 if value <= 0 else 0.5
    else:
        share = min(1.0, max(0.0, log(value / low) / log(high / low)))
    return fmt.BARS[min(len(fmt.BARS) - 1, int(share * len(fmt.BARS)))], HEAT[
        min(len(HEAT) - 1, int(share * len(HEAT)))
    ]


def spelled(token: dict[str, Any]) -> str:
    """A token's text where it shows: a space as `·`, a line's end as `↵`, without text its id."""
    text = str(token["text"])
    return text.replace(" ", "·").replace("\n", "↵") if text else str(token["id"])


class TokenGrid(ScrollView, can_focus=True):
    """Draws the tokens that are in view, and says which it lacks."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "go(-1)", show=False),
        Binding("right,l", "go(1)", show=False),
        Binding("up,k", "line(-1)", show=False),
        Binding("down,j", "line(1)", show=False),
        Binding("pageup", "leaf(-1)", show=False),
        Binding("pagedown", "leaf(1)", show=False),
        Binding("home", "go(-1000000000)", show=False),
        Binding("end", "go(1000000000)", show=False),
    ]

    class At(Message):
        """The cursor stands on another token."""

    def __init__(self, *, ascii: bool = False, id: str | None = None) -> None:  # noqa: A002 - the option's name
        super().__init__(id=id)
        self._brush = Brush(self)
        self._brush.ascii = ascii
        self.total = 0
        self.token = 0
        """The token under the cursor."""
        self.column = 0
        """The layer whose norms are shown, by its place."""
        self.low, self.high = 0.0, 0.0
        self.missing: int | None = None
        """First token of the page that was looked for last and is not here."""
        self._pages: dict[int, Sequence[dict[str, Any]]] = {}

    @property
    def across(self) -> int:
        """Tokens of one line."""
        return max(1, (self.size.width - 1) // CELLS)

    def begin(self, total: int, token: int = 0) -> None:
        """Show another sample of so many tokens."""
        self.total, self.token, self.missing = total, token, None
        self._pages.clear()
        self.virtual_size = Size(self.size.width, self._height())
        self.scroll_to(y=0, animate=False)
        self.refresh()

    def put(self, first: int, tokens: Sequence[dict[str, Any]]) -> None:
        """Keep the page that begins at token `first`."""
        self._pages.pop(first // PAGE, None)
        self._pages[first // PAGE] = tokens
        while len(self._pages) > KEPT:
            del self._pages[next(iter(self._pages))]
        if self.missing == first:
            self.missing = None
        self.refresh()

    def get(self, token: int) -> dict[str, Any] | None:
        """A token, if it is here."""
        page = self._pages.get(token // PAGE)
        return page[token % PAGE] if page is not None and token % PAGE < len(page) else None

    def show(self, column: int, low: float, high: float) -> None:
        """Shade by another layer, or by other bounds."""
        self.column, self.low, self.high = column, low, high
        self.refresh()

    def go(self, token: int) -> None:
        """Put the cursor on a token, in view."""
        self.token = max(0, min(token, self.total - 1))
        top, height, line = self.scroll_offset.y, self.size.height, 2 * (self.token // self.across)
        if line < top:
            self.scroll_to(y=line, animate=False)
        elif line + 2 > top + height:
            self.scroll_to(y=line + 2 - height, animate=False)
        self.refresh()
        self.post_message(self.At())

    def render_line(self, y: int) -> Strip:
        """Texts and shades by turns."""
        row = y + self.scroll_offset.y
        first = row // 2 * self.across
        spans: Line = []
        for token in range(first, min(first + self.across, self.total)):
            here = self.get(token)
            if here is None:
                self.missing = token // PAGE * PAGE
            spans += self._text(token, here) if row % 2 == 0 else self._shade(here)
        return self._brush.strip(spans, self.scrollable_content_region.width)

    def _text(self, token: int, here: dict[str, Any] | None) -> Line:
        under = token == self.token
        edge: Span = ("▸", "accent") if under else (" ", "plain")
        role: Role = "focus" if under else "bad" if here and here["mark"] == "!" else "plain"
        return [edge, (left("…" if here is None else spelled(here), CELLS - 1), role)]

    def _shade(self, here: dict[str, Any] | None) -> Line:
        if here is None:
            return [(" " * CELLS, "plain")]
        bar, role = shade(here["norm"][self.column], self.low, self.high)
        mark: Span = (" ", "plain")
        if here["mark"] in ("!", "^"):
            mark = (here["mark"], "bad" if here["mark"] == "!" else "warn")
        return [mark, (bar * (CELLS - 2), role), (" ", "plain")]

    def on_resize(self, event: events.Resize) -> None:
        """Another width, other lines."""
        self.virtual_size = Size(event.size.width, self._height())
        self.call_after_refresh(self.go, self.token)

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor."""
        token = (event.y + self.scroll_offset.y) // 2 * self.across + event.x // CELLS
        if token < self.total:
            self.go(token)

    def action_go(self, by: int) -> None:
        """Move by tokens."""
        self.go(self.token + by)

    def action_line(self, by: int) -> None:
        """Move by lines."""
        if 0 <= self.token + by * self.across < self.total:
            self.go(self.token + by * self.across)

    def action_leaf(self, by: int) -> None:
        """Move by what is in view."""
        self.go(self.token + by * self.across * max(1, self.size.height // 2 - 1))

    def _height(self) -> int:
        return 2 * -(-self.total // self.across)
