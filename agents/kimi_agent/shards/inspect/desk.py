"""What the inspector's process does: each operation by its name, and what goes on between them."""

from collections import OrderedDict
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from time import monotonic
from typing import Any, Final

from kimi_agent.errors import UsageError
from kimi_agent.shards.inspect.compare import DumpPair, compare_samples
from kimi_agent.shards.inspect.listing import Listing, Query
from kimi_agent.shards.inspect.rows import TOKENS, SampleRows, bad_by_sample
from kimi_agent.shards.show import list_dumps
from kimi_agent.shards.tokens import Vocabulary, load_vocabulary
from kimi_agent.text import clean
from kimi_capture.format import Shard

OPEN: Final = 4
"""Dumps whose index is kept in memory, and samples whose norms are."""
WORDS: Final = 50_000
"""Tokens of one model whose text is kept."""
FIRST: Final = 0.3
"""Seconds of reading that the first answer about a sample waits for."""
ASKED: Final = 5.0
"""Seconds after which two dumps are no longer compared for a screen that does not ask for it any more."""
SEARCH: Final = 2.0
"""Seconds that the search for the next bad sample goes on before it says how far it has come."""


class Desk:
    """The dumps that are looked into."""

    def __init__(self, cache: Path) -> None:
        """`cache` is a directory for the indexes of dumps that cannot be written."""
        self._cache = cache
        self._open: OrderedDict[Path, Listing] = OrderedDict()
        self._read: OrderedDict[tuple[Path, str, int], SampleRows] = OrderedDict()
        self._shards: OrderedDict[tuple[Path, str], Shard] = OrderedDict()
        self._hashed: dict[tuple[Path, str], list[str]] = {}
        """Damaged tensors of the shards whose hashes were checked."""
        self._words: dict[str | None, Vocabulary] = {}
        self._pair: tuple[tuple[str, str], DumpPair] | None = None
        """The two dumps that are compared."""
        self._pair_asked = 0.0
        self._operations: dict[str, Callable[..., Any]] = {
            "dumps": self.dumps,
            "shards": self.shards,
            "samples": self.samples,
            "sample": self.sample,
            "tokens": self.tokens,
            "next_bad": self.next_bad,
            "bad_sample": self.bad_sample,
            "compare": self.compare,
            "compare_dumps": self.compare_dumps,
        }

    def do(self, operation: str, params: dict[str, Any]) -> Any:
        """Carry out an operation.

        Raises:
            KimiError, OSError, ValueError: it cannot be done, and why.
        """
        handler = self._operations[operation]
        try:
            signature(handler).bind(**params)
        except TypeError as error:
            raise UsageError(f"{operation}: {error}", "Use the console of this agent's version.") from error
        return handler(**params)

    def work(self, seconds: float) -> bool:
        """Go on for about so long with what was asked for last; whether there is more to do."""
        if self._pair is not None and monotonic() - self._pair_asked < ASKED and self._pair[1].step():
            return True
        for key, rows in reversed(self._read.items()):
            if rows.done < rows.rows:
                rows.step(seconds)
                return True
            if key[:2] not in self._hashed:
                self._hashed[key[:2]] = self._shards[key[:2]].corrupt() if key[:2] in self._shards else []
                return True
            break
        for listing in reversed(self._open.values()):
            if listing.index.step(seconds):
                return True
            listing.index.save()
        return False

    def close(self) -> None:
        """Keep what was read of the dumps."""
        for listing in self._open.values():
            listing.index.save(always=True)

    def dumps(self, roots: list[str]) -> list[dict[str, Any]]:
        """All dumps below the roots, the newest first."""
        found = [dump for root in roots if Path(root).is_dir() for dump in list_dumps(Path(root))]
        return sorted(found, key=lambda dump: dump["time"] or 0, reverse=True)

    def shards(self, directory: str, first: int = 0, count: int = 100, **query: Any) -> dict[str, Any]:
        """A page of a dump's shards."""
        return self.listing(directory).shards(_query(query), first, count)

    def samples(self, directory: str, first: int = 0, count: int = 100, **query: Any) -> dict[str, Any]:
        """A page of a dump's samples."""
        return self.listing(directory).samples(_query(query), first, count)

    def sample(self, directory: str, shard: str, place: int, layer: str | None = None) -> dict[str, Any]:
        """What is known of a sample so far; `read` grows while it is asked for."""
        rows = self.rows(directory, shard, place)
        if not rows.done:
            rows.step(FIRST)
        listing = self.listing(directory)
        damaged = self._hashed.get((Path(directory), shard))
        return rows.facts(layer) | {
            "shard": clean(shard),
            "place": place,
            "dump_layers": listing.layers(),
            "damaged": damaged or [],
            "checked": damaged is not None,
        }

    def tokens(self, directory: str, shard: str, place: int, first: int = 0, count: int = 200) -> dict[str, Any]:
        """Some tokens of a sample."""
        rows = self.rows(directory, shard, place)
        first, count = max(first, 0), max(0, min(count, TOKENS))
        words = self._vocabulary(directory, rows.tokens[first : first + count].tolist())
        return {
            "first": first,
            "layers": list(rows.names),
            "tokens": rows.lines(first, count, words),
            "text_source": words.source,
            "read": rows.done,
        }

    def next_bad(self, directory: str, shard: str, place: int, token: int, step: int = 1) -> dict[str, Any]:
        """The next token, or with step −1 the one before, that is marked; None when no row read so far is."""
        rows = self.rows(directory, shard, place)
        found = rows.next_bad(token, step)
        return {"token": found, "why": "" if found is None else rows.why(found), "read": rows.done, "rows": rows.rows}

    def bad_sample(self, directory: str, number: int, step: int = 1) -> dict[str, Any]:
        """The next sample, or with step −1 the one before, with rows that cannot be right.

        {"sample": its row in a list, or None, "at": the last sample that was looked at, "done": whether it is over}.
        Only shards whose statistics tell of such rows are read.
        """
        listing = self.listing(directory)
        index, end = listing.index, monotonic() + SEARCH
        at = number + (1 if step > 0 else -1)
        while 0 <= at < len(index):
            if monotonic() > end:
                return {"sample": None, "at": at - (1 if step > 0 else -1), "done": False}
            place, _ = index.shard_of(at)
            index.need([place], SEARCH)
            if not index.read[place]:  # damaged as a whole: that is what is found
                return {"sample": listing.sample(at), "at": at, "done": True}
            if index.bad[at] < 0:
                index.settle(place, bad_by_sample(self._shard(listing, index.commits[place].shard)))
            span = (
                index.bad[at : index.starts[place + 1]] if step > 0 else index.bad[index.starts[place] : at + 1][::-1]
            )
            hits = (span > 0).nonzero()[0]
            if len(hits):
                return {"sample": listing.sample(at + int(hits[0]) * (1 if step > 0 else -1)), "at": at, "done": True}
            at += len(span) if step > 0 else -len(span)
        return {"sample": None, "at": at, "done": True}

    def compare(self, directory: str, shard: str, place: int, other: dict[str, Any]) -> dict[str, Any]:
        """A sample beside another one: {"directory", "shard", "place"}."""
        return compare_samples(self.rows(directory, shard, place), self.rows(**other))

    def compare_dumps(self, directory: str, other: str) -> dict[str, Any]:
        """A dump beside another one, as far as it was compared; it goes on while this is asked for."""
        key = (directory, other)
        if self._pair is None or self._pair[0] != key:
            self._pair = (key, DumpPair(self.listing(directory), self.listing(other)))
        self._pair_asked = monotonic()
        return self._pair[1].as_json()

    def listing(self, directory: str) -> Listing:
        """The dump in a directory, from now on the one that was asked for last."""
        path = Path(directory)
        listing = self._open.pop(path, None) or Listing(path, self._cache)
        self._open[path] = listing
        while len(self._open) > OPEN:
            _, oldest = self._open.popitem(last=False)
            oldest.index.save(always=True)
        return listing

    def rows(self, directory: str, shard: str, place: int) -> SampleRows:
        """A sample, from now on the one that was asked for last.

        Raises:
            UsageError: there is no such sample.
            KimiError: its shard is damaged.
        """
        listing = self.listing(directory)
        key = (listing.directory, shard, place)
        rows = self._read.pop(key, None)
        if rows is None:
            opened = self._shard(listing, shard)
            if not 0 <= place < len(opened.meta.samples):
                raise UsageError(f"there is no sample {place} in {clean(shard)}", "List the samples again.")
            rows = SampleRows(opened, place)
        self._read[key] = rows
        while len(self._read) > OPEN:
            self._read.popitem(last=False)
        return rows

    def _shard(self, listing: Listing, name: str) -> Shard:
        key = (listing.directory, name)
        shard = self._shards.pop(key, None)
        if shard is None:
            shard = listing.open(name)
            self._hashed.pop(key, None)
        self._shards[key] = shard
        while len(self._shards) > OPEN:
            self._shards.popitem(last=False)
        return shard

    def _vocabulary(self, directory: str, ids: list[int]) -> Vocabulary:
        manifest = self.listing(directory).manifest
        model = manifest.model.get("path") if manifest else None
        known = self._words.get(model)
        missing = set(ids) - known.table.keys() if known else set(ids)
        if known is None or missing:
            found = load_vocabulary(model, missing)
            table = dict.fromkeys(missing, b"") | found.table | (known.table if known else {})
            known = Vocabulary(found.source, table if len(table) < WORDS else found.table)
            self._words[model] = known
        return known


def _query(fields: dict[str, Any]) -> Query:
    if unknown := set(fields) - {"sort", "reverse", "search", "shard"}:
        raise UsageError(f"a list has no {clean(min(unknown))}", "Use the console of this agent's version.")
    query = Query(**fields)
    if not (isinstance(query.search, str) and isinstance(query.sort, str) and isinstance(query.shard, str | None)):
        raise UsageError("search, sort and shard are texts", "Correct the parameters.")
    return query
