"""A sheet of text over the board: events, help, evidence, a command line."""

from typing import ClassVar

from textual.binding import Binding, BindingType

from kimi_console.tui.rows import Content
from kimi_console.tui.screens.overlay import Overlay


class Sheet(Overlay[None]):
    """A title, scrolling lines, and how to leave."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,left", "close", show=False)]

    def __init__(
        self, title: str, content: Content, *, end: bool = False, ascii: bool = False  # noqa: A002 - the option's name
    ) -> None:  # fmt: skip
        super().__init__(ascii=ascii)
        self._title = title
        self._content = content
        self._end = end

    def on_mount(self) -> None:
        """The lines take the keys."""
        self._rows.focus()
        self.hint("Esc back")

    def draw(self) -> None:
        """The lines at this width."""
        self.entitle(self._title)
        self._rows.flow(self._content)
        if self._end:
            self._rows.scroll_end(animate=False)
