"""The screen as text, and snapshots of it."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from textual.app import App

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """UTC, colours, and no themes of whoever runs the tests."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def screen_text(app: App[object]) -> str:
    """What the screen shows, without colours."""
    width, height = app.size
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=width, height=height, force_terminal=True, file=nowhere)
        console.print(app.screen._compositor.render_update(full=True, simplify=True))
        lines = console.export_text(styles=False).split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


@pytest.fixture
def seen() -> Callable[[App[object]], str]:
    """Reads the screen."""
    return screen_text


@pytest.fixture
def same(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with `snapshots/NAME.txt`; `KIMI_SNAPSHOTS=write` writes it."""

    def compare(name: str, text: str) -> None:
        path = SNAPSHOTS / f"{name}.txt"
        if os.environ.get("KIMI_SNAPSHOTS") == "write":
            path.write_text(text, "utf-8")
        assert path.exists(), f"{path} is missing: look at the screen, then run with KIMI_SNAPSHOTS=write"
        assert text == path.read_text("utf-8")

    return compare
