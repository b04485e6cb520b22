"""The launch form: a profile, the exact command line it gives, what would go wrong; Enter launches."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input

from kimi_agent.counts import many
from kimi_agent.errors import KimiError
from kimi_agent.profile import Profile
from kimi_console.source.base import Control
from kimi_console.tui.bar import Bar
from kimi_console.tui.cells import Line, Role, left, paragraphs
from kimi_console.tui.profiles import Choice, choices, from_path
from kimi_console.tui.rows import Rows
from kimi_console.tui.screens.overlay import Overlay


class LaunchForm(Overlay[str | None]):
    """Dismissed with the launched run's id, or `None`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", show=False),
        Binding("p", "path", show=False),
    ]

    def __init__(
        self,
        control: Control,
        profiles: Sequence[Path | Profile],
        host: str,
        *,
        ascii: bool = False,  # noqa: A002
    ) -> None:
        super().__init__(ascii=ascii)
        self._control = control
        self._choices = choices(profiles)
        self._checked: Choice | None = None
        """The profile whose preflight is shown."""
        self._problems = 0
        self._warned = False
        self._host = host
        self._profiles = Rows(choosing=True, ascii=ascii, id="profiles")
        self._path = Bar([(" path ", "dim")], ascii=ascii)

    def body(self) -> ComposeResult:
        """Profiles, a path, the findings."""
        yield self._profiles
        with Horizontal(id="path-line"):
            yield self._path
            yield Input(placeholder="a profile's TOML file on this machine", compact=True, id="path")
        yield self._rows

    def on_mount(self) -> None:
        """Check the first profile at once."""
        self._list(0)
        if self._choices:
            self._profiles.focus()
            self._check(self._choices[0])
        else:
            self.query_one("#path", Input).focus()
            self._tell("no profile is known yet: type the path of one and press Enter", "dim")
        self.hint("Enter launch  p path  Esc back")

    def draw(self) -> None:
        """The title has the sheet's width."""
        self.entitle("Launch", (f"  on {self._host}", "dim"))

    def _list(self, cursor: int) -> None:
        lines: list[Line] = [
            [(" " + left(choice.name, 24), "bright"), (f" {choice.where}", "bad" if choice.error else "dim")]
            for choice in self._choices
        ]
        self._profiles.fill(lines, cursor=cursor)

    def on_rows_moved(self, event: Rows.Moved) -> None:
        """Another profile: check it."""
        if event.rows is self._profiles and event.row < len(self._choices):
            self._check(self._choices[event.row])

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        """Enter launches; with problems only at the second time."""
        if event.rows is not self._profiles or event.row >= len(self._choices):
            return
        choice = self._choices[event.row]
        if choice is not self._checked:
            self.hint("still checking this profile: Enter again when its command line is shown")
        elif self._problems and not self._warned:
            self._warned = True
            self.hint(f"{many(self._problems, 'problem')}: Enter once more launches all the same  Esc back")
        elif choice.tables is not None:
            self._launch(choice.tables)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """A path: read it and put it first."""
        event.stop()
        if not event.value.strip():
            return
        self._choices.insert(0, from_path(Path(event.value.strip())))
        self._list(0)
        self._profiles.focus()
        self._check(self._choices[0])

    @work(group="preflight", exclusive=True, exit_on_error=False)
    async def _check(self, choice: Choice) -> None:
        self._checked, self._problems, self._warned = None, 0, False
        if choice.tables is None:
            self._tell(choice.error, "bad")
            return
        self._tell("checking…", "dim")
        try:
            answer = await self._control.request("preflight", profile=choice.tables)
        except KimiError as error:
            self._rows.flow(partial(error_lines, error))
            return
        self._checked = choice
        self._problems = len(answer["problems"])
        self._rows.flow(partial(answer_lines, answer))
        self.hint("Enter launch  p path  Esc back")

    @work(group="launch", exclusive=True, exit_on_error=False)
    async def _launch(self, tables: dict[str, Any]) -> None:
        self.hint("launching…")
        try:
            answer = await self._control.request("launch", profile=tables, force=self._warned)
        except KimiError as error:
            self._rows.flow(partial(error_lines, error))
            self.hint("Enter try again  Esc back")
            return
        self.dismiss(str(answer["run"]))

    def _tell(self, text: str, role: Role) -> None:
        self._rows.flow(partial(paragraphs, text, role))

    def action_path(self) -> None:
        """Type a path."""
        self.query_one("#path", Input).focus()


def error_lines(error: KimiError, cells: int) -> list[Line]:
    """An error with what to do about it."""
    lines = paragraphs(f"✖ {error.message}", "bad", cells)
    return lines + (paragraphs(error.hint, "plain", cells, "   ") if error.hint else [])


def _check_lines(checks: list[dict[str, Any]], cells: int) -> list[Line]:
    """What may go wrong, what could not be looked at, and how much was fine."""
    lines: list[Line] = []
    for check in checks:
        if check["outcome"] == "warn":
            lines += paragraphs(f"⚠ {check['message']}", "warn", cells)
            lines += paragraphs(str(check["hint"]), "plain", cells, "   ") if check["hint"] else []
    unchecked = [str(check["message"]) for check in checks if check["outcome"] == "not checked"]
    lines += [line for text in unchecked for line in paragraphs(f"– not checked: {text}", "dim", cells)]
    fine = sum(1 for check in checks if check["outcome"] == "ok")
    return [*lines, [(f" {fine} of {many(len(checks), 'check')} found nothing", "dim")]] if checks else lines


def answer_lines(answer: dict[str, Any], cells: int) -> list[Line]:
    """What preflight found, and the exact command line."""
    lines: list[Line] = []
    for problem in answer["problems"]:
        lines += error_lines(KimiError(str(problem["message"]), str(problem.get("hint") or "")), cells)
    if not lines:
        lines.append([(" ✓ nothing speaks against this launch", "good")])
    lines += _check_lines(answer.get("checks") or [], cells)
    lines += [[], [(" command line", "dim")]]
    return lines + paragraphs(shlex.join(map(str, answer["argv"])), "plain", cells)
