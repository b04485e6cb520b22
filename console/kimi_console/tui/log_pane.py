"""The log's pane: its title, its lines, and the prompt for search and filter."""

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Input, Label

from kimi_agent.errors import KimiError
from kimi_console.store.lines import Lines
from kimi_console.tui.bar import Bar
from kimi_console.tui.cells import Line
from kimi_console.tui.log_view import LogView
from kimi_console.tui.pane import rule


class Prompt(Horizontal):
    """A line to type a search or a filter into."""

    def compose(self) -> ComposeResult:
        """What is asked, and the field."""
        yield Label("", id="prompt-label", markup=False)
        yield Input(compact=True, id="prompt")


class LogPane(Widget):
    """A `LogView` under a rule that holds its state."""

    def __init__(self, spool: Lines, *, ascii: bool = False) -> None:  # noqa: A002 - the option's name
        super().__init__(id="log", classes="pane")
        self.joints: dict[int, str] = {}
        self.edge = False
        self.view = LogView(spool, ascii=ascii)
        self._rule = Bar(ascii=ascii)
        self._asks = ""

    def compose(self) -> ComposeResult:
        """Rule, lines, prompt."""
        yield self._rule
        yield self.view
        yield Prompt()

    def draw_title(self) -> None:
        """Show the log's state in the rule."""
        name: Line = [("Log", "focus" if self.view.has_focus else "title"), ("  ", "rule")]
        if self.size.width:
            self._rule.show(rule([*name, *self.view.title], self.size.width, self.joints))

    def on_resize(self) -> None:
        """The rule has another length."""
        self.draw_title()

    def on_log_view_title_changed(self) -> None:
        """Lines came, or the reader moved."""
        self.draw_title()

    def ask(self, what: str) -> None:
        """Open the prompt for `search` or `filter`, with what it holds now."""
        self._asks = what
        now = self.view.query_search if what == "search" else self.view.query_filter
        self.query_one("#prompt-label", Label).update("/" if what == "search" else "filter")
        field = self.query_one("#prompt", Input)
        field.value = now.text if now else ""
        self.query_one(Prompt).add_class("-open")
        field.focus()

    @property
    def asking(self) -> bool:
        """Whether the prompt is open."""
        return self.query_one(Prompt).has_class("-open")

    def close_prompt(self) -> None:
        """Back to the lines."""
        self.query_one(Prompt).remove_class("-open")
        self.view.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search or filter for what was typed; nothing typed ends it."""
        event.stop()
        try:
            if self._asks == "search":
                self.view.set_search(event.value)
            else:
                self.view.set_filter(event.value)
        except KimiError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.close_prompt()
