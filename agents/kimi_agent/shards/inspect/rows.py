"""One sample's rows: read a slice at a time, then told by layer, by token, and as histograms."""

from itertools import pairwise
from math import isfinite
from time import monotonic
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kimi_agent.shards.content import columns
from kimi_agent.shards.inspect import suspects
from kimi_agent.shards.tokens import Vocabulary
from kimi_agent.text import clean
from kimi_capture.format import Array, Sample, Shard, to_float32
from kimi_capture.statistics import NON_FINITE, SQUARES, shard_moments, shard_statistics

CHUNK: Final = 8 << 20
"""Bytes of states that are read between two looks at the clock."""
HEAT: Final = 400
"""Cells of the heat row at most: tokens that share one show the largest norm."""
BINS: Final = 24
VALUE_ROWS: Final = 64
"""Rows, spread evenly, whose values stand for all in the histogram of values."""
TOKENS: Final = 2000
"""Tokens of one answer."""
Float = npt.NDArray[np.float64]


def sample_facts(sample: Sample) -> dict[str, Any]:
    """What a shard says of one of its requests; strings are made harmless."""
    return {
        "rid": clean(sample.rid, 200),
        "prompt_tokens": sample.prompt_tokens,
        "output_tokens": sample.output_tokens,
        "rows": sample.rows,
        "finish_reason": clean(sample.finish_reason, 200),
        "missing": {clean(reason, 200): rows for reason, rows in sample.missing.items()},
    }


