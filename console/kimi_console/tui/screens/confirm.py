"""Asks before something is ended."""

from typing import ClassVar

from textual.binding import Binding, BindingType

from kimi_console.tui.cells import Line
from kimi_console.tui.screens.overlay import Overlay


class Confirm(Overlay[bool]):
    """A question that names what it is about; only `y` says yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n,escape,q,enter", "answer(False)", show=False),
    ]

    def __init__(self, title: str, lines: list[Line], yes: str, no: str, *, ascii: bool = False) -> None:  # noqa: A002
        super().__init__(ascii=ascii)
        self._title = title
        self._lines = lines
        self._answers: Line = [(" y ", "accent"), (yes, "plain"), ("   n ", "accent"), (no, "plain")]

    def on_mount(self) -> None:
        """Show the question."""
        self._rows.styles.height = len(self._lines) + 1
        self._rows.fill(self._lines)
        self._foot.show(self._answers)

    def draw(self) -> None:
        """The title has the sheet's width."""
        self.entitle(self._title)

    def action_answer(self, yes: bool) -> None:
        """Answer and leave."""
        self.dismiss(yes)
