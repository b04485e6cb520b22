"""Fixtures that every room may use."""

from pathlib import Path

import pytest

from kimi_console.demo.engine import Engine

CHECKOUT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the working tree."""
    return CHECKOUT


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The engine that `.engine` points to; a test that asks for it is marked `engine`."""
    found = Engine((CHECKOUT / ".engine").absolute())
    if not found.complete:
        pytest.fail("There is no engine at .engine: run `make engine`.", pytrace=False)
    return found
