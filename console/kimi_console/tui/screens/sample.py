"""One sample: its heat row, its tokens, its layers beside the dump's."""

from functools import partial
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from kimi_console.source.base import Control
from kimi_console.tui.bar import Bar
from kimi_console.tui.cells import Line, paragraphs
from kimi_console.tui.screens import sample_tables as tables
from kimi_console.tui.screens.beside import Report, boundary_match
from kimi_console.tui.screens.launch_form import error_lines
from kimi_console.tui.screens.overlay import Columns, Request
from kimi_console.tui.screens.shard_tables import identity
from kimi_console.tui.token_grid import PAGE, TokenGrid

AGAIN = 0.5
"""Seconds after which a sample that is still read is asked for again."""


class SampleScreen(Columns[bool]):
    """Arrows go from token to token, `n` to the next bad one, brackets from layer to layer. True: to the board."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave(False)", show=False),
        Binding("q", "leave(True)", show=False),
        Binding("n", "bad(1)", show=False),
        Binding("N", "bad(-1)", show=False),
        Binding("left_square_bracket", "layer(-1)", show=False),
        Binding("right_square_bracket", "layer(1)", show=False),
        Binding("b", "boundary", show=False),
    ]

    def __init__(
        self, control: Control, dump: str, sample: dict[str, Any], about: dict[str, Any], trail: str, *,
        seek: bool = False,
        ascii: bool = False,  # noqa: A002 - the option's name
    ) -> None:  # fmt: skip
        """`about` is what is known of the dump, `trail` the way here; `seek` goes to the first marked token."""
        super().__init__(control, ascii=ascii)
        self._where = {"dump": dump, "shard": sample["shard"], "place": sample["place"]}
        self._rid = str(sample["rid"]) or f"sample {sample['number']}"
        self._about, self._trail, self._seek = about, trail, seek
        self._facts: dict[str, Any] | None = None
        self._layer: str | None = None
        self._names: list[str] = []
        self._source = ""
        self._identity, self._heat, self._marks = (Bar(ascii=ascii) for _ in range(3))
        self._grid = TokenGrid(ascii=ascii, id="grid")

    def body(self) -> ComposeResult:
        """The layer's identity, the heat row, the tokens and what is known of them."""
        yield from (self._identity, self._heat, self._marks)
        with Horizontal(id="columns"):
            yield self._grid
            yield self._rows

    def on_mount(self) -> None:
        """Begin to read."""
        self._grid.focus()
        self.hint("←→↑↓ token  n N bad  [ ] layer  b boundary  Tab details  Esc back  q board")
        self.set_interval(AGAIN, self._again)
        self.load(self._load)

    def _again(self) -> None:
        facts = self._facts
        unread = facts is None or facts["read"] < facts["rows"] or not facts["checked"]
        if unread and not self._loading and self._error is None and self.app.screen is self:
            self.load(self._load)

    async def _load(self, request: Request) -> None:
        """What is known of the sample, and the tokens in view where they are not here or not read yet."""
        before = self._facts
        facts = await request("sample", **self._where, layer=self._layer)
        if before is None:
            self._grid.begin(facts["rows"])
        self._facts = facts
        first = self._grid.missing
        if first is None and (before is None or before["read"] < before["rows"]):
            first = self._grid.token // PAGE * PAGE
        await self._tokens(first, request)
        if self._seek:
            found = await request("next_bad", **self._where, token=-1, step=1)
            if found["token"] is not None:
                self._grid.go(found["token"])
            self._seek = found["token"] is None and found["read"] < found["rows"]

    async def _tokens(self, first: int | None, request: Request) -> None:
        if first is None or self._facts is None or not self._facts["rows"]:
            return
        answer = await request("tokens", **self._where, first=first, count=PAGE)
        self._names, self._source = answer["layers"], answer["text_source"]
        self._grid.put(first, answer["tokens"])

    def draw(self) -> None:
        """What there is of it."""
        self.entitle("Sample", (f"  {self._trail} › {self._rid}", "plain"))
        facts = self._facts
        if facts is not None:
            cells = max(20, self._heat.size.width)
            self._identity.show([(f" {identity(self._about, facts['layer'])}", "plain")])
            heat, marks = tables.heat_row(facts, self._grid.token, cells)
            self._heat.show(heat)
            self._marks.show(marks)
            if facts["layer"] in self._names:
                column = self._names.index(facts["layer"])
                self._grid.show(column, facts["heat"]["low"], facts["heat"]["high"])
        self._rows.flow(self._lines)
        self.call_after_refresh(self._fetch_missing)

    def _fetch_missing(self) -> None:
        if self._grid.missing is not None and not self._loading and self._error is None:
            self.load(partial(self._tokens, self._grid.missing))

    def _lines(self, cells: int) -> list[Line]:
        if self._error is not None:
            return error_lines(self._error, cells)
        facts = self._facts
        if facts is None:
            return paragraphs("reading…", "dim", cells)
        token = self._grid.get(self._grid.token)
        lines = tables.token_lines(facts, token, self._names, cells) if facts["rows"] else []
        lines += [[], *tables.layers(facts, cells), [], *tables.histograms(facts), []]
        return lines + tables.about(facts, self._source, cells)

    def on_token_grid_at(self, event: TokenGrid.At) -> None:
        """The right side and the heat row follow the cursor."""
        event.stop()
        self.draw()

    def action_layer(self, step: int) -> None:
        """Shade by another layer."""
        if self._facts is None:
            return
        names = list(self._facts["layers"])
        self._layer = names[(names.index(self._facts["layer"]) + step) % len(names)]
        self.load(self._load)

    def action_bad(self, step: int) -> None:
        """Go to the next token that is marked, or the one before."""
        if self._facts is not None:
            self.load(partial(self._next_bad, step))

    async def _next_bad(self, step: int, request: Request) -> None:
        answer = await request("next_bad", **self._where, token=self._grid.token, step=step)
        if answer["token"] is not None:
            self._grid.go(answer["token"])
            return
        where = "after" if step > 0 else "before"
        more = "" if answer["read"] >= answer["rows"] else f", of the {answer['read']:,} read so far"
        self.notify(f"no marked token {where} this one{more}", markup=False)

    def action_boundary(self) -> None:
        """Hold the rows against the model's own states."""
        screen = Report(f"Which boundary is it?  {self._rid}", self._control, "boundary", self._where, boundary_match,
                        ascii=self._ascii)  # fmt: skip
        self.app.push_screen(screen)

    def action_leave(self, board: bool) -> None:
        """Back to the list, or to the board."""
        self.dismiss(board)
