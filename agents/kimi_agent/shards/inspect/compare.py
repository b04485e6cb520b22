"""Two samples beside each other, or two dumps: whether they are of the same tokens, and how far their states are apart.

Rows are compared as far as the tokens are the same, since a state depends on all tokens before it. Layers are those of
the same physical boundary in both, and `last`; two states are the same one, up to precision, within `match.FITS` at the
median, with no row farther off than `match.FOREIGN`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from kimi_agent.errors import KimiError
from kimi_agent.shards.inspect.listing import Listing
from kimi_agent.shards.inspect.rows import SampleRows
from kimi_agent.shards.match import FITS, FOREIGN
from kimi_agent.text import clean
from kimi_capture.format import Array, Shard, to_float32

ROWS: Final = 4096
"""Rows of two samples that are compared: the first ones."""
PAIR_ROWS: Final = 256
"""Rows of each pair of samples of two dumps."""
CROSS_ROWS: Final = 64
"""Rows, spread evenly, by which a layer is held against all of the other's."""
PAIRS: Final = 64
"""Pairs of samples, spread evenly, that stand for two dumps."""
HASHED: Final = 20_000
"""Samples of a dump whose tokens are hashed, where request ids do not find their like."""
BLOCK: Final = 256
"""Rows that are widened to float32 at a time."""
Float = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Apart:
    """Two layers' rows, one by one; rows that are not finite or zero in either are NaN."""

    cosine: Float
    """[rows]."""
    distance: Float
    """[rows] length of the difference, relative to the first one's."""
    equal: npt.NDArray[np.bool_]
    """[rows] whether they are the same bit by bit."""
    foreign: npt.NDArray[np.bool_]
    """[rows] whether they have nothing to do with each other, or one of them alone is not finite or zero."""

    def as_json(self) -> dict[str, Any]:
        """What is told of them: means, the lowest cosine and its row, the first row that differs at all."""
        known = np.flatnonzero(np.isfinite(self.cosine))
        lowest = int(known[self.cosine[known].argmin()]) if len(known) else None
        different = np.flatnonzero(~self.equal)
        middle = float(np.median(self.distance[known])) if len(known) else None
        return {
            "rows": len(self.equal),
            "cosine": float(self.cosine[known].mean()) if len(known) else None,
            "lowest": None if lowest is None else float(self.cosine[lowest]),
            "lowest_row": lowest,
            "distance": middle,
            "equal_rows": int(self.equal.sum()),
            "first_different": int(different[0]) if len(different) else None,
            "foreign_rows": int(self.foreign.sum()),
            "first_foreign": int(self.foreign.argmax()) if self.foreign.any() else None,
            "same": middle is not None and middle <= FITS and not self.foreign.any(),
        }


def apart(one: Array, other: Array) -> Apart:
    """Rows [n, H] of two layers."""
    rows = len(one)
    cosine, distance = np.full(rows, np.nan), np.full(rows, np.nan)
    equal, foreign = np.zeros(rows, bool), np.zeros(rows, bool)
    for first in range(0, rows, BLOCK):
        span = slice(first, first + BLOCK)
        with np.errstate(all="ignore"):
            a, b = to_float32(one[span]).astype(np.float64), to_float32(other[span]).astype(np.float64)
            lengths = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
            product = lengths[0] * lengths[1]
            good = [np.isfinite(length) & (length > 0) for length in lengths]
            usable = good[0] & good[1]
            cosine[span] = np.where(usable, np.einsum("nh,nh->n", a, b) / product, np.nan)
            distance[span] = np.where(usable, np.linalg.norm(a - b, axis=1) / lengths[0], np.nan)
        foreign[span] = (good[0] != good[1]) | (usable & (distance[span] > FOREIGN))
        equal[span] = (to_float32(one[span]).view(np.uint32) == to_float32(other[span]).view(np.uint32)).all(axis=1)
    return Apart(np.clip(cosine, -1, 1), distance, equal, foreign)


