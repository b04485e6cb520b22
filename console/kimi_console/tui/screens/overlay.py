"""What all that opens over the board has in common: a titled rule, a body, a foot that names the keys."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen, ScreenResultType

from kimi_console.tui.bar import Bar
from kimi_console.tui.pane import rule
from kimi_console.tui.rows import Rows


class Overlay(ModalScreen[ScreenResultType]):
    """A sheet over the board, drawn again at each new size."""

    def __init__(self, *, ascii: bool = False) -> None:  # noqa: A002 - the option's name
        super().__init__()
        self._rule = Bar(ascii=ascii)
        self._rows = Rows(ascii=ascii)
        self._foot = Bar(ascii=ascii)

    def compose(self) -> ComposeResult:
        """Rule, body, foot."""
        with Vertical(classes="sheet"):
            yield self._rule
            yield from self.body()
            yield self._foot

    def body(self) -> ComposeResult:
        """What stands between rule and foot."""
        yield self._rows

    def on_resize(self) -> None:
        """Other width, other lines; the first size comes this way too."""
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Draw everything at the size of now."""
        raise NotImplementedError

    def entitle(self, title: str, more: str = "") -> None:
        """Show the title, and what belongs to it less loudly."""
        self._rule.show(rule([(title, "title"), (more, "dim")], max(1, self._rule.size.width), {}))

    def hint(self, text: str) -> None:
        """Say which keys there are."""
        self._foot.show([(f" {text}", "dim")])

    def action_close(self) -> None:
        """Leave without an answer; what was begun goes on."""
        self.dismiss(None)
