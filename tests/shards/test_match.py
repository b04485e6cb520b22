"""Whose rows captured rows are, on states that behave like a model's: every boundary adds something to the last."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_agent.shards.match import Expected, Finding, Rows, judge, shifted

LAYERS, HIDDEN = 6, 32
EXPECTED = Expected((2, 3, 4), LAYERS)
Float = npt.NDArray[np.float32]


def reference(seed: int, rows: int = 20) -> Float:
    """[layers + 2, rows, hidden]: a residual stream, and its normed end."""
    random = np.random.default_rng(seed)
    steps = random.normal(size=(LAYERS + 1, rows, HIDDEN)).astype(np.float32)
    stream = np.cumsum(steps, axis=0)
    last = stream[-1] / np.sqrt(np.square(stream[-1]).mean(axis=1, keepdims=True))
    return np.concatenate([stream, last[None]])


def sample(states: Float, rid: str = "r", noise: float = 0.01, columns: tuple[int, ...] = EXPECTED.columns) -> Rows:
    """What a capture of these states in bf16 would hold."""
    captured = states[list(columns)]
    jitter = np.random.default_rng(99).normal(size=captured.shape).astype(np.float32)
    return Rows("s", rid, np.arange(states.shape[1]), captured * (1 + noise * jitter))


def kinds(findings: list[Finding]) -> list[str]:
    return [finding.kind for finding in findings]


@given(st.integers(0, 1000), st.floats(0, 0.05), st.integers(1, 60))
@settings(max_examples=40)
def test_rows_of_their_own_are_never_a_fault(seed: int, noise: float, rows: int) -> None:
    states = reference(seed, rows)
    assert judge(sample(states, noise=noise), states, EXPECTED, []) == []


@given(st.integers(0, 1000), st.permutations([2, 3, 4]))
@settings(max_examples=40)
def test_any_other_order_is_named(seed: int, order: list[int]) -> None:
    states = reference(seed)
    found = judge(sample(states, columns=(*order, LAYERS + 1)), states, EXPECTED, [])
    assert kinds(found) == ([] if order == [2, 3, 4] else ["aux order"])
    assert all(" ".join(map(str, order)) in finding.text for finding in found)


@pytest.mark.parametrize(("step", "words"), [(1, "1 layer too late"), (-1, "1 layer too early"), (2, "2 layers too")])
def test_layers_too_late_or_early(step: int, words: str) -> None:
    states = reference(1)
    columns = (*(boundary + step for boundary in EXPECTED.boundaries), LAYERS + 1)
    (found,) = judge(sample(states, columns=columns), states, EXPECTED, [])
    assert found.kind == "layer identity"
    assert words in found.text


def test_one_wrong_boundary_is_named_with_what_it_is() -> None:
    states = reference(2)
    (found,) = judge(sample(states, columns=(2, 3, 5, LAYERS + 1)), states, EXPECTED, [])
    assert (found.kind, found.text) == ("layer identity", "the boundaries are 2 3 5, labelled 2 3 4")


def test_the_state_before_the_norm_and_a_wrong_layer_are_two_findings() -> None:
    states = reference(3)
    found = judge(sample(states, columns=(3, 4, 5, LAYERS)), states, EXPECTED, [])
    assert kinds(found) == ["final norm", "layer identity"]


def test_rows_of_another_request_are_traced_to_it() -> None:
    mine, theirs = reference(4), reference(5, 26)
    others = [(sample(mine, "mine"), mine), (sample(theirs, "theirs"), theirs)]
    captured = replace(sample(theirs[:, :20], "mine"), rid="mine")
    (found,) = judge(captured, mine, EXPECTED, others)
    assert (found.kind, found.text) == ("swapped requests", "the rows are those of request theirs")


def test_unknown_rows_are_foreign_and_ask_for_another_look() -> None:
    states = reference(6)
    (found,) = judge(sample(reference(7)), states, EXPECTED, [])
    assert (found.kind, found.unexplained) == ("foreign rows", True)
    assert shifted(sample(reference(7)), reference(7), EXPECTED)
    assert not shifted(sample(reference(7)), states, EXPECTED)


def test_a_single_foreign_row_in_a_right_sample() -> None:
    states = reference(8, 40)
    captured = sample(states)
    captured.columns[1, 17] = -captured.columns[1, 17]
    (found,) = judge(captured, states, EXPECTED, [])
    assert found.text == "1 row is not what the model computes for these tokens, row 17 the first"


def test_rows_that_are_broken_are_left_to_the_other_checks() -> None:
    states = reference(9)
    captured = sample(states)
    captured.columns[0, 3] = 0
    captured.columns[2, 5, 1] = np.nan
    assert judge(captured, states, EXPECTED, []) == []
    captured.columns[:] = np.nan
    assert judge(captured, states, EXPECTED, []) == []
