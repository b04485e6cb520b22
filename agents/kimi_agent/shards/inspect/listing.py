"""Pages of a dump's shards and samples out of its index, sorted and searched: only the rows that a screen shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kimi_agent.counts import many
from kimi_agent.errors import UsageError
from kimi_agent.shards.dumps import Dump, find_manifest, writers
from kimi_agent.shards.inspect.index import NON_FINITE, RMS, ZERO_ROWS, DumpIndex
from kimi_agent.shards.samples import open_committed
from kimi_agent.shards.show import open_named
from kimi_agent.text import clean
from kimi_capture.format import COMMITS, Shard

SORTS: Final = ("order", "rows", "missing", "worst")
"""As committed; most rows first; most missing rows first; damaged, then most bad rows, then farthest from the dump."""
SHARD_SORTS: Final = ("order", "rows", "worst")
MOST: Final = 500
"""Rows of one answer."""
WAIT: Final = 0.5
"""Seconds that an answer may wait for the headers of the shards that it shows."""
PROBLEMS: Final = 20
CERTAIN: Final = slice(NON_FINITE, ZERO_ROWS + 1)
"""The statistics that no right row adds to."""
DAMAGED: Final = 1e12
"""Score of what cannot be read: before all that can."""
BAD: Final = 1e6
PERHAPS: Final = 1e3
"""Score of a sample in a shard whose statistics tell of bad rows, while nobody has looked which samples have them."""
FRESH: Final = 2.0
"""Seconds that the names of a dump's writers are believed."""
Int = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Query:
    """What is listed, and in which order."""

    sort: str = "order"
    reverse: bool = False
    search: str = ""
    """Part of a request id or a shard's name, in any case."""
    shard: str | None = None
    """The samples of this shard only."""


