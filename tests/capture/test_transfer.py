"""When rows set out for the host: behind the engine's results, but never not at all."""

import threading
from typing import Any

import pytest

from kimi_capture import transfer
from kimi_capture.transfer import Transfer

from .conftest import by_engine


class Moment:
    """What a CUDA event is to a host: something that has happened or has not."""

    happened = False

    def query(self) -> bool:
        return self.happened


class Way:
    """A transfer, when its slot has the rows, and when the host has them."""

    def __init__(self) -> None:
        self.taken, self.copied = Moment(), Moment()
        self.asked = 0
        rows: Any = self._start
        taken: Any = self.taken
        self.transfer = Transfer(taken, rows)

    def _start(self) -> Moment:
        self.asked += 1
        return self.copied


@pytest.fixture
def way() -> Way:
    return Way()


def test_rows_that_are_waited_for_set_out_when_the_engine_took_its_results(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "GRACE", 3600.0)
    assert not way.transfer.advance()
    way.taken.happened = True
    assert not way.transfer.advance()
    assert (way.transfer.taken, way.asked) == (True, 0), "the engine comes first"
    way.transfer.begin()
    assert not way.transfer.advance()
    way.copied.happened = True
    assert way.transfer.advance()
    assert way.asked == 1


def test_rows_set_out_by_themselves_when_the_engine_takes_no_results(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "GRACE", 0.0)
    way.copied.happened = True
    assert not way.transfer.advance()
    assert way.asked == 0, "nothing sets out before it is there"
    way.taken.happened = True
    assert way.transfer.advance()
    assert way.asked == 1


def test_many_who_begin_begin_one_copy_and_what_it_held_is_let_go(way: Way) -> None:
    threads = [threading.Thread(target=way.transfer.begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert way.asked == 1
    assert way.transfer._start is None  # a slot keeps its last transfer; the host memory must not stay with it


@pytest.mark.engine
@pytest.mark.parametrize("hidden", [64, 7])
def test_rows_that_go_over_a_device_come_to_their_requests_and_their_memory_comes_back(hidden: int) -> None:
    result = by_engine("on_device.py", hidden)
    assert (result.returncode, result.stdout) == (0, "all there\n"), result.stderr
