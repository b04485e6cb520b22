"""Links that are cut while a log grows by thousands of lines a second: every event arrives once."""

import os
from collections.abc import Iterator

import pytest

from .conftest import Sshd
from .storm import FarNetwork, far_network, storm, whole_lines

RATE = 5000


@pytest.fixture
def network() -> Iterator[FarNetwork]:
    """A network of its own for the server; a test asks for it before the server, which ends before it."""
    if os.geteuid() != 0:
        pytest.fail("This test makes a network namespace: run it as root, in a container.", pytrace=False)
    with far_network() as network:
        yield network


async def test_ten_cuts_lose_and_double_nothing(network: FarNetwork, sshd: Sshd) -> None:
    sshd.move(network.name, network.address)
    kinds = ["killed"] * 3 + ["dropped", "killed", "restarted", "killed", "dropped", "restarted", "killed"]
    weather = await storm(sshd, network, kinds, RATE)
    ledger = weather.ledger
    assert (ledger.lost, ledger.doubled, ledger.gaps, ledger.wrong) == (0, 0, 0, [])
    assert ledger.lines == whole_lines(weather.home)
    assert dict(weather.cuts) == {"killed": 6, "dropped": 2, "restarted": 2}


@pytest.mark.long
async def test_sixty_cuts_cost_the_agent_no_memory(network: FarNetwork, sshd: Sshd) -> None:
    sshd.move(network.name, network.address)
    weather = await storm(sshd, network, (["killed"] * 8 + ["restarted", "dropped"]) * 6, RATE)
    ledger = weather.ledger
    assert (ledger.lost, ledger.doubled, ledger.gaps, ledger.wrong) == (0, 0, 0, [])
    assert ledger.lines == whole_lines(weather.home)
    settled = weather.memory[len(weather.memory) // 3 :]
    assert settled[-1] - settled[0] < 8


async def test_an_agent_killed_three_times_under_load_goes_on_where_it_was(network: FarNetwork, sshd: Sshd) -> None:
    sshd.move(network.name, network.address)
    weather = await storm(sshd, network, ["agent"] * 3, RATE)
    ledger = weather.ledger
    assert (ledger.lost, ledger.doubled, ledger.gaps, ledger.wrong) == (0, 0, 0, [])
    assert ledger.lines == whole_lines(weather.home)
