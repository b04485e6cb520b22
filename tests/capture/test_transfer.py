"""When rows set out for the host: behind the engine's results, but never not at all."""

import threading
from typing import Any

from kimi_capture import transfer
from kimi_capture.transfer import Transfer


class Moment:
    """What a CUDA event is to a host: something that has happened or has not, and can be waited for."""

    def __init__(self) -> None:
        self._happened = threading.Event()

    def happen(self) -> None:
        self._happened.set()

    def query(self) -> bool:
        return self._happened.is_set()

    def synchronize(self) -> None:
        assert self._happened.wait(30)


def a_transfer(*, asked: list[str]) -> tuple[Any, Any, Any]:
    """A transfer, when the slot has its rows, and when the host has them."""
    taken, copied = Moment(), Moment()

    def start() -> Any:
        asked.append("copy")
        return copied

    return Transfer(taken, start), taken, copied


def in_a_thread(one: Transfer) -> threading.Thread:
    waiter = threading.Thread(target=one.wait)
    waiter.start()
    return waiter


def test_rows_that_are_waited_for_set_out_when_the_engine_took_its_results(monkeypatch: Any) -> None:
    monkeypatch.setattr(transfer, "GRACE", 3600.0)
    asked: list[str] = []
    one, taken, copied = a_transfer(asked=asked)
    waiter = in_a_thread(one)
    taken.happen()
    assert one.taken
    assert not asked
    assert one.begin() is copied
    copied.happen()
    waiter.join(30)
    assert not waiter.is_alive()
    assert asked == ["copy"]


def test_rows_set_out_by_themselves_when_the_engine_takes_no_results(monkeypatch: Any) -> None:
    monkeypatch.setattr(transfer, "GRACE", 0.0)
    asked: list[str] = []
    one, taken, copied = a_transfer(asked=asked)
    copied.happen()
    waiter = in_a_thread(one)
    assert not asked, "nothing sets out before it is there"
    taken.happen()
    waiter.join(30)
    assert not waiter.is_alive()
    assert asked == ["copy"]


def test_many_who_begin_begin_one_copy_and_what_it_held_is_let_go() -> None:
    asked: list[str] = []
    one, _, copied = a_transfer(asked=asked)
    threads = [threading.Thread(target=one.begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert asked == ["copy"]
    assert one.begin() is copied
    assert one._start is None  # a slot keeps its last transfer; the host memory must not stay with it
