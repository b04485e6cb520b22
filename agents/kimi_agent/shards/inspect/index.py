"""The index of a dump's samples: a cache of its commits and its shards' headers that may be thrown away at any moment.

It lives in `.samples.index` in the dump, or in the agent's cache where the dump cannot be written. The file is 8 bytes
of magic, the xxh3-64 of what follows (little endian), and a `Stored` as MessagePack: columns as raw bytes. It holds for
the first `consumed` bytes of `commits.jsonl`, as long as those still have the hash `digest`; lines appended since are
taken up, anything else makes it begin anew. It is replaced as a whole by a rename, so a crash leaves the old one.

What the commits say (shards, request ids) is there at once; the headers (lengths, statistics) are read by `step`, a
little at a time, and those of shards whose samples are wanted at once by `need`.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from kimi_agent.shards.dumps import parse_commit
from kimi_agent.shards.inspect.head import Head, read_head
from kimi_agent.text import clean
from kimi_capture.format import COMMITS, Commit, FormatError

FILE: Final = ".samples.index"
MAGIC: Final = b"KIMIDX01"
RID: Final = 200
"""Characters of a request id that are kept."""
MOST_REASONS: Final = 1000
"""Finish reasons that are told apart."""
SAVE_SHARE: Final = 0.1
"""Share of its shards that must be new before a complete index is written again."""
PROMPT, OUTPUT, ROWS, MISSING = range(4)
RMS, MAX_ABS, NON_FINITE, ZERO_ROWS, DUPLICATE_ROWS, COSINE = range(6)
Int = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """What the file holds, after its hash."""

    consumed: int
    """Bytes of commits.jsonl that it holds for."""
    digest: int
    """xxh3-64 of these."""
    commits: list[Commit]
    """Without their request ids."""
    layers: list[str]
    """Names of the statistics: boundaries, then `last`."""
    finishes: list[str]
    """The finish reasons that occur."""
    rids: str
    """Of all samples, each ended by a NUL."""
    read: bytes
    """[shards] uint8: whether the shard's header is in here."""
    statistics: bytes
    """[shards, layers, 6] float64."""
    numbers: bytes
    """[samples, 4] int64."""
    finish: bytes
    """[samples] int16, places in `finishes`."""
    bad: bytes
    """[samples] int32."""


