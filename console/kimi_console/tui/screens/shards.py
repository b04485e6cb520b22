"""The shard browser: dumps, then shards, then samples, then tokens."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from kimi_console.source.base import Control
from kimi_console.tui.cells import Line, paragraphs
from kimi_console.tui.rows import Rows
from kimi_console.tui.screens.ask import Ask
from kimi_console.tui.screens.beside import Report, dump_pair, sample_pair
from kimi_console.tui.screens.launch_form import error_lines
from kimi_console.tui.screens.overlay import Columns, Request
from kimi_console.tui.screens.sample import SampleScreen
from kimi_console.tui.screens.steps import Dumps, Paged, Step

AGAIN = 1.0
"""Seconds after which what grows is asked for again."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A dump, or one of its samples."""

    dump: str
    shard: str | None = None
    place: int = 0
    rid: str = ""

    @property
    def name(self) -> str:
        """As the operator knows it."""
        return self.dump if self.shard is None else self.rid or f"sample {self.place} of {self.shard}"

    def where(self) -> dict[str, Any]:
        """A sample as the agent finds it."""
        return {"dump": self.dump, "shard": self.shard, "place": self.place}


class ShardBrowser(Columns[None]):
    """Enter goes deeper, Esc comes back; a sample opens on a screen of its own."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,left", "back", show=False),
        Binding("q", "close", show=False),
        Binding("r", "reload", show=False),
        Binding("o", "order(False)", show=False),
        Binding("O", "order(True)", show=False),
        Binding("slash", "search", show=False),
        Binding("a", "all", show=False),
        Binding("B", "bad", show=False),
        Binding("m", "mark", show=False),
        Binding("equals_sign", "compare", show=False),
    ]

    def __init__(self, control: Control, *, ascii: bool = False) -> None:  # noqa: A002 - the option's name
        super().__init__(control, ascii=ascii)
        self._steps: list[Step] = [Dumps()]
        self._marked: Chosen | None = None
        """What the next one is compared with."""
        self._items = Rows(choosing=True, ascii=ascii, id="items")

    @property
    def step(self) -> Step:
        """Where the operator is."""
        return self._steps[-1]

    def body(self) -> ComposeResult:
        """The list, and what is known of what the cursor is on."""
        with Horizontal(id="columns"):
            yield self._items
            yield self._rows

    def on_mount(self) -> None:
        """Ask for the dumps, and for what grows now and then."""
        self._items.focus()
        self.set_interval(AGAIN, self._again)
        self._load()

    def _again(self) -> None:
        if not self._loading and self._error is None and self.app.screen is self and self.step.grows:
            self._load()

    def _load(self) -> None:
        self.load(self.step.load)

    def draw(self) -> None:
        """The path, the list, what is beside it, the keys."""
        trail = " › ".join(step.name for step in self._steps[1:]) or "dumps"
        self.entitle("Shards", (f"  {trail}", "plain"), (self._count(), "dim"))
        lines, heading = self.step.draw(max(20, self._items.size.width - 1))
        self._items.fill(lines, heading=heading, cursor=self.step.cursor)
        self._rows.flow(self._facts)
        keys = " Enter open  Esc back  " if len(self._steps) > 1 else " Enter open  r read again  Esc board  "
        marked = f"  = compare with {self._marked.name}" if self._fits_marked() and self._marked else ""
        self._foot.show([(keys, "dim"), (self.step.hint, "dim"), ("  m mark", "dim"), (marked, "accent")])
        self.call_after_refresh(self._fetch_missing)

    def _fetch_missing(self) -> None:
        """Drawing has shown what is not here."""
        if self.step.wants and not self._loading and self._error is None:
            self._load()

    def _count(self) -> str:
        step = self.step
        if not isinstance(step, Paged) or step.facts is None:
            return ""
        total = step.facts["shard_count"] if step.what == "shards" else step.facts["total"]
        of = "" if step.window.total == total else f" of {total:,}"
        return f"  {step.window.total:,}{of}" + ("  live" if step.facts["writers"] else "")

    def _facts(self, cells: int) -> list[Line]:
        if self._error is not None:
            return error_lines(self._error, cells)
        lines = self.step.details(self._items.row, cells)
        return lines or (paragraphs("reading…", "dim", cells) if self._loading else [])

    def on_rows_moved(self, event: Rows.Moved) -> None:
        """The right side follows the cursor."""
        if event.rows is self._items:
            self.step.cursor = event.row
            self._rows.flow(self._facts)
            self.call_after_refresh(self._fetch_missing)

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        """Go one step deeper."""
        step, row = self.step, event.row
        if event.rows is not self._items:
            return
        step.cursor = row
        if isinstance(step, Dumps):
            if step.rows and row < len(step.rows):
                self._enter(Paged("shards", str(step.rows[row]["dump"])))
        elif isinstance(step, Paged) and (here := step.window.row(row)) is not None:
            if step.what == "shards":
                self._enter(Paged("samples", step.dump, str(here["shard"])))
            else:
                self._open(step, here)

    def _enter(self, step: Step) -> None:
        self._steps.append(step)
        self._load()

    def _open(self, step: Paged, sample: dict[str, Any], *, seek: bool = False) -> None:
        trail = " › ".join(one.name for one in self._steps[1:])
        screen = SampleScreen(
            self._control, step.dump, sample, step.facts or {}, trail, seek=seek, ascii=self._ascii
        )  # fmt: skip

        def left(board: bool | None) -> None:
            if board:
                self.dismiss(None)

        self.app.push_screen(screen, left)

    def _chosen(self) -> Chosen | None:
        """The dump or the sample under the cursor."""
        step, row = self.step, self._items.row
        if row is None:
            return None
        if isinstance(step, Dumps):
            return Chosen(str(step.rows[row]["dump"])) if step.rows and row < len(step.rows) else None
        here = step.window.row(row) if isinstance(step, Paged) and step.what == "samples" else None
        if here is None or not isinstance(step, Paged):
            return None
        return Chosen(step.dump, str(here["shard"]), int(here["place"]), str(here["rid"]))

    def _fits_marked(self) -> bool:
        chosen, marked = self._chosen(), self._marked
        return chosen is not None and marked is not None and (chosen.shard is None) == (marked.shard is None)

    def action_mark(self) -> None:
        """Keep the dump or the sample under the cursor, to compare another one with it."""
        chosen = self._chosen()
        if chosen is not None:
            self._marked = chosen
            self.notify(f"marked {chosen.name}: = on another one compares them", markup=False)
            self.draw()

    def action_compare(self) -> None:
        """Hold what is under the cursor against what is marked."""
        chosen, marked = self._chosen(), self._marked
        if chosen is None or marked is None or not self._fits_marked():
            self.notify("mark another sample, or another dump, with m first", severity="warning", markup=False)
            return
        title = f"{marked.name} and {chosen.name}"
        if chosen.shard is None:
            params: dict[str, Any] = {"dump": marked.dump, "other": chosen.dump}
            screen = Report(title, self._control, "compare_dumps", params, dump_pair, ascii=self._ascii)
        else:
            params = marked.where() | {"other": chosen.where()}
            screen = Report(title, self._control, "compare", params, sample_pair, ascii=self._ascii)
        self.app.push_screen(screen)

    def action_back(self) -> None:
        """One step back, or to the board."""
        if len(self._steps) <= 1:
            self.dismiss(None)
            return
        self._steps.pop()
        self._error = None
        self.draw()

    def action_reload(self) -> None:
        """Ask for the dumps again."""
        self._steps = [Dumps()]
        self._load()

    def action_all(self) -> None:
        """All samples of the dump, whatever shard they are in."""
        step = self.step
        if isinstance(step, Dumps) and step.rows and (row := self._items.row) is not None and row < len(step.rows):
            step.cursor = row
            samples = Paged("samples", str(step.rows[row]["dump"]))
            samples.name = f"{samples.dump} › {samples.name}"  # no step before it names the dump
            self._enter(samples)
        elif isinstance(step, Paged) and step.what == "shards":
            self._enter(Paged("samples", step.dump))

    def action_order(self, turn: bool) -> None:
        """Another order, or the same one the other way round."""
        step = self.step
        if isinstance(step, Paged):
            step.turn() if turn else step.reorder()
            self._load()

    def action_search(self) -> None:
        """Only what has a text in its name."""
        step = self.step
        if not isinstance(step, Paged):
            return

        def found(text: str | None) -> None:
            if text is not None:
                step.find(text)
                self._load()

        what = "a shard's name" if step.what == "shards" else "a request id"
        self.app.push_screen(Ask("search", f"part of {what}; empty for all", step.search), found)

    def action_bad(self) -> None:
        """Open the next sample with rows that cannot be right."""
        step = self.step
        if isinstance(step, Paged) and step.what == "samples":
            here = step.window.row(self._items.row or 0)
            self.load(partial(self._next_bad, step, -1 if here is None else int(here["number"])))

    async def _next_bad(self, step: Paged, number: int, request: Request) -> None:
        answer: dict[str, Any] = {"done": False, "at": number}
        while not answer["done"]:
            answer = await request("bad_sample", dump=step.dump, number=answer["at"], step=1)
            self._foot.show([(f" looking for bad rows: sample {answer['at']:,}…", "move")])
        sample = answer["sample"]
        if sample is None:
            self.notify("no sample after this one has rows that cannot be right", markup=False)
        elif sample["problem"]:
            self.notify(f"{sample['shard']}: {sample['problem']}", severity="error", markup=False)
        else:
            self._open(step, sample, seek=True)
