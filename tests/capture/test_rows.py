"""The accounts of rows: what is kept, what is missing and why, for every way a request can go."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_capture.rows import (
    ABORTED,
    DUMP_STOPPED,
    PREFIX_HIT,
    ROWS_MISSING,
    STAGING_FULL,
    STARTED_BEFORE,
    Ledger,
    Piece,
)


def positions(pieces: list[Piece]) -> list[int]:
    return [position for piece in pieces for position in range(piece.start, piece.start + piece.length)]


def balanced(ledger: Ledger) -> bool:
    return ledger.served == ledger.captured + sum(ledger.missing.values())


def opened() -> Ledger:
    ledger = Ledger()
    ledger.open()
    return ledger


def test_chunks_and_decode_steps_become_one_request() -> None:
    ledger = opened()
    assert [piece.offset for piece in ledger.step([("a", 0, 4), ("b", 0, 2)])] == [0, 4]
    assert [piece.offset for piece in ledger.step([("b", 2, 1), ("a", 4, 3)])] == [0, 1]
    ledger.step([("a", 7, 1)])
    pieces = ledger.finish("a", 7, 2)
    assert pieces is not None
    assert positions(pieces) == [*range(8)]
    assert positions(ledger.finish("b", 2, 2) or []) == [0, 1, 2]
    assert (ledger.served, ledger.captured, +ledger.missing) == (11, 11, {})


def test_a_row_after_the_end_is_cut() -> None:
    ledger = opened()
    ledger.step([("a", 0, 3)])
    ledger.step([("a", 3, 1)])
    assert positions(ledger.finish("a", 3, 1) or []) == [0, 1, 2]
    assert (ledger.served, ledger.captured) == (3, 3)


def test_a_request_without_output_has_its_prompts_rows() -> None:
    ledger = opened()
    ledger.step([("a", 0, 5)])
    assert positions(ledger.finish("a", 5, 0) or []) == [*range(5)]


def test_a_retracted_request_is_overwritten_by_position() -> None:
    ledger = opened()
    ledger.step([("a", 0, 4)])
    ledger.step([("a", 4, 1)])
    second = ledger.step([("a", 0, 3)]) + ledger.step([("a", 3, 2)])
    assert ledger.served == 5
    assert ledger.finish("a", 4, 2) == second
    assert (ledger.served, ledger.captured) == (5, 5)


def test_a_retracted_request_may_keep_a_cached_prefix() -> None:
    ledger = opened()
    ledger.step([("a", 0, 6)])
    ledger.step([("a", 4, 3)])
    pieces = ledger.finish("a", 6, 2)
    assert pieces is not None
    assert [(piece.start, piece.length) for piece in pieces] == [(0, 4), (4, 3)]


@pytest.mark.parametrize(
    ("first", "reason", "missing"), [(("a", 39, 1), PREFIX_HIT, 40), (("a", 0, 40), STAGING_FULL, 40)]
)
def test_a_request_that_cannot_be_kept_is_missing_whole(first: tuple[str, int, int], reason: str, missing: int) -> None:
    ledger = opened()
    assert ledger.step([first], refuse=STAGING_FULL) == []
    assert ledger.step([("a", 40, 1)]) == []
    assert ledger.finish("a", 40, 2) is None
    assert (ledger.captured, +ledger.missing) == (0, {reason: missing + 1})


def test_a_request_in_flight_at_the_start_is_missing_from_then_on() -> None:
    ledger = Ledger()
    ledger.step([("a", 0, 10)])
    ledger.open()
    ledger.step([("a", 10, 1)])
    assert ledger.finish("a", 10, 2) is None
    assert +ledger.missing == {STARTED_BEFORE: 1}


def test_an_abort_loses_what_was_kept() -> None:
    ledger = opened()
    ledger.step([("a", 0, 10), ("b", 0, 1)])
    ledger.abort("a")
    assert (ledger.captured, +ledger.missing) == (1, {ABORTED: 10})


def test_a_health_check_is_nobodys_data() -> None:
    ledger = opened()
    assert [piece.offset for piece in ledger.step([("HEALTH_CHECK_1", 0, 1), ("a", 0, 2)])] == [1]
    assert ledger.finish("HEALTH_CHECK_1", 1, 1) is None
    assert ledger.served == 2


def test_what_has_not_ended_when_the_dump_stops_is_missing() -> None:
    ledger = opened()
    ledger.step([("a", 0, 4)])
    ledger.close()
    ledger.step([("a", 4, 1), ("late", 0, 7)])
    assert ledger.in_flight == 1
    ledger.give_up(DUMP_STOPPED)
    assert ledger.step([("a", 5, 1)]) == []
    assert (ledger.in_flight, ledger.served, +ledger.missing) == (0, 5, {DUMP_STOPPED: 5})


def test_a_hole_is_never_written_as_good() -> None:
    ledger = opened()
    ledger.step([("a", 0, 4)])
    ledger.step([("a", 5, 1)])
    assert ledger.finish("a", 4, 3) is None
    assert +ledger.missing == {ROWS_MISSING: 6}
    assert ledger.violations


def test_too_few_rows_are_never_written_as_good() -> None:
    ledger = opened()
    ledger.step([("a", 0, 4)])
    assert ledger.finish("a", 4, 3) is None
    assert (ledger.served, +ledger.missing) == (6, {ROWS_MISSING: 6})
    assert ledger.violations


@dataclass
class Life:
    """One request as the engine might run it: its steps, and how it ends."""

    rid: str
    prompt: int
    output: int
    steps: list[tuple[int, int]]
    aborted: bool
    latest: dict[int, int] = field(default_factory=dict)
    """The step that computed each position last."""


@st.composite
def lives(draw: st.DrawFn, rid: str) -> Life:
    prompt, output, chunk = draw(st.integers(1, 12)), draw(st.integers(1, 6)), draw(st.integers(1, 5))
    steps: list[tuple[int, int]] = []

    def prefill(end: int) -> None:
        steps.extend((start, min(chunk, end - start)) for start in range(0, end, chunk))

    prefill(prompt)
    for position in range(prompt, prompt + output - 1):
        if draw(st.integers(0, 4)) == 0:
            prefill(position)
        steps.append((position, 1))
    if draw(st.booleans()):
        steps.append((prompt + output - 1, 1))
    aborted = draw(st.booleans())
    if aborted:
        steps = steps[: draw(st.integers(1, len(steps)))]
    return Life(rid, prompt, output, steps, aborted)


@st.composite
def traffic(draw: st.DrawFn) -> tuple[list[Life], list[list[int]]]:
    """Requests, and for each engine step the requests that are in it, in order."""
    requests = [draw(lives(f"r{number}")) for number in range(draw(st.integers(1, 4)))]
    left = [len(request.steps) for request in requests]
    batches = []
    while any(left):
        waiting = [number for number, count in enumerate(left) if count]
        batch = draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True))
        for number in batch:
            left[number] -= 1
        batches.append(batch)
    return requests, batches


@given(traffic())
@settings(max_examples=300)
def test_every_row_is_accounted_for_in_any_traffic(case: tuple[list[Life], list[list[int]]]) -> None:
    requests, batches = case
    ledger = opened()
    done = [0] * len(requests)
    for step, batch in enumerate(batches):
        entries = []
        for number in batch:
            life = requests[number]
            start, length = life.steps[done[number]]
            done[number] += 1
            entries.append((life.rid, start, length))
            life.latest |= dict.fromkeys(range(start, start + length), step)
        for piece in ledger.step(entries):
            piece.rows = (step, piece.start)
        assert balanced(ledger)
        for number in batch:
            if done[number] == len(requests[number].steps):
                end(ledger, requests[number])
                assert balanced(ledger)
    kept = sum(life.prompt + life.output - 1 for life in requests if not life.aborted)
    lost = sum(max(start + length for start, length in life.steps) for life in requests if life.aborted)
    assert (ledger.captured, +ledger.missing) == (kept, {ABORTED: lost} if lost else {})
    assert ledger.violations == []


def end(ledger: Ledger, life: Life) -> None:
    if life.aborted:
        ledger.abort(life.rid)
        return
    pieces = ledger.finish(life.rid, life.prompt, life.output)
    assert pieces is not None
    assert positions(pieces) == [*range(life.prompt + life.output - 1)]
    for piece in pieces:
        assert isinstance(piece.rows, tuple)
        for position in range(piece.start, piece.start + piece.length):
            assert piece.rows[0] == life.latest[position]
