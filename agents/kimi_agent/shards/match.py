"""Whose rows captured rows are: held against the states that the model itself computes for the same tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from kimi_agent.counts import many

Float = npt.NDArray[np.float32]
FITS: Final = 0.25
"""Largest median distance of rows from a state, relative to their own length, at which they are that state.

Two precisions of one model differ by about 0.01, and by up to 0.2 in rows where rounding routed to another expert;
unrelated rows differ by more than 1.
"""
NEAREST: Final = 0.9
"""Share of the rows that must be nearer to their own boundary than to any other."""
FOREIGN: Final = 0.7
"""Distance at which a single row has nothing to do with what it should be."""
SHIFTED: Final = 0.5
"""As `FITS`, for tokens put back by one, whose first one is not known."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The checked rows of one sample, which begin at its first."""

    shard: str
    rid: str
    tokens: npt.NDArray[np.int64]
    """[rows]."""
    columns: Float
    """[boundaries + 1, rows, hidden]: as captured, the last state at the end."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the columns should be: indices into a reference [layers + 2, rows, hidden]."""

    boundaries: tuple[int, ...]
    layers: int

    @property
    def columns(self) -> tuple[int, ...]:
        """The reference of each column; the last state is after the final norm."""
        return (*self.boundaries, self.layers + 1)

    def name(self, index: int) -> str:
        """A state of the reference in words."""
        if index > self.layers:
            return "the state after the final norm"
        return "the state before the final norm" if index == self.layers else f"boundary {index}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with one sample; `unexplained` when no simple mistake explains it."""

    kind: str
    text: str
    unexplained: bool = False


def distances(rows: Float, reference: Float) -> Float:
    """[states, rows]: of rows [rows, hidden] from each state of a reference [states, rows, hidden], relative."""
    length = np.linalg.norm(rows, axis=1)
    with np.errstate(invalid="ignore", over="ignore"):
        far = np.linalg.norm(reference - rows, axis=2) / np.maximum(length, np.float32(1e-30))
        found: Float = np.where(np.isfinite(far), far, np.float32(np.inf))
    return found


def judge(sample: Rows, reference: Float, expected: Expected, others: Sequence[tuple[Rows, Float]]) -> list[Finding]:
    """What is wrong with a sample's rows; nothing when every column is what it should be.

    Rows that are zero or not finite are left out: they are wrong in any case.

    Args:
        sample: the captured rows.
        reference: [layers + 2, rows, hidden] of the sample's own tokens.
        expected: what the columns should be.
        others: further samples with their references, whose rows these might be.
    """
    usable = np.isfinite(sample.columns).all(axis=(0, 2)) & sample.columns.any(axis=2).all(axis=0)
    if not usable.any():
        return []
    sample = replace(sample, tokens=sample.tokens[usable], columns=sample.columns[:, usable])
    tables = [distances(column, reference[:, usable]) for column in sample.columns]
    wrong = [place for place, index in enumerate(expected.columns) if not _is(tables[place], index)]
    if not wrong:
        return _single_rows(tables, expected)
    found = {place: _recognise(tables[place]) for place in wrong}
    if None not in found.values():
        return _misplaced({place: index for place, index in found.items() if index is not None}, expected)
    for other, theirs in others:
        if other.rid != sample.rid and usable.all() and _belongs(sample, theirs, expected, wrong):
            return [Finding("swapped requests", f"the rows are those of request {other.rid}")]
    far = max(float(np.median(tables[place][expected.columns[place]])) for place in wrong)
    text = f"the rows are not what the model computes for these tokens: they are {far:.2f} of their length away from it"
    return [Finding("foreign rows", text, unexplained=True)]


def shifted(sample: Rows, reference: Float, expected: Expected) -> bool:
    """Whether the rows fit the reference of the sample's tokens put back by one."""
    medians = [
        float(np.median(distances(column, reference[index : index + 1])[0]))
        for column, index in zip(sample.columns, expected.columns, strict=True)
    ]
    return max(medians) <= SHIFTED


def _is(table: Float, index: int) -> bool:
    """Whether the rows of a distance table [states, rows] are the state `index`."""
    near = table[index] <= FITS / 4
    own = (table.argmin(axis=0) == index) | near
    return float(np.median(table[index])) <= FITS and float(own.mean()) >= NEAREST


def _recognise(table: Float) -> int | None:
    """The state that the rows are, or None."""
    best = int(np.median(table, axis=1).argmin())
    return best if _is(table, best) else None


def _belongs(sample: Rows, reference: Float, expected: Expected, wrong: Sequence[int]) -> bool:
    rows = min(reference.shape[1], sample.columns.shape[1])
    return all(
        float(np.median(distances(sample.columns[place, :rows], reference[index : index + 1, :rows])[0])) <= FITS
        for place, index in ((place, expected.columns[place]) for place in wrong)
    )


def _misplaced(found: dict[int, int], expected: Expected) -> list[Finding]:
    """Every wrong column is some other state of the same tokens."""
    findings = []
    actual = [found.get(place, index) for place, index in enumerate(expected.columns)]
    if actual[-1] != expected.columns[-1]:
        findings.append(Finding("final norm", f"the last state is {expected.name(actual[-1])}"))
    if actual[:-1] == list(expected.boundaries):
        return findings
    claimed, held = " ".join(map(str, expected.boundaries)), " ".join(map(str, actual[:-1]))
    if sorted(actual[:-1]) == sorted(expected.boundaries):
        return [*findings, Finding("aux order", f"the boundaries stand in the order {held}, labelled {claimed}")]
    steps = {index - claim for index, claim in zip(actual[:-1], expected.boundaries, strict=True)}
    how = ""
    if len(steps) == 1:
        step = steps.pop()
        how = f": {abs(step)} {'layer' if abs(step) == 1 else 'layers'} too {'late' if step > 0 else 'early'}"
    return [*findings, Finding("layer identity", f"the boundaries are {held}, labelled {claimed}{how}")]


def _single_rows(tables: Sequence[Float], expected: Expected) -> list[Finding]:
    """Rows that stand out of a column that is right otherwise."""
    far = np.max([table[index] for table, index in zip(tables, expected.columns, strict=True)], axis=0)
    bad = np.flatnonzero(far > FOREIGN)
    if not len(bad):
        return []
    rows = many(len(bad), "row is", "rows are")
    text = f"{rows} not what the model computes for these tokens, row {int(bad[0])} the first"
    return [Finding("foreign rows", text)]