def same_tokens(one: Array, other: Array) -> int:
    """How many first tokens [n] are the same."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


def compare_samples(one: SampleRows, other: SampleRows, most: int = ROWS) -> dict[str, Any]:
    """What `shards compare` says of two samples; `same` is whether their tokens and all common layers are."""
    common = same_tokens(one.tokens, other.tokens)
    aligned = bool(np.array_equal(one.positions[:common], other.positions[:common]))
    widths = one.last.shape[1], other.last.shape[1]
    rows = min(common, most) if aligned and widths[0] == widths[1] else 0
    pairs = [(name, one.names.index(name), other.names.index(name)) for name in one.names if name in other.names]
    layers = {name: apart(one.states(mine)[:rows], other.states(theirs)[:rows]) for name, mine, theirs in pairs}
    told = {name: found.as_json() for name, found in layers.items()}
    tokens = common == one.rows == other.rows
    return {
        "one": _about(one),
        "other": _about(other),
        "same_tokens": common,
        "first_different": None if tokens else common,
        "ids": [_id(one, common), _id(other, common)],
        "compared": rows,
        "layers": told,
        "nearest": nearest(one, other, rows),
        "only_one": [name for name in one.names if name not in other.names],
        "only_other": [name for name in other.names if name not in one.names],
        "note": _note(common, aligned, widths),
        "same": tokens and rows > 0 and all(entry["same"] for entry in told.values()),
    }


def nearest(one: SampleRows, other: SampleRows, rows: int) -> dict[str, dict[str, Any]]:
    """For each layer of one, the layer of the other that its rows are nearest to, however it is called."""
    found: dict[str, dict[str, Any]] = {}
    step = max(1, rows // CROSS_ROWS)
    for mine, name in enumerate(one.names if rows else ()):
        best: tuple[float, str, float] | None = None
        for theirs, label in enumerate(other.names):
            pair = apart(one.states(mine)[:rows:step], other.states(theirs)[:rows:step])
            known = np.isfinite(pair.distance)
            if known.any() and (best is None or float(np.median(pair.distance[known])) < best[0]):
                best = float(np.median(pair.distance[known])), label, float(pair.cosine[known].mean())
        if best is not None:
            found[name] = {"layer": best[1], "distance": best[0], "cosine": best[2]}
    return found


def _about(rows: SampleRows) -> dict[str, Any]:
    return {"rid": clean(rows.sample.rid, 200), "rows": rows.rows, "prompt_tokens": rows.sample.prompt_tokens,
            "output_tokens": rows.sample.output_tokens}  # fmt: skip


def _id(rows: SampleRows, place: int) -> int | None:
    return int(rows.tokens[place]) if place < rows.rows else None


def _note(common: int, aligned: bool, widths: tuple[int, int]) -> str:
    if widths[0] != widths[1]:
        return f"hidden sizes {widths[0]} and {widths[1]}: only the tokens can be compared"
    if not aligned:
        return "their positions differ, since one lacks rows: only the tokens can be compared"
    return "" if common else "they differ from the first token on: no two rows are of the same text"


@dataclass(slots=True)
class DumpPair:
    """Two dumps, matched sample by sample and then compared, a little at a time.

    Samples are matched by request id, and by the hash of their tokens where that leaves some over on both sides.
    """

    one: Listing
    other: Listing
    most: int = PAIRS
    state: str = "indexing"
    """indexing, matching, comparing, done."""
    pairs: list[tuple[int, int]] = field(default_factory=list)
    by_rid: int = 0
    chosen: list[tuple[int, int]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    failed: int = 0
    """Pairs that could not be read."""
    problems: list[str] = field(default_factory=list)
    _steps: Iterator[None] | None = None

    def step(self) -> bool:
        """Do one piece of it: a shard's tokens, or a pair; whether there is more."""
        if self._steps is None:
            self._steps = self._all()
        return next(self._steps, True) is None

    def fail(self, text: str) -> None:
        """A pair or a shard could not be read."""
        self.problems.append(text)

    def as_json(self) -> dict[str, Any]:
        """How far it is, and what it found so far."""
        sides = self.one.index, self.other.index
        return {
            "state": self.state,
            "one": clean(self.one.directory.name),
            "other": clean(self.other.directory.name),
            "samples": [len(sides[0]), len(sides[1])],
            "matched": len(self.pairs),
            "by_rid": self.by_rid,
            "by_tokens": len(self.pairs) - self.by_rid,
            "only_one": len(sides[0]) - len(self.pairs),
            "only_other": len(sides[1]) - len(self.pairs),
            "done": len(self.results) + self.failed,
            "of": len(self.chosen),
            "different_tokens": sum(1 for result in self.results if result["first_different"] is not None),
            "layers": summed(self.results),
            "nearest": _common_nearest(self.results),
            "boundaries": [list(side.layers) for side in sides],
            "worst": sorted(map(_worst, self.results), key=lambda entry: entry["cosine"] or 0.0)[:10],
            "problems": self.problems[:10],
            "same": self.state == "done" and bool(self.results) and all(result["same"] for result in self.results),
        }

    def _all(self) -> Iterator[None]:
        while self.one.index.step(0.05) or self.other.index.step(0.05):
            yield
        self.state = "matching"
        yield from self._match()
        step = max(1, -(-len(self.pairs) // self.most))
        self.chosen = self.pairs[::step]
        self.state = "comparing"
        yield
        for mine, theirs in self.chosen:
            try:
                rows = [_rows(side, number) for side, number in ((self.one, mine), (self.other, theirs))]
                self.results.append(compare_samples(rows[0], rows[1], PAIR_ROWS))
            except (KimiError, OSError, ValueError) as error:
                self.failed += 1
                self.fail(clean(str(error), 200))
            yield
        self.state = "done"

    def _match(self) -> Iterator[None]:
        mine = {rid: number for number, rid in enumerate(self.one.index.rids) if rid}
        theirs = {rid: number for number, rid in enumerate(self.other.index.rids) if rid}
        self.pairs = [(number, theirs[rid]) for rid, number in mine.items() if rid in theirs]
        self.by_rid = len(self.pairs)
        yield
        left = [sorted(set(range(len(side.index))) - {pair[place] for pair in self.pairs})
                for place, side in enumerate((self.one, self.other))]  # fmt: skip
        if not left[0] or not left[1]:
            return
        hashes: list[dict[int, int]] = [{}, {}]
        for place, side in enumerate((self.one, self.other)):
            for found in _hashes(side, left[place][:HASHED], self):
                hashes[place] |= found
                yield
        self.pairs += [(number, hashes[1][key]) for key, number in hashes[0].items() if key in hashes[1]]
        self.pairs.sort()


def summed(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each layer over all pairs, weighted by rows."""
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for result in results for name in result["layers"]):
        held = [(result, result["layers"][name]) for result in results if name in result["layers"]]
        usable = [(result, entry) for result, entry in held if entry["cosine"] is not None]
        rows = sum(entry["rows"] for _, entry in usable)
        worst = min(usable, key=lambda pair: pair[1]["lowest"], default=None)
        found[name] = {
            "rows": rows,
            "cosine": sum(entry["cosine"] * entry["rows"] for _, entry in usable) / rows if rows else None,
            "distance": sum(entry["distance"] * entry["rows"] for _, entry in usable) / rows if rows else None,
            "lowest": worst[1]["lowest"] if worst else None,
            "lowest_rid": worst[0]["one"]["rid"] if worst else None,
            "equal_rows": sum(entry["equal_rows"] for _, entry in held),
            "foreign_rows": sum(entry["foreign_rows"] for _, entry in held),
        }
    return found


def _common_nearest(results: Sequence[dict[str, Any]]) -> dict[str, str]:
    """For each layer of one dump, the layer of the other that most pairs are nearest to."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(name for result in results for name in result["nearest"]):
        votes = [result["nearest"][name]["layer"] for result in results if name in result["nearest"]]
        found[name] = max(dict.fromkeys(votes), key=votes.count)
    return found


def _worst(result: dict[str, Any]) -> dict[str, Any]:
    cosines = {name: entry["cosine"] for name, entry in result["layers"].items() if entry["cosine"] is not None}
    layer = min(cosines, key=lambda name: cosines[name], default=None)
    return {"rid": result["one"]["rid"], "layer": layer, "cosine": cosines[layer] if layer else None,
            "first_different": result["first_different"]}  # fmt: skip


def _rows(listing: Listing, number: int) -> SampleRows:
    place, within = listing.index.shard_of(number)
    return SampleRows(listing.open(listing.index.commits[place].shard), within)


def _hashes(listing: Listing, numbers: Sequence[int], pair: DumpPair) -> Iterator[dict[int, int]]:
    """By the hash of their tokens, the samples of these numbers; a shard at a time."""
    places: dict[int, list[int]] = {}
    for number in numbers:
        place, within = listing.index.shard_of(number)
        places.setdefault(place, []).append(within)
    for place, held in places.items():
        try:
            shard: Shard = listing.open(listing.index.commits[place].shard)
        except (KimiError, OSError, ValueError) as error:
            pair.fail(clean(str(error), 200))
            continue
        first = int(listing.index.starts[place])
        offsets = shard.sample_offsets
        yield {
            xxhash.xxh3_64_intdigest(shard.token_ids[int(offsets[within]) : int(offsets[within + 1])].tobytes()):
                first + within
            for within in held
        }  # fmt: skip
