"""What every app of the console has: themes, colours, the terminal's end."""

import os
from typing import Any, ClassVar

from textual.theme import BUILTIN_THEMES

from kimi_console.paths import themes_dir
from kimi_console.tui.keys import KeysInOrder
from kimi_console.tui.paint import ROLE_CLASSES
from kimi_console.tui.terminal import leave_with_terminal, no_color
from kimi_console.tui.theme import ANSI_VARIABLES, DEFAULT, load_themes


class Shell(KeysInOrder):
    """An app with the console's themes.

    Args:
        ascii: draw with ASCII only.
        theme: name of a theme; an unknown one is said and the default taken.
    """

    CSS_PATH = "kimi.tcss"
    TITLE = "kimi-console"
    COMMANDS: ClassVar[set[Any]] = set()
    COMPONENT_CLASSES: ClassVar[set[str]] = set(ROLE_CLASSES)
    ESCAPE_TO_MINIMIZE = False

    def __init__(self, *, ascii: bool = False, theme: str | None = None) -> None:  # noqa: A002 - the option's name
        plain = no_color(os.environ)
        super().__init__(ansi_color=True if plain else None)
        self.owns_terminal = False
        """Whether to leave when the terminal goes; set by whoever runs the app on one."""
        self._warnings: list[str] = []
        if plain:
            self.add_class("-no-color")
        if ascii:
            self.add_class("-ascii")
        self._load_themes(theme)

    def _load_themes(self, wanted: str | None) -> None:
        themes = load_themes(themes_dir())
        self._warnings += themes.warnings
        for name in BUILTIN_THEMES:
            if not name.startswith("ansi-"):
                self.unregister_theme(name)
        for theme in themes.found.values():
            self.register_theme(theme)
        if wanted is not None and wanted not in self.available_themes:
            self._warnings.append(f"there is no theme {wanted}: one of {', '.join(sorted(self.available_themes))}")
            wanted = None
        fallback = DEFAULT if DEFAULT in themes.found else "ansi-dark"
        self.theme = wanted or fallback

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Colours for themes that do not name the console's own variables."""
        return ANSI_VARIABLES

    def on_mount(self) -> None:
        """Watch the terminal, and say what was wrong with themes."""
        if self.owns_terminal:
            leave_with_terminal(self)
        for warning in self._warnings:
            self.notify(warning, severity="warning", markup=False)
