"""What all that opens over the board has in common: a titled rule, a body, a foot that names the keys."""

from collections.abc import Awaitable, Callable
from typing import Any

from textual import events, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen, ScreenResultType

from kimi_agent.errors import KimiError
from kimi_console.source.base import Control
from kimi_console.tui.bar import Bar
from kimi_console.tui.cells import Span
from kimi_console.tui.pane import rule
from kimi_console.tui.rows import Rows

SIDE_BY_SIDE = 100
"""Cells from which two columns stand beside each other."""
Request = Callable[..., Awaitable[Any]]


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

    def entitle(self, title: str, *more: Span) -> None:
        """Show the title and what belongs to it."""
        self._rule.show(rule([(title, "title"), *more], max(1, self._rule.size.width), {}))

    def hint(self, text: str) -> None:
        """Say which keys there are."""
        self._foot.show([(f" {text}", "dim")])

    def action_close(self) -> None:
        """Leave without an answer; what was begun goes on."""
        self.dismiss(None)


class Columns(Overlay[ScreenResultType]):
    """A whole screen in two columns, filled with what the agent answers."""

    def __init__(self, control: Control, *, ascii: bool = False) -> None:  # noqa: A002 - the option's name
        super().__init__(ascii=ascii)
        self.set_class(ascii, "-ascii")
        self._ascii = ascii
        self._rows.id = "details"
        self._control = control
        self._error: KimiError | None = None
        self._loading = False

    def on_resize(self, event: events.Resize) -> None:  # type: ignore[override]
        """Columns stand below each other where they do not fit beside each other; the base draws."""
        self.set_class(event.size.width < SIDE_BY_SIDE, "-narrow")

    @work(group="load", exclusive=True, exit_on_error=False)
    async def load(self, job: Callable[[Request], Awaitable[None]]) -> None:
        """Do one thing that asks the agent, and draw; a newer one takes its place."""
        self._loading, self._error = True, None
        self.draw()
        try:
            await job(self._control.request)
        except KimiError as error:
            self._error = error
        self._loading = False
        self.draw()