class Listing:
    """One dump as a screen pages through it."""

    def __init__(self, directory: Path, cache: Path | None = None) -> None:
        """Raises UsageError when the directory is not a dump, OSError when it cannot be read."""
        self.manifest, problems = find_manifest(directory)
        self.directory = directory
        self.index = DumpIndex(directory, cache)
        self._told = [clean(str(problem)) for problem in problems]
        self._chosen: dict[tuple[str, Query], tuple[int, Int]] = {}
        self._far: tuple[int, Float] = (-1, np.zeros(0))
        self._known: tuple[int, int, dict[str, Any]] | None = None

    def samples(self, query: Query, first: int, count: int) -> dict[str, Any]:
        """`count` samples of a query from the `first` on, and what is known of the dump."""
        self.index.refresh()
        chosen = self._choose("samples", query)
        page = chosen[max(first, 0) : max(first, 0) + min(max(count, 0), MOST)]
        self.index.need(sorted({self.index.shard_of(number)[0] for number in page.tolist()}), WAIT)
        return self._about(len(chosen), first) | {"samples": [self.sample(number) for number in page.tolist()]}

    def shards(self, query: Query, first: int, count: int) -> dict[str, Any]:
        """`count` shards of a query from the `first` on, and what is known of the dump."""
        self.index.refresh()
        chosen = self._choose("shards", query)
        page = chosen[max(first, 0) : max(first, 0) + min(max(count, 0), MOST)].tolist()
        self.index.need(page, WAIT)
        return self._about(len(chosen), first) | {"shards": [self.shard(place) for place in page]}

    def sample(self, number: int) -> dict[str, Any]:
        """A sample's row in a list; what its shard's header has not said yet is None."""
        index = self.index
        place, within = index.shard_of(number)
        prompt, output, rows, missing = (None if value < 0 else value for value in index.numbers[number].tolist())
        bad, finish = int(index.bad[number]), int(index.finish[number])
        return {
            "number": number,
            "rid": index.rids[number],
            "shard": clean(index.commits[place].shard),
            "place": within,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "rows": rows,
            "missing": missing,
            "finish_reason": index.finishes[finish] if finish >= 0 else None,
            "bad": bad if bad >= 0 else None,
            "perhaps": bad < 0 and bool(index.read[place]),
            "deviation": self._deviation(place),
            "problem": index.problems.get(place),
        }

    def shard(self, place: int) -> dict[str, Any]:
        """A shard's row in a list."""
        index, commit = self.index, self.index.commits[place]
        bad, perhaps = self._bad_rows()
        return {
            "shard": clean(commit.shard),
            "rows": commit.rows,
            "samples": commit.samples,
            "bytes": commit.bytes,
            "time": commit.time,
            "bad": int(bad[place]) if index.read[place] else None,
            "perhaps": bool(perhaps[place]),
            "deviation": self._deviation(place),
            "problem": index.problems.get(place),
        }

    def layers(self) -> dict[str, dict[str, float]]:
        """By layer, over all shards whose header was read: rms weighted by rows, and its spread over the shards."""
        index = self.index
        rows = np.array([commit.rows for commit in index.commits], float)
        found = {}
        for column, name in enumerate(index.layers):
            rms = index.statistics[:, column, RMS]
            known = np.isfinite(rms)
            if not known.any() or not (weight := rows[known]).sum():
                continue
            mean = float(np.average(rms[known], weights=weight))
            spread = float(np.sqrt(np.average(np.square(rms[known] - mean), weights=weight)))
            whole = float(np.sqrt(np.average(np.square(rms[known]), weights=weight)))
            found[name] = {"rms": whole, "rms_spread": spread, "shards": int(known.sum())}
        return found

    def problems(self) -> list[str]:
        """What is wrong with the dump, as far as it was seen."""
        index = self.index
        told = list(self._told)
        if index.unreadable:
            told.append(
                f"{COMMITS}: {many(index.unreadable, 'line')} cannot be read: what is committed there is not shown"
            )
        told += [f"{clean(index.commits[place].shard)}: {text}" for place, text in sorted(index.problems.items())]
        return told if len(told) <= PROBLEMS else [*told[:PROBLEMS], f"{len(told) - PROBLEMS} more problems"]

    def open(self, name: str) -> Shard:
        """A committed shard by its name.

        Raises:
            UsageError: there is no such shard.
            KimiError: it is damaged.
        """
        place = self.index.place_of(name)
        if place is None:
            raise UsageError(f"there is no shard {clean(name)} in {self.directory}", "List the shards again.")
        commit = self.index.commits[place]
        dump = Dump(self.directory, self.manifest, (commit,))
        return open_named(dump, name) if self.manifest is None else open_committed(dump, commit)

    def _about(self, matched: int, first: int) -> dict[str, Any]:
        return {**self._facts(), "matched": matched, "first": first}

    def _facts(self) -> dict[str, Any]:
        """What is known of the dump; made anew when the index has grown, and after a while for its writers."""
        index, manifest = self.index, self.manifest
        if self._known is not None and self._known[:2] == (index.version, int(monotonic() / FRESH)):
            return self._known[2]
        bad, perhaps = self._bad_rows()
        facts = {
            "dump": clean(self.directory.resolve().name),
            "directory": clean(str(self.directory)),
            "boundaries": list(manifest.boundaries) if manifest else [],
            "conventions": manifest.conventions if manifest else {},
            "total": len(index),
            "rows": sum(commit.rows for commit in index.commits),
            "bytes": sum(commit.bytes for commit in index.commits),
            "shard_count": len(index.commits),
            "bad_shards": int((bad > 0).sum()),
            "perhaps_shards": int(perhaps.sum()),
            "known": int(index.read.sum()) + len(index.problems),
            "layers": self.layers(),
            "problems": self.problems(),
            "writers": [clean(writer) for writer in writers(self.directory)],
        }
        self._known = (index.version, int(monotonic() / FRESH), facts)
        return facts

    def _deviation(self, place: int) -> float | None:
        value = float(self._deviations()[place])
        return round(value, 4) if isfinite(value) else None

    def _deviations(self) -> Float:
        """[shards] how far a shard's rms is from the dump's median, as a factor's logarithm, at its farthest layer."""
        if self._far[0] != self.index.version:
            rms = self.index.statistics[:, :, RMS]
            known = np.isfinite(rms).any(axis=1)
            far = np.full(len(rms), np.nan)
            if known.any():
                with np.errstate(divide="ignore", invalid="ignore"):
                    away = np.abs(np.log(rms[known] / np.nanmedian(rms[known], axis=0)))
                far[known] = np.nan_to_num(away, nan=0.0, posinf=100.0).max(axis=1, initial=0.0)
            self._far = (self.index.version, far)
        return self._far[1]

    def _choose(self, what: str, query: Query) -> Int:
        allowed = SORTS if what == "samples" else SHARD_SORTS
        if query.sort not in allowed:
            raise UsageError(f"{what} cannot be sorted by {clean(query.sort, 40)}", f"One of: {', '.join(allowed)}")
        kept = self._chosen.get((what, query))
        if kept is None or kept[0] != self.index.version:
            found = self._matching(what, query)
            keys = self._sample_keys(query.sort) if what == "samples" else self._shard_keys(query.sort)
            if keys is not None:
                found = found[np.argsort(-keys[found], kind="stable")]
            kept = (self.index.version, found[::-1] if query.reverse else found)
            self._chosen = {(what, query): kept}
        return kept[1]

    def _matching(self, what: str, query: Query) -> Int:
        index, needle = self.index, query.search.lower()
        if what == "shards":
            names: Sequence[str] = [commit.shard for commit in index.commits]
            return _search(names, needle, range(len(names)))
        if query.shard is None:
            return _search(index.rids, needle, range(len(index)))
        place = index.place_of(query.shard)
        if place is None:
            raise UsageError(f"there is no shard {clean(query.shard)} in {self.directory}", "List the shards again")
        index.need([place], WAIT)
        return _search(index.rids, needle, range(int(index.starts[place]), int(index.starts[place + 1])))

    def _sample_keys(self, sort: str) -> Float | None:
        index = self.index
        if sort == "order":
            return None
        if sort != "worst":
            keys: Float = index.numbers[:, 2 if sort == "rows" else 3].astype(float)
            return keys
        shard = np.repeat(np.arange(len(index.commits)), np.diff(index.starts))
        perhaps = (index.bad < 0) & index.read[shard]
        return (
            BAD * np.maximum(index.bad, 0) + PERHAPS * perhaps + self._damage()[shard]
            + np.nan_to_num(self._deviations()[shard], nan=-1.0)
        )  # fmt: skip

    def _shard_keys(self, sort: str) -> Float | None:
        index = self.index
        if sort == "order":
            return None
        if sort == "rows":
            return np.array([commit.rows for commit in index.commits], float)
        bad, perhaps = self._bad_rows()
        worst: Float = BAD * bad + PERHAPS * perhaps + self._damage() + np.nan_to_num(self._deviations(), nan=-1.0)
        return worst

    def _bad_rows(self) -> tuple[Float, npt.NDArray[np.bool_]]:
        """[shards] rows that cannot be right, and whether more may be found by looking.

        Where nobody has looked, these are the rows that the statistics know to be zero or not finite; a row that equals
        the one before may be right.
        """
        index, shards = self.index, len(self.index.commits)
        shard = np.repeat(np.arange(shards), np.diff(index.starts))
        unseen = (np.bincount(shard, weights=index.bad < 0, minlength=shards) > 0) & index.read
        seen = np.bincount(shard, weights=np.maximum(index.bad, 0), minlength=shards)
        counts = np.nan_to_num(index.statistics[:, :, CERTAIN]).max(axis=1, initial=0).sum(axis=1)
        return np.where(unseen, counts, seen), unseen & (counts == 0)

    def _damage(self) -> Float:
        damage = np.zeros(len(self.index.commits))
        damage[list(self.index.problems)] = DAMAGED
        return damage


def _search(names: Sequence[str], needle: str, span: range) -> Int:
    if not needle:
        return np.arange(span.start, span.stop)
    return np.array([number for number in span if needle in names[number].lower()], np.int64)
