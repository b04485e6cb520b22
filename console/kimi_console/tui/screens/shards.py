"""The shard browser: dumps, then shards, then samples, then tokens."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen

from kimi_agent.errors import KimiError
from kimi_console.source.base import Control
from kimi_console.tui.bar import Bar
from kimi_console.tui.cells import Line, paragraphs
from kimi_console.tui.pane import rule
from kimi_console.tui.rows import Rows
from kimi_console.tui.screens import shard_tables as tables
from kimi_console.tui.screens.launch_form import error_lines

SIDE_BY_SIDE = 100


@dataclass(slots=True)
class Level:
    """One step of the way: what is listed, what stands beside it."""

    name: str
    """What was chosen to come here."""
    data: Any
    cursor: int = 0


class ShardBrowser(ModalScreen[None]):
    """Enter goes deeper, Esc comes back, `n` goes to the next bad token."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,left", "back", show=False),
        Binding("q", "close", show=False),
        Binding("n", "bad(1)", show=False),
        Binding("N", "bad(-1)", show=False),
        Binding("r", "reload", show=False),
    ]

    def __init__(self, control: Control, *, ascii: bool = False) -> None:  # noqa: A002 - the option's name
        super().__init__(classes="-ascii" if ascii else "")
        self._control = control
        self._levels: list[Level] = []
        self._reading = False
        self._rule = Bar(ascii=ascii)
        self._items = Rows(choosing=True, ascii=ascii, id="items")
        self._details = Rows(ascii=ascii, id="details")
        self._foot = Bar([(" Enter open  Esc back  n next bad token  r read again  q board", "dim")], ascii=ascii)

    def compose(self) -> ComposeResult:
        """The path, two columns, the keys."""
        with Vertical(classes="sheet"):
            yield self._rule
            with Horizontal(id="columns"):
                yield self._items
                yield self._details
            yield self._foot

    def on_mount(self) -> None:
        """Ask for the dumps."""
        self._items.focus()
        self._fetch("dumps", "dumps")

    def on_resize(self, event: events.Resize) -> None:
        """Columns stand below each other where they do not fit beside each other."""
        self.set_class(event.size.width < SIDE_BY_SIDE, "-narrow")
        self.call_after_refresh(self._draw)

    @work(group="shards", exclusive=True, exit_on_error=False)
    async def _fetch(self, method: str, name: str, **params: Any) -> None:
        self._details.flow(partial(paragraphs, "reading…", "dim"))
        self._reading = True
        try:
            answer = await self._control.request(method, **params)
        except KimiError as error:
            self._details.flow(partial(error_lines, error))
            return
        finally:
            self._reading = False
        self._levels.append(Level(name, answer))
        self._draw()

    def _draw(self) -> None:
        trail = " › ".join(level.name for level in self._levels)
        self._rule.show(rule([("Shards", "title"), (f"  {trail}", "plain")], max(1, self._rule.size.width), {}))
        if not self._levels:
            return
        level = self._levels[-1]
        lines, heading = self._listing(level)
        if len(lines) <= heading:
            lines = [*lines, *paragraphs(EMPTY[len(self._levels) - 1], "dim", self._items.size.width - 2)]
            heading = len(lines)
        self._items.fill(lines, heading=heading, cursor=level.cursor)
        self._detail()

    def _listing(self, level: Level) -> tuple[list[Line], int]:
        cells = max(20, self._items.size.width - 1)
        drawers: tuple[Callable[[Any, int], list[Line]], ...] = (
            tables.dumps, tables.shards, tables.samples, tables.tokens,
        )  # fmt: skip
        return drawers[len(self._levels) - 1](level.data, cells), 1

    def _detail(self) -> None:
        self._details.flow(self._facts)

    def _facts(self, cells: int) -> list[Line]:
        depth, row = len(self._levels), self._items.row
        data = self._levels[-1].data
        if depth == 1:
            return tables.dump_details(data[row], cells, time.time()) if data and row is not None else []
        if depth == 2:
            return tables.dump_facts(data, cells)
        if depth == 3:
            return tables.shard_facts(data, self._levels[1].data, cells)
        token = data["tokens"][row] if row is not None and row < len(data["tokens"]) else None
        return tables.token_facts(data, token, self._levels[1].data, self._levels[2].data, cells)

    def on_rows_moved(self, event: Rows.Moved) -> None:
        """The right side follows the cursor."""
        if event.rows is self._items and self._levels:
            self._levels[-1].cursor = event.row
            self._detail()

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        """Go one step deeper."""
        if event.rows is not self._items or not self._levels or self._reading:
            return
        data, row = self._levels[-1].data, event.row
        self._levels[-1].cursor = row
        if len(self._levels) == 1 and row < len(data):
            self._fetch("shards", str(data[row]["dump"]), dump=data[row]["dump"])
        elif len(self._levels) == 2 and row < len(data["shards"]):
            shard = data["shards"][row]["shard"]
            self._fetch("shard", str(shard), dump=data["dump"], shard=shard)
        elif len(self._levels) == 3 and row < len(data["samples"]):
            self._levels.append(Level(f"sample {data['samples'][row]['rid']}", data["samples"][row]))
            self._draw()

    def action_back(self) -> None:
        """One step back, or to the board."""
        if len(self._levels) <= 1:
            self.dismiss(None)
            return
        self._levels.pop()
        self._draw()

    def action_close(self) -> None:
        """To the board."""
        self.dismiss(None)

    def action_reload(self) -> None:
        """Ask for the dumps again."""
        self._levels.clear()
        self._fetch("dumps", "dumps")

    def action_bad(self, step: int) -> None:
        """Go to the next token that is marked bad, from the end to the other."""
        if len(self._levels) != 4:
            return
        found = [index for index, token in enumerate(self._levels[-1].data["tokens"]) if token.get("bad")]
        if not found:
            self.notify("no bad token in this sample", markup=False)
            return
        here = self._items.row or 0
        ahead = [index for index in found if (index - here) * step > 0]
        target = (ahead[0] if step > 0 else ahead[-1]) if ahead else (found[0] if step > 0 else found[-1])
        self._items.action_move(target - here)


EMPTY = (
    "no dump yet: press D on the board while a server with capture runs",
    "no shard is committed yet: the first one appears when it is full, or when the dump ends",
    "this shard holds no sample",
    "no token of this sample is in this answer",
)
"""What an empty list says, for each step."""
