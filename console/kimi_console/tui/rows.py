"""A scrolling list of styled lines, with or without a cursor."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kimi_console.tui.cells import Line
from kimi_console.tui.paint import Brush

Content = Callable[[int], list[Line]]
"""Lines for a width."""


class Rows(ScrollView, can_focus=True):
    """Lines drawn one by one as they come into view; with `choosing`, one of them is under a cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000000)", show=False),
        Binding("end", "move(1000000000)", show=False),
        Binding("enter,right", "choose", show=False),
    ]

    class Moved(Message):
        """The cursor stands on another row."""

        def __init__(self, rows: "Rows", row: int) -> None:
            super().__init__()
            self.rows = rows
            self.row = row

    class Chosen(Message):
        """Enter was pressed on a row."""

        def __init__(self, rows: "Rows", row: int) -> None:
            super().__init__()
            self.rows = rows
            self.row = row

    def __init__(self, *, choosing: bool = False, ascii: bool = False, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.choosing = choosing
        self.cursor = 0
        self.heading = 0
        """How many lines at the top are a heading, which the cursor skips."""
        self.lines: Sequence[Line] = []
        self._content: Content | None = None
        self._brush = Brush(self)
        self._brush.ascii = ascii

    def fill(self, lines: Sequence[Line], *, heading: int = 0, cursor: int | None = None) -> None:
        """Show other lines; the cursor stays on its row as far as that exists.

        They are taken one by one as they come into view, so a sequence may make them then.
        """
        self.lines = lines
        self.heading = heading
        self.cursor = max(heading, min(self.cursor if cursor is None else cursor + heading, len(lines) - 1))
        self.virtual_size = Size(self.size.width, len(lines))
        self.refresh()
        self._reveal()

    def flow(self, content: Content) -> None:
        """Show lines that depend on the width, now and after every change of it."""
        self._content = content
        if self.size.width > 1:
            self.fill(content(self.size.width - 1))

    @property
    def row(self) -> int | None:
        """The row under the cursor, not counting the heading; `None` when there are none."""
        return self.cursor - self.heading if self.heading <= self.cursor < len(self.lines) else None

    def render_line(self, y: int) -> Strip:
        """A row of the window."""
        index = y + self.scroll_offset.y
        cells = self.scrollable_content_region.width
        line = self.lines[index] if index < len(self.lines) else []
        cursor = self.choosing and index == self.cursor and self.heading <= index < len(self.lines)
        return self._brush.strip(line, cells, cursor=cursor)

    def on_resize(self, event: events.Resize) -> None:
        """The window changed: lines keep their number."""
        if self._content is not None:
            self.flow(self._content)
        self.virtual_size = Size(event.size.width, len(self.lines))

    def action_move(self, by: int) -> None:
        """Move the cursor, or without one the window."""
        if not self.choosing:
            self.scroll_to(y=max(0, min(self.scroll_offset.y + by, self.max_scroll_y)), animate=False)
            return
        last = max(self.heading, len(self.lines) - 1)
        self.cursor = max(self.heading, min(self.cursor + by, last))
        self.refresh()
        self._reveal()
        self.post_message(self.Moved(self, self.cursor - self.heading))

    def action_page(self, pages: int) -> None:
        """Move by a window's height."""
        self.action_move(pages * max(1, self.size.height - 1))

    def action_choose(self) -> None:
        """Take the row under the cursor."""
        if not self.choosing or self.row is None:
            raise SkipAction
        self.post_message(self.Chosen(self, self.row))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor; a click on the cursor chooses."""
        index = event.y + self.scroll_offset.y
        if not self.choosing or not self.heading <= index < len(self.lines):
            return
        if index == self.cursor:
            self.action_choose()
        else:
            self.action_move(index - self.cursor)

    def _reveal(self) -> None:
        if not self.choosing or not self.size.height:
            return
        top, height = self.scroll_offset.y, self.size.height
        if self.cursor < top + self.heading:
            self.scroll_to(y=max(0, self.cursor - self.heading), animate=False)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False)
