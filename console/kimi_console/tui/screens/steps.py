"""The steps of the shard browser: what each lists, what stands beside it, and what opens from it."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from kimi_console.tui.cells import Line, paragraphs
from kimi_console.tui.screens import shard_tables as tables
from kimi_console.tui.window import PAGE, Window

Request = Callable[..., Awaitable[Any]]
SORTS: Final = {"shards": ("order", "rows", "worst"), "samples": ("order", "rows", "missing", "worst")}


class Step(Protocol):
    """One step of the way. Everything but `load` is drawn from what is here."""

    name: str
    """What was chosen to come here."""
    cursor: int

    @property
    def hint(self) -> str:
        """Keys that work here, beside those that work everywhere."""

    async def load(self, request: Request) -> None:
        """Ask for what is in view. Raises KimiError."""

    @property
    def wants(self) -> bool:
        """Whether to load at once."""

    @property
    def grows(self) -> bool:
        """Whether there is more to be known after a while."""

    def draw(self, cells: int) -> tuple[Sequence[Line], int]:
        """The list for a width, and how many lines of it are a heading."""

    def details(self, row: int | None, cells: int) -> list[Line]:
        """What stands beside a row."""


class Dumps:
    """All dumps of the host."""

    hint = ""

    def __init__(self) -> None:
        self.name, self.cursor = "dumps", 0
        self.rows: list[tables.Row] | None = None

    async def load(self, request: Request) -> None:
        """All of them at once."""
        self.rows = await request("dumps")

    @property
    def wants(self) -> bool:
        """Only once."""
        return self.rows is None

    @property
    def grows(self) -> bool:
        """No: `r` reads again."""
        return False

    def draw(self, cells: int) -> tuple[Sequence[Line], int]:
        """A row a dump."""
        lines = tables.dumps(self.rows or [], cells)
        if self.rows == []:
            told = "no dump yet: press D on the board while a server with capture runs"
            lines += paragraphs(told, "dim", cells - 1)
        return lines, 1 if self.rows else len(lines)

    def details(self, row: int | None, cells: int) -> list[Line]:
        """Where it lies."""
        return tables.dump_details(self.rows[row], cells, time.time()) if self.rows and row is not None else []


class Paged:
    """A dump's shards, or its samples, a page at a time."""

    def __init__(self, what: str, dump: str, shard: str | None = None) -> None:
        self.what, self.dump, self.shard = what, dump, shard
        self.name = dump if what == "shards" else shard or "all samples"
        self.cursor = 0
        self.sort, self.reverse, self.search = "order", False, ""
        self.facts: tables.Row | None = None
        self.window = Window([], tables.shards(80)[1])

    @property
    def hint(self) -> str:
        """Order and search, as they are now."""
        way = " reversed" if self.reverse else ""
        found = f"  / {self.search!r}" if self.search else "  / search"
        every = "  a all samples" if self.what == "shards" else "  B next bad"
        return f"o by {self.sort}{way}  O turn{found}{every}"

    async def load(self, request: Request) -> None:
        """The page that is missing, or the one with the cursor again."""
        missing = self.window.missing
        first = self.cursor // PAGE * PAGE if missing is None else missing
        query = (self.sort, self.reverse, self.search)
        params: dict[str, Any] = {"sort": self.sort, "reverse": self.reverse, "search": self.search}
        if self.shard is not None:
            params["shard"] = self.shard
        answer = await request(self.what, dump=self.dump, first=first, count=PAGE, **params)
        if query == (self.sort, self.reverse, self.search):
            self.facts = {key: value for key, value in answer.items() if key != self.what}
            self.window.put(first, answer[self.what], answer["matched"])

    @property
    def wants(self) -> bool:
        """Whether rows in view are not here, or the one that the cursor is on, which comes into view only later."""
        window = self.window
        beyond = self.cursor < window.total and window.row(self.cursor) is None
        return self.facts is None or window.missing is not None or beyond

    @property
    def grows(self) -> bool:
        """While headers are read, or the dump is written."""
        facts = self.facts
        return facts is not None and (facts["known"] < facts["shard_count"] or bool(facts["writers"]))

    def draw(self, cells: int) -> tuple[Sequence[Line], int]:
        """A row a shard or a sample, made when it comes into view."""
        heading, draw = tables.shards(cells) if self.what == "shards" else tables.samples(cells)
        self.window.redraw(heading, draw)
        if self.facts is None or self.window.total:
            return self.window, len(heading)
        told = f"none has {self.search!r} in its name" if self.search else EMPTY[self.what]
        lines = [*heading, *paragraphs(told, "dim", cells - 1)]
        return lines, len(lines)

    def details(self, row: int | None, cells: int) -> list[Line]:
        """The row, then the dump."""
        here = self.window.row(row) if row is not None else None
        lines = tables.row_facts(here, cells) if here is not None else []
        return lines + (tables.dump_facts(self.facts, cells) if self.facts is not None else [])

    def turn(self) -> None:
        """The other way round."""
        self.reverse = not self.reverse
        self._begin()

    def reorder(self) -> None:
        """The next order."""
        orders = SORTS[self.what]
        self.sort = orders[(orders.index(self.sort) + 1) % len(orders)]
        self._begin()

    def find(self, text: str) -> None:
        """Only those with a text in their name."""
        self.search = text
        self._begin()

    def _begin(self) -> None:
        self.cursor = 0
        self.window.forget()
        self.facts = None


EMPTY: Final = {
    "shards": "no shard is committed yet: the first one appears when it is full, or when the dump ends",
    "samples": "this dump holds no sample yet",
}
"""What an empty list says."""
