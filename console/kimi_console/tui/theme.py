"""Themes: TOML files, shipped and the operator's own; a bad one is a warning, never an end."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from textual.color import Color
from textual.theme import Theme

DEFAULT: Final = "kimi-dark"
COLOURS: Final = (
    "primary", "secondary", "warning", "error", "success", "accent", "foreground", "background", "surface", "panel",
)  # fmt: skip
ANSI_VARIABLES: Final = {
    "kimi-bright": "ansi_default", "kimi-dim": "ansi_bright_black", "kimi-rule": "ansi_bright_black",
    "kimi-stale": "ansi_bright_black", "kimi-move": "ansi_cyan", "kimi-rank0": "ansi_blue",
    "kimi-rank1": "ansi_magenta", "kimi-rank2": "ansi_cyan", "kimi-rank3": "ansi_yellow",
}  # fmt: skip
"""The variables for themes of Textual's own, which use the terminal's sixteen colours."""
_COLOUR: Final = re.compile(r"^(?:#[0-9a-fA-F]{6}|ansi_[a-z_]+)$")


@dataclass(slots=True)
class Themes:
    """What was found: themes by name, and a sentence for each file that is none."""

    found: dict[str, Theme] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def parse_theme(text: str) -> Theme:
    """A theme from TOML: `name` and `primary` are required, `dark`, the other colours and `[variables]` are not.

    Raises:
        ValueError: with the key and what was expected.
    """
    data = tomllib.loads(text)
    for key in ("name", "primary"):
        if not isinstance(data.get(key), str):
            raise ValueError(f"{key} is missing or no string")
    unknown = sorted(set(data) - {"name", "dark", "variables", *COLOURS})
    if unknown:
        raise ValueError(f"unknown key {unknown[0]}")
    if not isinstance(data.get("dark", True), bool):
        raise ValueError("dark must be true or false")
    colours: dict[str, str] = {key: _colour(key, data[key]) for key in COLOURS if key in data}
    variables = data.get("variables", {})
    if not isinstance(variables, dict):
        raise ValueError("variables must be a table")
    named = {str(key): _colour(f"variables.{key}", value) for key, value in variables.items()}
    dark = data.get("dark", True)
    return Theme(
        name=data["name"], dark=dark, primary=colours["primary"], secondary=colours.get("secondary"),
        warning=colours.get("warning"), error=colours.get("error"), success=colours.get("success"),
        accent=colours.get("accent"), foreground=colours.get("foreground"), background=colours.get("background"),
        surface=colours.get("surface"), panel=colours.get("panel"), variables=_derived(colours, dark) | named,
    )  # fmt: skip


def _derived(colours: dict[str, str], dark: bool) -> dict[str, str]:
    """The variables that a theme does not name, between its foreground and its background."""
    ink = Color.parse(colours.get("foreground", "#d0d0d0" if dark else "#202020"))
    paper = Color.parse(colours.get("background", "#101010" if dark else "#fafafa"))
    shades = {"bright": 0.0, "dim": 0.4, "rule": 0.72, "stale": 0.55, "rank0": 0.25, "rank2": 0.25}
    derived = {f"kimi-{name}": ink.blend(paper, share).hex for name, share in shades.items()}
    derived |= {"kimi-rank1": derived["kimi-rank0"], "kimi-rank3": derived["kimi-rank2"]}
    return derived | {"kimi-move": colours["primary"]}


def _colour(key: str, value: Any) -> str:
    if not isinstance(value, str) or not _COLOUR.match(value):
        raise ValueError(f"{key} must be a colour like #1f6feb")
    return value


def load_themes(directory: Path | None = None) -> Themes:
    """The shipped themes and the ones in `directory`, which replace shipped ones of the same name."""
    themes = Themes()
    shipped = sorted(files("kimi_console").joinpath("themes").iterdir(), key=lambda item: item.name)
    _load(themes, ((item.name, item.read_text("utf-8")) for item in shipped if item.name.endswith(".toml")))
    if directory is not None and directory.is_dir():
        for path in sorted(directory.glob("*.toml")):
            try:
                text = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                themes.warnings.append(f"theme {path} cannot be read: {error}")
                continue
            _load(themes, [(str(path), text)])
    return themes


def _load(themes: Themes, sources: Iterable[tuple[str, str]]) -> None:
    for name, text in sources:
        try:
            theme = parse_theme(text)
        except ValueError as error:
            themes.warnings.append(f"theme {name}: {error}")
            continue
        themes.found[theme.name] = theme
