"""A line of the screen: header, footer, rules, hints."""

from textual.strip import Strip
from textual.widget import Widget

from kimi_console.tui.cells import Line
from kimi_console.tui.paint import Brush


class Bar(Widget):
    """One line, drawn again only when it has changed."""

    def __init__(self, line: Line | None = None, *, ascii: bool = False, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.line: Line = line or []
        self._brush = Brush(self)
        self._brush.ascii = ascii

    def show(self, line: Line) -> None:
        """Show another line."""
        if line != self.line:
            self.line = line
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """The line, and nothing below it."""
        return self._brush.strip(self.line if y == 0 else [], self.size.width)
