"""The feed: a dataset of the host through the running server into a dump, and how far it is."""

from typing import Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input

from kimi_agent.counts import many
from kimi_agent.errors import KimiError
from kimi_console.source.base import Control
from kimi_console.tui import format as fmt
from kimi_console.tui.bar import Bar
from kimi_console.tui.cells import Line, hanging, paragraphs
from kimi_console.tui.screens.launch_form import error_lines
from kimi_console.tui.screens.overlay import Overlay

AGAIN = 1.0
"""Seconds between two looks at a feed that goes on."""
Answer = dict[str, Any]
NEEDED = ("dataset", "dump")
LONGEST, TEMPLATE = "longest", "template"
FIELDS = {
    "dataset": "/path/on/the/host.jsonl or .parquet",
    "dump": "a new dump's name, or one to go on with",
    LONGEST: "most tokens of an answer that is made: 512",
    TEMPLATE: "/path/on/the/host.jinja: the server's own chat template",
}
"""The form's fields, and what stands in them while they are empty."""


class FeedScreen(Overlay[None]):
    """A form while nothing is fed, and the progress of what is; leaving it leaves the feed alone."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", show=False),
        Binding("ctrl+g", "answers", show=False),
        Binding("s", "stop", show=False),
        Binding("n", "another", show=False),
    ]

    def __init__(self, control: Control, *, ascii: bool = False) -> None:  # noqa: A002 - the option's name
        super().__init__(ascii=ascii)
        self._control = control
        self._answer: Answer | None = None
        self._error: KimiError | None = None
        self._regenerate = False
        self._form = False
        """Whether the form is open."""
        self._asking = False

    def body(self) -> ComposeResult:
        """The form's lines, and what is told."""
        for name, placeholder in FIELDS.items():
            with Horizontal(classes="field"):
                yield Bar([(f" {name} ", "dim")])
                digits = r"\d*" if name == LONGEST else None
                yield Input(placeholder=placeholder, compact=True, restrict=digits, id=name)
        yield self._rows

    def on_mount(self) -> None:
        """Look whether one goes on."""
        self.set_interval(AGAIN, self._again)
        self._rows.focus()
        self._ask("feed")

    @property
    def active(self) -> bool:
        """Whether one goes on."""
        return self._answer is not None and self._answer["state"] in ("reading", "feeding", "stopping")

    def _again(self) -> None:
        if self.active and not self._asking:
            self._ask("feed")

    @work(group="feed", exclusive=True, exit_on_error=False)
    async def _ask(self, method: str, **params: Any) -> None:
        self._asking, self._error = True, None
        first = self._answer is None
        try:
            self._answer = await self._control.request(method, **params)
        except KimiError as error:
            self._error = error
        self._asking = False
        if self.active:
            self._form = False
            self._rows.focus()
        elif first and self._answer is not None and self._answer["state"] == "none":
            self._open()
        self.draw()

    def _open(self) -> None:
        """Show the form, unless nothing may be begun."""
        self._form = not self._control.read_only
        if self._form:
            self.query_one("#dataset", Input).focus()

    def draw(self) -> None:
        """The form or the progress."""
        state = self._answer["state"] if self._answer is not None else ""
        told = "" if state in ("", "none") else f"  {state}"
        self.entitle("Feed", (told, "dim"))
        for line in self.query(".field"):
            line.display = self._form
        self._rows.flow(self._lines)
        self.hint(self._keys())

    def _keys(self) -> str:
        if self._form:
            answers = "made anew" if self._regenerate else "replayed"
            return f"Enter start  Tab next field  ^g given answers: {answers}  Esc back"
        if self._control.read_only:
            return "Esc back"
        return "s stop  Esc back, it goes on" if self.active else "n feed another  Esc back"

    def _lines(self, cells: int) -> list[Line]:
        lines = error_lines(self._error, cells) if self._error is not None else []
        if self._answer is not None and not self._form:
            lines += feed_lines(self._answer, cells)
        elif self._form:
            lines += [[], *paragraphs(ABOUT, "dim", cells)]
        return lines or paragraphs("looking…", "dim", cells)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The first field that is needed and empty, and without one the start."""
        event.stop()
        fields = {name: self.query_one(f"#{name}", Input) for name in FIELDS}
        given = {name: field.value.strip() for name, field in fields.items()}
        missing = next((name for name in NEEDED if not given[name]), None)
        if missing is not None:
            fields[missing].focus()
            return
        more: dict[str, Any] = {"max_new_tokens": int(given[LONGEST])} if given[LONGEST] else {}
        more |= {"chat_template": given[TEMPLATE]} if given[TEMPLATE] else {}
        needed = {name: given[name] for name in NEEDED}
        self._ask("feed_start", **needed, regenerate=self._regenerate, **more)

    def action_answers(self) -> None:
        """Answers that the dataset gives are replayed, or made anew."""
        if self._form:
            self._regenerate = not self._regenerate
            self.draw()

    def action_stop(self) -> None:
        """Send no more; a second time end it at once."""
        if self.active and not self._control.read_only:
            self._ask("feed_stop")

    def action_another(self) -> None:
        """The form again."""
        if not self.active and not self._form:
            self._open()
            self.draw()


ABOUT = (
    "Conversations, prompts or token ids, one a line, go through the server that is READY into a dump. Answers that "
    "are given are replayed, others are generated. The same dataset into the same dump goes on where it stopped."
)


def feed_lines(answer: Answer, cells: int) -> list[Line]:
    """How a feed stands, and what it came to."""
    if answer["state"] == "none":
        return paragraphs("nothing is fed, and nothing was since the agent began", "dim", cells)
    lines: list[Line] = [
        [(" dataset  ", "dim"), (str(answer["dataset"]), "bright")],
        [(" dump     ", "dim"), (str(answer["dump"]), "bright"), (f"   for {fmt.duration(answer['seconds'])}", "dim")],
    ]
    if (rows := answer["rows"]) is not None:
        lines.append([(" rows     ", "dim"), (fmt.count(rows["rows"]), "plain"), (
            f"   {rows['requests']:,} to send, {rows['duplicates']:,} the same as another, "
            f"{rows['unusable']:,} unusable, {fmt.short(rows['tokens'])} tokens", "dim")])  # fmt: skip
    if (forecast := answer["forecast"]) is not None:
        fits, free = forecast["bytes"] <= forecast["free"], fmt.size(max(forecast["free"], 0))
        lines.append([(" disk     ", "dim"), (f"{fmt.size(forecast['bytes'])} to come", "plain" if fits else "bad"),
                      (f"   {free} free before the dump would pause", "dim")])  # fmt: skip
    if (progress := answer["progress"]) is not None:
        lines += [[], *_progress(progress, cells, over=answer["state"] == "done")]
    return lines + _outcome(answer, cells)


def _progress(now: Answer, cells: int, *, over: bool) -> list[Line]:
    full, empty = fmt.bar(now["done"], now["of"], max(10, min(40, cells - 44)))
    again = f"   pass {now['turn']}" if now["turn"] > 1 else ""
    left = "" if over or now["seconds_left"] is None else f"   {fmt.duration(now['seconds_left'])} left"
    queued = fmt.DASH if now["waiting"] is None else f"{now['waiting']:,}"
    return [
        [(" ", "plain"), (full, "move"), (empty, "dim"),
         (f"  {now['done']:,} of {many(now['of'], 'request')}{again}", "plain"), (left, "bright")],
        [(f" {fmt.rate(now['tokens_per_second'])} tok/s", "bright"),
         (f"   {fmt.size(now['bytes'])} written, {fmt.size(now['bytes_to_come'])} to come, "
          f"{fmt.size(max(now['free'], 0))} free", "plain")],
        [(f" {now['in_flight']:,} in flight, {queued} queued", "dim")],
    ]  # fmt: skip


def _outcome(answer: Answer, cells: int) -> list[Line]:
    lines: list[Line] = []
    if (summary := answer["summary"]) is not None:
        missing = sum(summary["missing"].values())
        counts = f"{summary['duplicates']:,} the same as another, {missing:,} missing"
        lines += [[], [
            (" ✓ " if summary["ok"] else " ✖ ", "good" if summary["ok"] else "bad"),
            (f"{summary['captured']:,} of {many(summary['rows'], 'row')} captured, {counts}", "plain"),
        ]]  # fmt: skip
        for kind, count in summary["missing"].items():
            lines.append([(f"   {count:,} {kind}", "warn")])
    for row in answer["missing"]:
        lines += hanging([(f"   row {row['row'] + 1:,} ", "dim")], f"{row['kind']}: {row['why']}", "plain", cells)
    if answer["error"]:
        lines += hanging([(" ✖ ", "bad")], str(answer["error"]), "bad", cells)
    return lines
