"""What a shard's rows hold: accounts, positions, non-finite values, zero rows, statistics."""

from collections.abc import Iterator
from math import isclose

import numpy as np
import numpy.typing as npt

from kimi_agent.counts import many
from kimi_capture.format import Array, Sample, Shard, to_float32
from kimi_capture.statistics import Statistics, shard_moments, shard_statistics

BLOCK_BYTES = 8 << 20
"""Size of the float32 blocks in which rows are looked through."""
NAMED = 3
"""So many samples of one kind are named; the rest are counted."""


def columns(shard: Shard) -> dict[str, Array]:
    """Each boundary's states and the last's, [N, H], by name."""
    aux = shard.aux_hidden_states
    named = {str(boundary): aux[:, column] for column, boundary in enumerate(shard.meta.boundaries)}
    return {**named, "last": shard.last_hidden_state}


def check_content(shard: Shard) -> Iterator[tuple[str, str]]:
    """(kind, text) of everything that is wrong with the rows of an opened shard."""
    yield from _summed("first chunk", _check_starts(shard))
    yield from _summed("rows", _check_rows(shard))
    yield from _summed("positions", _check_positions(shard))
    yield from _summed("duplicate request", _check_requests(shard))
    with np.errstate(invalid="ignore"):  # a damaged value may be a signalling NaN
        numbers = count(shard)
    for name, states in columns(shard).items():
        found = numbers[name]
        if found.non_finite or found.zero_rows:
            yield from _bad_rows(shard, name, states, found)
        stored = shard.meta.statistics.get(name)
        if stored is None or not _same(found, stored):
            says = "says nothing of them" if stored is None else f"says {_spelled(stored)}"
            yield "statistics", f"statistics of {_where(name)} are {_spelled(found)}, the shard {says}"


def count(shard: Shard) -> dict[str, Statistics]:
    """The statistics of a shard's rows as they are now, by boundary and `last`."""
    states = list(columns(shard).values())
    moments = shard_moments(shard.aux_hidden_states, shard.last_hidden_state)
    return shard_statistics(moments, list(columns(shard)), lambda row, column: states[column][row])


def row_faults(states: Array) -> tuple[np.ndarray, np.ndarray]:
    """Which rows of [N, H] states hold a non-finite value, and which are zero throughout: two [N] bool arrays."""
    rows, width = states.shape
    step = max(1, BLOCK_BYTES // max(4 * width, 1))
    broken, zero = np.zeros(rows, bool), np.zeros(rows, bool)
    for first in range(0, rows, step):
        with np.errstate(invalid="ignore"):
            block = to_float32(states[first : first + step])
            broken[first : first + step] = ~np.isfinite(block).all(axis=1)
            zero[first : first + step] = ~block.any(axis=1)
    return broken, zero


def bad_rows(shard: Shard, sample: Sample, offset: int) -> int:
    """How many rows of a sample, from row `offset` on, cannot be right: not finite, all zero or out of place."""
    rows = slice(offset, offset + sample.rows)
    bad = wrong_positions(shard.positions[rows], sample)
    for states in columns(shard).values():
        broken, zero = row_faults(states[rows])
        bad |= broken | zero
    return int(bad.sum())


def _summed(kind: str, texts: Iterator[str]) -> Iterator[tuple[str, str]]:
    found = list(texts)
    for text in found[:NAMED]:
        yield kind, text
    if len(found) > NAMED:
        yield kind, f"{len(found) - NAMED} more samples have the same fault"


def _check_starts(shard: Shard) -> Iterator[str]:
    for sample, first in zip(shard.meta.samples, shard.sample_offsets.tolist(), strict=False):
        positions = shard.positions[first : first + sample.rows]
        if _start(positions, sample):
            yield f"request {sample.rid} begins at position {positions[0]}: the rows of its first chunk are missing"


def _start(positions: Array, sample: Sample) -> int:
    """How many first rows a sample lacks without saying so, when it lacks nothing else; 0 otherwise."""
    start = int(positions[0]) if len(positions) else 0
    whole = start > 0 and not sample.missing and np.array_equal(positions, start + np.arange(len(positions)))
    return start if whole else 0


def _check_rows(shard: Shard) -> Iterator[str]:
    for sample in shard.meta.samples:
        expected = sample.prompt_tokens + sample.output_tokens - 1 - sum(sample.missing.values())
        if sample.rows != expected:
            counts = f"{sample.prompt_tokens} prompt + {sample.output_tokens} output tokens − 1"
            yield f"request {sample.rid} has {many(sample.rows, 'row')}, expected {expected} ({counts} − missing)"


def _check_positions(shard: Shard) -> Iterator[str]:
    for sample, first in zip(shard.meta.samples, shard.sample_offsets.tolist(), strict=False):
        positions = shard.positions[first : first + sample.rows]
        wrong = wrong_positions(positions, sample)
        if wrong.any() and not _start(positions, sample):
            row = int(wrong.argmax())
            yield f"request {sample.rid} has position {positions[row]} at its row {row}"


def wrong_positions(positions: Array, sample: Sample) -> npt.NDArray[np.bool_]:
    """Which positions are out of place: they are 0..n−1 or, with rows missing, rise from 0 or later. [n] bool."""
    if sample.missing:
        return np.diff(positions, prepend=-1) <= 0
    return np.not_equal(positions, np.arange(len(positions)))


def _check_requests(shard: Shard) -> Iterator[str]:
    seen: set[str] = set()
    for sample in shard.meta.samples:
        if sample.rid in seen:
            yield f"request {sample.rid} is in it twice"
        seen.add(sample.rid)


def _bad_rows(shard: Shard, name: str, states: Array, found: Statistics) -> Iterator[tuple[str, str]]:
    broken, zero = row_faults(states)
    if found.non_finite:
        values = many(found.non_finite, f"value of {_where(name)} is", f"values of {_where(name)} are")
        text = f"{values} not finite, in {many(int(broken.sum()), 'row')}"
        yield "non-finite", f"{text}, first {_place(shard, broken)}"
    if found.zero_rows:
        text = f"{many(found.zero_rows, f'row of {_where(name)} is', f'rows of {_where(name)} are')} all zero"
        yield "zero rows", f"{text}, first {_place(shard, zero)}"


def _place(shard: Shard, bad: np.ndarray) -> str:
    row = int(bad.argmax())
    sample = int(np.searchsorted(shard.sample_offsets, row, side="right")) - 1
    return f"row {row - int(shard.sample_offsets[sample])} of request {shard.meta.samples[sample].rid}"


def _where(name: str) -> str:
    return "the last state" if name == "last" else f"boundary {name}"


def _same(found: Statistics, stored: Statistics) -> bool:
    if (found.cosine_before is None) != (stored.cosine_before is None):
        return False
    cosines = (found.cosine_before or 0.0, stored.cosine_before or 0.0)
    near = isclose(found.rms, stored.rms, rel_tol=1e-4) and isclose(*cosines, abs_tol=1e-4)  # another order of sums
    return near and _counted(found) == _counted(stored)


def _counted(numbers: Statistics) -> tuple[float, int, int, int]:
    return numbers.max_abs, numbers.non_finite, numbers.zero_rows, numbers.duplicate_rows


def _spelled(numbers: Statistics) -> str:
    return (
        f"rms {numbers.rms:.5g}, max {numbers.max_abs:.5g}, "
        f"{numbers.non_finite} non-finite, {numbers.zero_rows} zero rows, {numbers.duplicate_rows} duplicate rows"
        + ("" if numbers.cosine_before is None else f", cosine to the boundary before {numbers.cosine_before:.4f}")
    )
