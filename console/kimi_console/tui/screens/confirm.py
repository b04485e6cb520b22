"""Asks before something is ended."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from kimi_console.tui.bar import Bar
from kimi_console.tui.cells import Line
from kimi_console.tui.pane import rule
from kimi_console.tui.rows import Rows


class Confirm(ModalScreen[bool]):
    """A question that names what it is about; only `y` says yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n,escape,q,enter", "answer(False)", show=False),
    ]

    def __init__(self, title: str, lines: list[Line], yes: str, no: str, *, ascii: bool = False) -> None:  # noqa: A002
        super().__init__()
        self._title = title
        self._lines = lines
        self._rule = Bar(ascii=ascii)
        self._rows = Rows(ascii=ascii)
        self._foot = Bar([(" y ", "accent"), (yes, "plain"), ("   n ", "accent"), (no, "plain")], ascii=ascii)

    def compose(self) -> ComposeResult:
        """Rule, what it is about, the answers."""
        with Vertical(classes="sheet"):
            yield self._rule
            yield self._rows
            yield self._foot

    def on_mount(self) -> None:
        """Show the question."""
        self._rows.styles.height = len(self._lines) + 1
        self._rows.fill(self._lines)
        self.call_after_refresh(self.on_resize)

    def on_resize(self) -> None:
        """The rule has the sheet's width."""
        self._rule.show(rule([(self._title, "title")], max(1, self._rule.size.width), {}))

    def action_answer(self, yes: bool) -> None:
        """Answer and leave."""
        self.dismiss(yes)
