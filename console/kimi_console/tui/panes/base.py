"""What a pane is made of."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kimi_console.tui.cells import Line
from kimi_console.tui.view import View


@dataclass(frozen=True, slots=True)
class Drawing:
    """A pane's state for its title, and its lines."""

    title: Line = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PaneSpec:
    """A pane: what it draws, from which part of the state, and what its cells mean."""

    id: str
    number: int
    name: str
    depends: Callable[[View], tuple[object, ...]]
    """The parts of the view that it draws; it is drawn again only when one is another object."""
    draw: Callable[[View, int, int], Drawing]
    """(view, width, height) of its lines to a drawing."""
    explain: tuple[tuple[str, str], ...] = ()
    """(cell, where its value comes from, its unit, what it should be)."""
