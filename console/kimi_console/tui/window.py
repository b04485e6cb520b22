"""A long list of which only what is looked at is here: rows come in pages, and lines are made when they are drawn."""

from collections.abc import Callable, Sequence
from typing import Any, Final, overload

from kimi_console.tui.cells import Line

PAGE: Final = 100
"""Rows that are asked for at a time."""
KEPT: Final = 40
"""Pages that are kept."""


class Window(Sequence[Line]):
    """The lines of a list of `total` rows below a heading.

    Drawing a row that is not here draws a placeholder and makes its page `missing`.
    """

    def __init__(self, heading: Sequence[Line], draw: Callable[[Any], Line]) -> None:
        self.total = 0
        self.missing: int | None = None
        """First row of the page that was looked for last and is not here."""
        self._heading = heading
        self._draw = draw
        self._pages: dict[int, Sequence[Any]] = {}

    def __len__(self) -> int:
        return len(self._heading) + self.total

    @overload
    def __getitem__(self, index: int) -> Line: ...

    @overload
    def __getitem__(self, index: slice) -> list[Line]: ...

    def __getitem__(self, index: int | slice) -> Line | list[Line]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        if index < len(self._heading):
            return self._heading[index]
        place = index - len(self._heading)
        row = self.row(place)
        if row is None:
            self.missing = place // PAGE * PAGE
            placeholder: Line = [(" …", "dim")]
            return placeholder
        return self._draw(row)

    def row(self, place: int) -> Any | None:
        """A row, if it is here."""
        page = self._pages.get(place // PAGE)
        within = place % PAGE
        return page[within] if page is not None and within < len(page) else None

    def put(self, first: int, rows: Sequence[Any], total: int) -> None:
        """Keep the page that begins at row `first`."""
        self.total = total
        self._pages.pop(first // PAGE, None)
        self._pages[first // PAGE] = rows
        while len(self._pages) > KEPT:
            del self._pages[next(iter(self._pages))]
        if self.missing == first:
            self.missing = None

    def redraw(self, heading: Sequence[Line], draw: Callable[[Any], Line]) -> None:
        """Make lines in another way: for another width."""
        self._heading, self._draw = heading, draw

    def forget(self) -> None:
        """The rows are others now."""
        self._pages.clear()
        self.missing = None
