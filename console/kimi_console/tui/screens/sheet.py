"""A sheet of text over the board: events, help, evidence, a command line."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from kimi_console.tui.bar import Bar
from kimi_console.tui.pane import rule
from kimi_console.tui.rows import Content, Rows


class Sheet(ModalScreen[None]):
    """A title, scrolling lines, and how to leave."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,left", "close", show=False)]

    def __init__(self, title: str, content: Content, *, hint: str = "Esc back", end: bool = False,
                 ascii: bool = False) -> None:  # noqa: A002 - the option's name  # fmt: skip
        super().__init__()
        self._title = title
        self._content = content
        self._hint = hint
        self._end = end
        self._rule = Bar(ascii=ascii)
        self._rows = Rows(ascii=ascii)
        self._foot = Bar([(f" {hint}", "dim")], ascii=ascii)

    def compose(self) -> ComposeResult:
        """Rule, lines, hint."""
        with Vertical(classes="sheet"):
            yield self._rule
            yield self._rows
            yield self._foot

    def on_mount(self) -> None:
        """The lines take the keys."""
        self._rows.focus()
        self.call_after_refresh(self._draw)

    def on_resize(self) -> None:
        """Other width, other lines."""
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        self._rule.show(rule([(self._title, "title")], max(1, self._rule.size.width), {}))
        self._rows.flow(self._content)
        if self._end:
            self._rows.scroll_end(animate=False)

    def action_close(self) -> None:
        """Back to the board."""
        self.dismiss(None)
