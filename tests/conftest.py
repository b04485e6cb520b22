"""Fixtures that every room may use."""

import signal
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from kimi_agent.errors import KimiError
from kimi_agent.paths import Home
from kimi_agent.wire.client import Client
from kimi_console.demo.engine import Engine

CHECKOUT = Path(__file__).parent.parent

# On a shared machine an example may take any time: what is asserted is what the code does, not how fast. Examples that
# share a test's directory overwrite what they find there.
settings.register_profile(
    "shared", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("shared")

# A shell starts what it runs in the background deaf to Ctrl-C, and every child of ours would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(scope="session")
def end_agent() -> Callable[[Home], None]:
    """`stop_agent`, for rooms that cannot import this file."""
    return stop_agent


def stop_agent(home: Home) -> None:
    """End what runs in a home, server and agent, and wait until both are gone; a home where nothing runs is left."""
    with suppress(OSError), closing(Client(home.socket)) as client:
        with suppress(KimiError):  # no server, or one that has just ended
            client.request("stop")
        with suppress(psutil.NoSuchProcess):
            agent = psutil.Process(client.hello["pid"])
            client.request("shutdown")
            agent.wait(30)
