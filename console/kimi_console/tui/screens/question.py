"""A question of a login: a password, a passphrase or a code."""

import asyncio
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from kimi_console.source.questions import Question
from kimi_console.tui.cells import Line, paragraphs
from kimi_console.tui.screens.overlay import Overlay


class QuestionDialog(Overlay[str | None]):
    """Dismissed with what was typed, or `None` when the operator leaves it; a secret shows as dots."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", show=False)]

    def __init__(self, question: Question, *, ascii: bool = False) -> None:  # noqa: A002 - the option's name
        super().__init__(ascii=ascii)
        self._question = question
        self._input = Input(password=question.secret, compact=True)

    def body(self) -> ComposeResult:
        """What is asked, and the answer."""
        yield self._rows
        yield self._input

    def on_mount(self) -> None:
        """The answer takes the keys."""
        self._input.focus()
        self.hint("Enter log in  Esc not now")

    def draw(self) -> None:
        """The question at this width."""
        cells = max(1, self._rows.size.width - 1)
        self.entitle("Login", (f"  {self._question.host}", "dim"))
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
