"""One line to type, over the board."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label


class Ask(ModalScreen[str | None]):
    """Asks for a text; `None` when the operator leaves."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]

    def __init__(self, question: str, hint: str, value: str = "") -> None:
        super().__init__()
        self._question = question
        self._hint = hint
        self._value = value

    def compose(self) -> ComposeResult:
        """The question and the field."""
        with Vertical(classes="ask"):
            yield Label(f" {self._question}: {self._hint}", markup=False)
            yield Input(self._value, compact=True)

    def on_mount(self) -> None:
        """The field takes the keys."""
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Done."""
        event.stop()
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        """Nothing is wanted."""
        self.dismiss(None)