class DumpIndex:
    """The samples of one dump by number, in the order in which they were committed.

    Attributes:
        commits: the shards, without request ids.
        starts: [shards + 1] number of each shard's first sample.
        rids: of every sample, clean; empty where neither commit nor header has said it yet.
        numbers: [samples, 4] prompt tokens, output tokens, rows, missing rows; −1 where the header was not read yet.
        finish: [samples] place in `finishes`, −1 where unknown.
        bad: [samples] rows that cannot be right, −1 where nobody has looked.
        statistics: [shards, layers, 6] rms, max_abs, non_finite, zero_rows, duplicate_rows, cosine_before; NaN unknown.
        read: [shards] whether the header was read.
        problems: what is wrong with a shard's file, by its place.
        unreadable: lines of commits.jsonl that cannot be read.
        version: grows with every change.
    """

    def __init__(self, directory: Path, cache: Path | None = None) -> None:
        """The index as it was stored, if that still holds, with what was committed since. Raises OSError."""
        self.directory = directory
        digest = xxhash.xxh3_64_hexdigest(os.fsencode(directory.resolve()))
        self._places = [directory / FILE, *([cache / f"{digest}.index"] if cache is not None else [])]
        self.version = 0
        self.loaded = False
        """Whether it came from a file."""
        self._seen: tuple[int, int] | None = None
        self._saved = self._consumed = self._digest = 0
        self._clear()
        self._load()
        self.refresh()

    def __len__(self) -> int:
        return len(self.rids)

    @property
    def complete(self) -> bool:
        """Whether every header that can be read was read."""
        return int(self.read.sum()) + len(self.problems) >= len(self.commits)

    def refresh(self) -> None:
        """Take up what was committed since, or begin anew when the commits are not the ones it was made of.

        Raises OSError when commits.jsonl cannot be read; a dump without one has no samples.
        """
        path = self.directory / COMMITS
        try:
            found = path.stat()
        except FileNotFoundError:
            self._clear()
            return
        if self._seen == (found.st_size, found.st_mtime_ns):
            return
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < self._consumed or xxhash.xxh3_64_intdigest(whole[: self._consumed]) != self._digest:
            self._clear()
        if not self._take(whole[self._consumed :]):
            self._clear()  # a shard was committed again: what was known of it is of the past
            self._take(whole)
        self._consumed, self._digest = len(whole), xxhash.xxh3_64_intdigest(whole)
        self._seen = (found.st_size, found.st_mtime_ns)

    def need(self, places: Iterable[int], seconds: float) -> None:
        """Read the headers of these shards now, as far as that takes no longer."""
        end = monotonic() + seconds
        for place in places:
            self._read(place)
            if monotonic() > end:
                return

    def step(self, seconds: float) -> bool:
        """Read headers for about so long, in order; whether there are more to be read."""
        end = monotonic() + seconds
        for place in np.flatnonzero(~self.read).tolist():
            if place not in self.problems:
                self._read(place)
                if monotonic() > end:
                    return not self.complete
        return False

    def shard_of(self, number: int) -> tuple[int, int]:
        """The place of a sample's shard, and the sample's place in it."""
        place = int(np.searchsorted(self.starts, number, side="right")) - 1
        return place, number - int(self.starts[place])

    def place_of(self, shard: str) -> int | None:
        """A shard's place by its name."""
        return self._by_name.get(shard)

    def settle(self, place: int, bad: Int) -> None:
        """Keep how many rows of each sample of a shard cannot be right: [samples]."""
        self.bad[int(self.starts[place]) : int(self.starts[place + 1])] = bad
        self.version += 1

    def save(self, *, always: bool = False) -> Path | None:
        """Write it to the first place that takes it, once enough of it is new; where it was written."""
        known = int(self.read.sum())
        if known == self._saved or (not always and known - self._saved < max(1, SAVE_SHARE * self._saved)):
            return None
        stored = Stored(
            self._consumed, self._digest, self.commits, self.layers, self.finishes,
            "".join(f"{rid}\0" for rid in self.rids), self.read.astype(np.uint8).tobytes(), self.statistics.tobytes(),
            self.numbers.tobytes(), self.finish.tobytes(), self.bad.tobytes(),
        )  # fmt: skip
        payload = msgspec.msgpack.encode(stored)
        data = MAGIC + xxhash.xxh3_64_intdigest(payload).to_bytes(8, "little") + payload
        for path in self._places:
            temporary = path.with_name(f".{path.name.lstrip('.')}.{os.getpid()}.tmp")
            try:
                temporary.write_bytes(data)
                temporary.rename(path)
            except OSError:  # read-only, or full: the next place
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
                continue
            self._saved = known
            return path
        return None

    def _clear(self) -> None:
        self.version += 1
        self._consumed, self._digest = 0, xxhash.xxh3_64_intdigest(b"")
        self._saved = 0
        self._by_name: dict[str, int] = {}
        self.commits: list[Commit] = []
        self.layers: list[str] = []
        self.finishes: list[str] = []
        self._finish_places: dict[str, int] = {}
        self.rids: list[str] = []
        self.problems: dict[int, str] = {}
        self.unreadable = 0
        self.read: npt.NDArray[np.bool_] = np.zeros(0, bool)
        self.starts: Int = np.zeros(1, np.int64)
        self.statistics: Float = np.zeros((0, 0, 6))
        self.numbers: Int = np.zeros((0, 4), np.int64)
        self.finish: npt.NDArray[np.int16] = np.zeros(0, np.int16)
        self.bad: npt.NDArray[np.int32] = np.zeros(0, np.int32)

    def _take(self, lines: bytes) -> bool:
        """Add the shards of complete commit lines; `False` when one of them is known already."""
        new: dict[str, Commit] = {}
        for line in filter(None, lines.split(b"\n")):
            commit = parse_commit(line)
            if commit is None:
                self.unreadable += 1
            elif commit.shard in self._by_name:
                return False
            else:
                new[commit.shard] = commit
        if new:
            self._grow(list(new.values()))
        return True

    def _grow(self, lines: Sequence[Commit]) -> None:
        named: list[str] = []
        for line in lines:
            self._by_name[line.shard] = len(self.commits)
            self.commits.append(Commit(line.shard, line.bytes, line.rows, line.samples, line.xxh3, line.time))
            named += line.rids if len(line.rids) == line.samples else [""] * line.samples
        self.rids += _clean(named)
        count, shards = len(self.rids) - len(self.numbers), len(lines)
        self.starts = np.concatenate([[0], np.cumsum([commit.samples for commit in self.commits])]).astype(np.int64)
        self.numbers = np.concatenate([self.numbers, np.full((count, 4), -1, np.int64)])
        self.finish = np.concatenate([self.finish, np.full(count, -1, np.int16)])
        self.bad = np.concatenate([self.bad, np.full(count, -1, np.int32)])
        self.read = np.concatenate([self.read, np.zeros(shards, bool)])
        self.statistics = np.concatenate([self.statistics, np.full((shards, len(self.layers), 6), np.nan)])
        self.version += 1

    def _read(self, place: int) -> None:
        if self.read[place]:
            return
        commit = self.commits[place]
        try:
            head = read_head(self.directory, commit)
        except FormatError as error:
            self.problems[place] = clean(error.problem, RID)
        except FileNotFoundError:
            self.problems[place] = "is committed, but the file is not there"
        except OSError as error:
            self.problems[place] = clean(f"cannot be read: {error.strerror}", RID)
        else:
            self.problems.pop(place, None)
            self._keep(place, head)

    def _keep(self, place: int, head: Head) -> None:
        span = slice(int(self.starts[place]), int(self.starts[place + 1]))
        if samples := head.samples:
            self.numbers[span] = [
                (one.prompt_tokens, one.output_tokens, one.rows, sum(one.missing.values())) for one in samples
            ]
            self.finish[span] = [self._finish(one.finish_reason) for one in samples]
            self.rids[span] = _clean([one.rid for one in samples])
        if not self.layers:
            self.layers = list(head.statistics)
            self.statistics = np.full((len(self.commits), len(self.layers), 6), np.nan)
        for column, name in enumerate(self.layers):
            if (entry := head.statistics.get(name)) is not None:
                self.statistics[place, column] = (
                    entry.rms, entry.max_abs, entry.non_finite, entry.zero_rows, entry.duplicate_rows,
                    np.nan if entry.cosine_before is None else entry.cosine_before,
                )  # fmt: skip
        if not any(one.non_finite or one.zero_rows or one.duplicate_rows for one in head.statistics.values()):
            self.bad[span] = 0
        self.read[place] = True
        self.version += 1

    def _finish(self, reason: str) -> int:
        if reason not in self._finish_places:
            if len(self.finishes) >= MOST_REASONS:
                return -1
            self._finish_places[reason] = len(self.finishes)
            self.finishes.append(clean(reason, RID))
        return self._finish_places[reason]

    def _load(self) -> None:
        for path in self._places:
            stored = _read_file(path)
            if stored is None:
                continue
            try:
                self._restore(stored)
            except ValueError:  # its columns do not fit each other
                self._clear()
                continue
            self.loaded = True
            return

    def _restore(self, stored: Stored) -> None:
        shards, layers = len(stored.commits), len(stored.layers)
        self._grow(stored.commits)
        samples = len(self.rids)
        self.rids = stored.rids.split("\0")[:-1]
        self.layers, self.finishes = stored.layers, stored.finishes
        self._finish_places = {reason: place for place, reason in enumerate(stored.finishes)}
        self.read = _column(stored.read, np.uint8, (shards,)).astype(bool)
        self.statistics = _column(stored.statistics, np.float64, (shards, layers, 6))
        self.numbers = _column(stored.numbers, np.int64, (samples, 4))
        self.finish = _column(stored.finish, np.int16, (samples,))
        self.bad = _column(stored.bad, np.int32, (samples,))
        if len(self.rids) != samples or self.finish.max(initial=-1) >= len(self.finishes):
            raise ValueError("the columns do not fit each other")
        self._consumed, self._digest, self._saved = stored.consumed, stored.digest, int(self.read.sum())


def _column(data: bytes, dtype: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A column that can be written to. Raises ValueError when it has another size."""
    return np.frombuffer(data, dtype).reshape(shape).copy()


def _clean(rids: Sequence[str]) -> list[str]:
    whole = "".join(rids)
    if whole.isascii() and whole.isprintable() and max(map(len, rids), default=0) <= RID:
        return list(rids)
    return [clean(rid, RID) for rid in rids]


def _read_file(path: Path) -> Stored | None:
    """What an index file holds; nothing when it is not there, damaged or another version's."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if data[:8] != MAGIC or xxhash.xxh3_64_intdigest(memoryview(data)[16:]) != int.from_bytes(data[8:16], "little"):
        return None
    try:
        return msgspec.msgpack.decode(memoryview(data)[16:], type=Stored)
    except (msgspec.DecodeError, RecursionError):
        return None
