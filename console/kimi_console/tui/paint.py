"""From styled lines to the screen: the one place where roles become colours, and untrusted text is made harmless."""

from collections.abc import Sequence
from typing import Final

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from kimi_agent.text import clean
from kimi_console.tui.cells import ROLES, Role, Span, crop, to_ascii, width

ROLE_CLASSES: Final = frozenset(f"role--{role}" for role in ROLES)
"""Component classes of an app whose widgets paint with roles; `kimi.tcss` gives them their colours."""

FRESH: Final[frozenset[Role]] = frozenset({"plain", "bright", "move", "good"})
"""Roles that grey when the link is lost; what needs a hand keeps its colour."""


class Brush:
    """A widget's colours for the roles, read once for each theme."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._styles: dict[Role, Style] = {}
        self._key: object = None
        self.ascii = False
        self.stale = False
        """Whether all that is drawn may no longer be so: it greys."""

    def style(self, role: Role) -> Style:
        """The style of a role in the present theme."""
        self._renew()
        return self._style(role)

    def _renew(self) -> None:
        """Forget the styles of another theme or ground."""
        key = (self._widget.app.theme, self._widget.background_colors)
        if key != self._key:
            self._styles.clear()
            self._key = key

    def _style(self, role: Role) -> Style:
        style = self._styles.get(role)
        if style is None:
            style = self._styles[role] = self._found(role)
        return style

    def _found(self, role: Role) -> Style:
        """The app's style of a role, on the widget's ground unless the role brings its own."""
        styles = self._widget.app.get_component_styles(f"role--{role}")
        if styles.has_rule("background"):
            return styles.rich_style
        return styles.rich_style + Style(bgcolor=self._widget.rich_style.bgcolor)

    def strip(self, line: Sequence[Span], cells: int, *, cursor: bool = False) -> Strip:
        """A line as exactly `cells` cells; under the `cursor` it keeps its colours on another ground."""
        self._renew()
        harmless = [(self._harmless(text), self._aged(role)) for text, role in line]
        drawn = [(to_ascii(text) if self.ascii else text, role) for text, role in crop(harmless, cells)]
        segments = [Segment(text, self._style(role)) for text, role in drawn if text]
        used = width((segment.text, "plain") for segment in segments)
        if used < cells:
            segments.append(Segment(" " * (cells - used), self._style("plain")))
        if cursor:
            mark = self._style("cursor")
            ground = Style(bgcolor=mark.bgcolor, bold=mark.bold, reverse=mark.reverse)
            segments = [Segment(text, style + ground if style else ground) for text, style, _ in segments]
        return Strip(segments, cells)

    def _aged(self, role: Role) -> Role:
        return "stale" if self.stale and role in FRESH else role

    def _harmless(self, text: str) -> str:
        return text if text.isprintable() else clean(text)
