"""The pane: a title in a rule, lines below it, a border only towards its neighbour."""

from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from kimi_console.tui.cells import Line, crop, width
from kimi_console.tui.paint import Brush
from kimi_console.tui.panes.base import Drawing, PaneSpec
from kimi_console.tui.view import View


def rule(title: Line, cells: int, joints: dict[int, str]) -> Line:
    """`─ Launch  state ─────┬────`: a title in a horizontal line, with joints at given cells."""
    head = crop(title, max(0, cells - 4))
    start = width(head) + 3 if head else 0
    tail = "".join(joints.get(cell, "─") for cell in range(start, cells))
    return [("─ ", "rule"), *head, (" ", "rule"), (tail, "rule")] if head else [(tail, "rule")]


def unchanged(before: tuple[object, ...], after: tuple[object, ...]) -> bool:
    """Whether two slices hold the same objects (numbers and words are compared by value)."""
    if len(before) != len(after):
        return False
    return all(a is b or (isinstance(a, int | str) and a == b) for a, b in zip(before, after, strict=True))


class Pane(Widget, can_focus=True):
    """Draws one `PaneSpec`, and only when its part of the state has changed."""

    class Chosen(Message):
        """The operator clicked a pane."""

        def __init__(self, pane: "Pane") -> None:
            super().__init__()
            self.pane = pane

    def __init__(self, spec: PaneSpec, *, ascii: bool = False) -> None:  # noqa: A002 - the option's name
        super().__init__(id=spec.id, classes="pane")
        self.spec = spec
        self.joints: dict[int, str] = {}
        """Where other panes' borders meet this one's rule."""
        self.edge = False
        """Whether a border runs down its right side."""
        self.drawn = 0
        """How often it was drawn, for those who count."""
        self._brush = Brush(self)
        self._brush.ascii = ascii
        self._drawing = Drawing()
        self._slice: tuple[object, ...] = ()
        self._shape = (0, 0)

    def show(self, view: View) -> None:
        """Draw the view, if it differs from what is drawn in what this pane shows."""
        # A pane of one row shows its title, which comes with the lines.
        shape = (self.size.width - self.edge, max(1, self.size.height - 1))
        if shape[0] <= 0 or not self.size.height:
            return
        after = self.spec.depends(view)
        if shape == self._shape and unchanged(self._slice, after):
            return
        self._slice, self._shape = after, shape
        self._brush.stale = view.lost
        self._drawing = self.spec.draw(view, *shape)
        self.drawn += 1
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """A row of the pane: the rule, a line, or empty."""
        cells = self.size.width
        if y == 0:
            return self._brush.strip(rule(self._title(), cells, self.joints), cells)
        lines = self._drawing.lines
        line = lines[y - 1] if y <= len(lines) else []
        if not self.edge:
            return self._brush.strip(line, cells)
        return Strip.join([self._brush.strip(line, cells - 1), self._brush.strip([("│", "rule")], 1)])

    def _title(self) -> Line:
        name: Line = [(self.spec.name, "focus" if self.has_focus else "title")]
        return [*name, ("  ", "rule"), *self._drawing.title] if self._drawing.title else name

    def on_click(self, event: events.Click) -> None:
        """A click chooses the pane."""
        event.stop()
        self.post_message(self.Chosen(self))