class SampleRows:
    """One sample of an open shard.

    Attributes:
        done: rows that were read.
        moments: [rows, layers, 4] of these, see `kimi_capture.statistics`.
    """

    def __init__(self, shard: Shard, place: int) -> None:
        self.sample = shard.meta.samples[place]
        first = int(shard.sample_offsets[place])
        rows = slice(first, first + self.sample.rows)
        self.names = tuple(columns(shard))
        self.aux, self.last = shard.aux_hidden_states[rows], shard.last_hidden_state[rows]
        self.tokens, self.positions = shard.token_ids[rows], shard.positions[rows]
        self.done = 0
        self.moments: Float = np.zeros((self.sample.rows, len(self.names), 4))
        self._equal = np.zeros((self.sample.rows, len(self.names)), bool)
        self._flags: tuple[int, suspects.Flags] = (-1, np.zeros((0, len(self.names)), np.uint8))

    @property
    def rows(self) -> int:
        return len(self.tokens)

    def states(self, column: int) -> Array:
        """[rows, H] of a layer."""
        return self.aux[:, column] if column < self.aux.shape[1] else self.last

    def step(self, seconds: float) -> bool:
        """Read rows for about so long; whether there are more."""
        end = monotonic() + seconds
        height = max(1, CHUNK // max(1, self.last.itemsize * self.last.shape[1] * len(self.names)))
        while self.done < self.rows:
            chunk = slice(self.done, min(self.done + height, self.rows))
            with np.errstate(invalid="ignore"):  # a damaged value may be a signalling NaN
                self.moments[chunk] = shard_moments(self.aux[chunk], self.last[chunk])
                for column in range(len(self.names)):
                    known = slice(0, chunk.stop)
                    self._equal[chunk, column] = suspects.equal_to_before(
                        self.states(column)[known], self.moments[known, column], chunk.start
                    )
            self.done = chunk.stop
            if monotonic() > end:
                break
        return self.done < self.rows

    @property
    def flags(self) -> suspects.Flags:
        """[done, layers] what is wrong with the rows that were read."""
        if self._flags[0] != self.done:
            read = slice(0, self.done)
            found = suspects.row_flags(
                self.moments[read], self._equal[read], tokens=self.tokens[read], positions=self.positions[read],
                sample=self.sample, names=self.names,
            )  # fmt: skip
            self._flags = (self.done, found)
        return self._flags[1]

    @property
    def bad(self) -> int:
        """How many of the rows that were read cannot be right."""
        return int((self.flags & suspects.BAD).any(axis=1).sum())

    def norms(self, column: int) -> Float:
        """[done] Euclidean norm of the rows at a layer; NaN where the row is not finite."""
        moments = self.moments[: self.done, column]
        return np.where(moments[:, NON_FINITE] == 0, np.sqrt(moments[:, SQUARES]), np.nan)

    def facts(self, layer: str | None) -> dict[str, Any]:
        """What is known of the sample so far, by layer, and the heat row and histograms of one layer."""
        column = self.names.index(layer) if layer in self.names else len(self.names) - 1
        sample, flags = self.sample, self.flags
        with np.errstate(invalid="ignore"):
            numbers = shard_statistics(
                self.moments[: self.done], self.names, lambda row, place: self.states(place)[row]
            )
        return {
            **sample_facts(sample),
            "read": self.done,
            "layer": self.names[column],
            "layers": {
                name: {
                    "rms": entry.rms, "max_abs": entry.max_abs, "non_finite": entry.non_finite,
                    "zero_rows": entry.zero_rows, "duplicate_rows": entry.duplicate_rows,
                    "cosine_before": entry.cosine_before,
                }
                for name, entry in numbers.items()
            },
            "bad_rows": self.bad,
            "outliers": int((flags & suspects.OUTLIER).any(axis=1).sum()),
            "heat": self._heat(column),
            "norms": histogram(self.norms(column)),
            "values": value_histogram(self.states(column)),
        }  # fmt: skip

    def lines(self, first: int, count: int, words: Vocabulary) -> list[dict[str, Any]]:
        """`count` tokens from the `first` on; norms are None where the rows were not read yet or are not finite."""
        last = min(first + count, self.rows)
        norms = np.full((last - first, len(self.names)), np.nan)
        ready = max(0, min(last, self.done) - first)
        for column in range(len(self.names)):
            norms[:ready, column] = self.norms(column)[first : first + ready]
        flags = self.flags[first : first + ready]
        return [
            {
                "id": int(self.tokens[first + place]),
                "text": words.piece(int(self.tokens[first + place])),
                "position": int(self.positions[first + place]),
                "norm": [float(f"{value:.5g}") if isfinite(value) else None for value in norms[place].tolist()],
                "mark": _mark(flags[place]) if place < ready else None,
                "why": self.why(first + place) if place < ready else "",
            }
            for place in range(max(0, last - first))
        ]

    def why(self, row: int) -> str:
        """What is wrong with a row that was read; empty when nothing is."""
        return suspects.words(self.flags[row], self.names, int(self.positions[row]))

    def mark(self, row: int) -> str:
        """`!` where a row that was read cannot be right, `^` where it stands out, else a space."""
        return _mark(self.flags[row])

    def next_bad(self, row: int, step: int) -> int | None:
        """The next row after, or with step −1 before, a row that cannot be right or stands out."""
        found = np.flatnonzero(self.flags.any(axis=1))
        ahead = found[found > row] if step > 0 else found[found < row][::-1]
        return int(ahead[0]) if len(ahead) else None

    def _heat(self, column: int) -> dict[str, Any]:
        """The whole sample in at most `HEAT` cells: the largest norm of each cell's tokens, and their worst mark."""
        norms, flags = self.norms(column), self.flags
        marked = flags.any(axis=1)
        plain = norms[~marked & np.isfinite(norms)]
        bounds = np.unique(np.linspace(0, self.rows, min(HEAT, self.rows) + 1).astype(int)).tolist()
        cells, marks = [], []
        for begin, end in pairwise(bounds):
            held = norms[begin:end]
            held = held[np.isfinite(held)]
            cells.append(float(f"{held.max():.4g}") if len(held) else None)
            marks.append(_mark(np.bitwise_or.reduce(flags[begin:end], axis=0)) if begin < self.done else " ")
        low, high = (float(plain.min()), float(plain.max())) if len(plain) else (0.0, 0.0)
        return {"cells": cells, "marks": "".join(marks), "low": low, "high": high}


def bad_by_sample(shard: Shard) -> npt.NDArray[np.int64]:
    """[samples] how many rows of each sample of a shard cannot be right; reads all of its rows."""
    counts = []
    for place in range(len(shard.meta.samples)):
        sample = SampleRows(shard, place)
        sample.step(float("inf"))
        counts.append(sample.bad)
    return np.array(counts, np.int64)


def histogram(values: Float) -> dict[str, Any]:
    """Finite values above 0 in `BINS` bins of equal width in logarithms: {"low", "high", "counts"}."""
    usable = values[np.isfinite(values) & (values > 0)]
    if not len(usable):
        return {"low": 0.0, "high": 0.0, "counts": []}
    low, high = float(usable.min()), float(usable.max())
    if low == high:
        return {"low": low, "high": high, "counts": [len(usable)]}
    counts, _ = np.histogram(np.log(usable), bins=BINS, range=(np.log(low), np.log(high)))
    return {"low": low, "high": high, "counts": counts.tolist()}


def value_histogram(states: Array) -> dict[str, Any]:
    """The magnitudes of [n, H] states' elements in at most `BINS` powers of two, smaller ones in the first.

    {"low": the first bin's power of two, "counts", "zero", "non_finite", "rows": how many rows were looked at}
    """
    chosen = states[:: max(1, -(-len(states) // VALUE_ROWS))]
    with np.errstate(invalid="ignore"):
        values = np.abs(to_float32(chosen))
    finite = np.isfinite(values)
    zero = int((values == 0).sum())
    usable = values[finite & (values > 0)]
    found = {"low": 0, "counts": [], "zero": zero, "non_finite": int((~finite).sum()), "rows": len(chosen)}
    if not len(usable):
        return found
    powers = np.frexp(usable)[1] - 1  # 2**power <= value
    top = int(powers.max())
    low = max(int(powers.min()), top - BINS + 1)
    return found | {"low": low, "counts": np.bincount(np.maximum(powers, low) - low).tolist()}


def _mark(flags: suspects.Flags) -> str:
    """`!` where something cannot be right, `^` where a norm stands out, else a space."""
    whole = int(np.bitwise_or.reduce(flags)) if len(flags) else 0
    return "!" if whole & suspects.BAD else "^" if whole & suspects.OUTLIER else " "
