"""A question of a login: a password, a passphrase or a code."""

import asyncio
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from kimi_console.source.questions import Question
from kimi_console.tui.bar import Bar
from kimi_console.tui.cells import Line, paragraphs
from kimi_console.tui.pane import rule
from kimi_console.tui.rows import Rows


class QuestionDialog(ModalScreen[str | None]):
    """Dismissed with what was typed, or `None` when the operator leaves it; a secret shows as dots."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]

    def __init__(self, question: Question, *, ascii: bool = False) -> None:  # noqa: A002 - the option's name
        super().__init__()
        self._question = question
        self._rule = Bar(ascii=ascii)
        self._rows = Rows(ascii=ascii)
        self._input = Input(password=question.secret, compact=True)
        self._foot = Bar([(" Enter log in  Esc not now", "dim")], ascii=ascii)

    def compose(self) -> ComposeResult:
        """Rule, what is asked, the answer."""
        with Vertical(classes="sheet"):
            yield self._rule
            yield self._rows
            yield self._input
            yield self._foot

    def on_mount(self) -> None:
        """The answer takes the keys."""
        self._input.focus()
        self.call_after_refresh(self._draw)

    def on_resize(self) -> None:
        """Other width, other lines."""
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        cells = max(1, self._rows.size.width - 1)
        self._rule.show(rule([("Login", "title"), (f"  {self._question.host}", "dim")], self._rule.size.width, {}))
        lines = self._lines(cells)
        self._rows.styles.height = len(lines)
        self._rows.fill(lines)

    def _lines(self, cells: int) -> list[Line]:
        question = self._question
        lines = paragraphs(question.words, "plain", cells) if question.words else []
        if question.again:
            lines += paragraphs("✖ that was refused", "bad", cells)
        return lines + paragraphs(question.prompt, "bright", cells)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter answers; an empty line leaves the question."""
        event.stop()
        self.dismiss(event.value or None)

    def action_leave(self) -> None:
        """Leave it unanswered."""
        self.dismiss(None)


async def ask_on_screen(app: App[Any], question: Question) -> str | None:
    """Show a question over whatever the app shows, and wait for the answer."""
    answered: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def take(answer: str | None) -> None:
        if not answered.done():
            answered.set_result(answer)

    dialog = QuestionDialog(question, ascii=app.has_class("-ascii"))
    app.push_screen(dialog, take)
    try:
        return await answered
    except asyncio.CancelledError:
        if app.screen is dialog:
            dialog.dismiss(None)
        raise
