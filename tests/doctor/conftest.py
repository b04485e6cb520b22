"""Fixtures of this room."""

import os
from pathlib import Path

import pytest

from kimi_console.demo.engine import Engine


@pytest.fixture
def py_spy(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The engine's py-spy, on the PATH: an agent finds it beside its own Python, which here is the console's."""
    monkeypatch.setenv("PATH", f"{engine.python.parent}{os.pathsep}{os.environ['PATH']}")
    return engine.python.parent / "py-spy"
