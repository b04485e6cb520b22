"""A real agent daemon in a home of its own; it ends with the test."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kimi_agent.daemon import connect
from kimi_agent.paths import Home
from kimi_agent.wire.client import Client

from .small_disk import SmallDisk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Where the home will be."""
    if os.geteuid() != 0:
        pytest.fail("A disk of its own needs root, to mount one: run this test as root.", pytrace=False)
    disk = SmallDisk(tmp_path / "home")
    yield disk
    disk.remove()


@pytest.fixture
def home(tmp_path: Path, end_agent: Callable[[Home], None]) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    end_agent(home)


@pytest.fixture
def servers_memory() -> Callable[[], set[Path]]:
    """The shared memory that servers have now; other tests that run meanwhile make some with names of their own."""
    kinds = ("sglang_loads_????????????_*", "sgl_shm_mq_*")
    return lambda: {path for kind in kinds for path in Path("/dev/shm").glob(kind)}


@pytest.fixture
def dial(home: Home) -> Iterator[Callable[[], Client]]:
    """Connect to the home's agent, started on the first call."""
    clients: list[Client] = []

    def connect_once() -> Client:
        clients.append(connect(home, start=True))
        return clients[-1]

    yield connect_once
    for client in clients:
        client.close()
