"""The samples of a dump by number, out of the shards' memory maps. Needs numpy only."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kimi_agent.counts import many
from kimi_agent.errors import KimiError, UsageError
from kimi_agent.shards.dumps import Dump, open_dump, validated
from kimi_agent.shards.masks import Mask, loss_mask, read_masks
from kimi_agent.text import clean
from kimi_capture.format import STATE_DTYPES, Array, Commit, FormatError, Manifest, Sample, Shard, read_shard

OPEN_SHARDS: Final = 16
"""Shards that stay mapped in one process."""


class DamagedError(KimiError):
    """A committed shard is not what was committed."""

    slug = "damaged"


@dataclass(frozen=True, slots=True)
class SampleRows:
    """One request's T rows. Arrays are read-only views of the shard's memory map; bf16 ones are uint16.

    Row t was computed from token t: `aux_hidden_states[t, k]` is the residual stream after `boundaries[k]` blocks,
    `last_hidden_state[t]` what the head made the logits of token t + 1 from.
    """

    sample: Sample
    token_ids: Array
    """[T] int64."""
    positions: Array
    """[T] int64, 0 to T − 1."""
    aux_hidden_states: Array
    """[T, K, H]."""
    last_hidden_state: Array
    """[T, H], after the final norm."""
    last_pre_norm_rms: Array | None
    """[T] float32: root mean square of the state before the final norm; NaN where it is not known."""
    loss_mask: npt.NDArray[np.uint8]
    """[T], 1 where the token counts."""
    mask_source: str
    """Where the mask comes from, in the words of `kimi_agent.shards.masks`."""


class Samples:
    """The whole samples of a dump's committed shards, as they were when it was opened; shards of a live dump too."""

    def __init__(self, directory: Path, *, check_hashes: bool = True) -> None:
        """Reads every shard's header, but no rows; a shard's hashes are checked when it is first needed.

        Raises:
            UsageError: the directory is not a dump, or one that this version cannot read.
            DamagedError: a committed shard is missing, truncated or another dump's.
        """
        self.directory = directory
        self.dump = dump = sound_dump(directory)
        self.manifest: Manifest = manifest_of(dump)
        self.masks: dict[str, Mask] = read_masks(directory)
        self._check_hashes = check_hashes
        self._open: OrderedDict[int, Shard] = OrderedDict()
        self._checked: set[int] = set()
        whole = [_whole(open_committed(dump, commit)) for commit in dump.commits]
        self._places: list[npt.NDArray[np.int64]] = whole
        """By shard: which of its samples are whole."""
        self._ends = list(accumulate(len(places) for places in whole))
        self.skipped = sum(commit.samples for commit in dump.commits) - len(self)
        """Samples that lack rows, which nothing can be trained on."""

    def __getstate__(self) -> dict[str, Any]:
        """Without the maps: another process opens its own."""
        return vars(self) | {"_open": OrderedDict()}

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def shards(self) -> list[range]:
        """The numbers of each shard's samples."""
        return [
            range(end - len(places), end) for places, end in zip(self._places, self._ends, strict=True) if len(places)
        ]

    def __getitem__(self, number: int) -> SampleRows:
        """A sample by number. Raises IndexError, or DamagedError when its shard's bytes are not what was committed."""
        if not 0 <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        place = bisect_right(self._ends, number)
        first = self._ends[place] - len(self._places[place])
        return rows_of(self._shard(place), int(self._places[place][number - first]), self.masks)

    def __iter__(self) -> Iterator[SampleRows]:
        return (self[number] for number in range(len(self)))

    def _shard(self, place: int) -> Shard:
        shard = self._open.pop(place, None)
        if shard is None:
            shard = open_committed(
                self.dump, self.dump.commits[place], hashes=self._check_hashes and place not in self._checked
            )
            self._checked.add(place)
        self._open[place] = shard
        while len(self._open) > OPEN_SHARDS:
            self._open.popitem(last=False)
        return shard


def sound_dump(directory: Path) -> Dump:
    """A dump whose manifest and commits can be relied on.

    Raises:
        UsageError: the directory is not a dump, or its manifest or commits cannot be read by this version.
    """
    dump = open_dump(directory)
    if dump.problems:
        advice = f"Set it right with: kimi-agent shards repair {directory}"
        told = "; ".join(clean(f"{problem.file}: {problem.text}") for problem in dump.problems)
        raise UsageError(f"{directory} cannot be relied on: {told}", dump.problems[0].advice or advice)
    return dump


def manifest_of(dump: Dump) -> Manifest:
    """The manifest of a dump that has one. Raises UsageError."""
    if dump.manifest is None:
        raise UsageError(f"{dump.directory} has no manifest", "Copy it from the host that wrote the dump")
    return dump.manifest


def open_committed(dump: Dump, commit: Commit, *, hashes: bool = False) -> Shard:
    """A committed shard, checked against its commit and the manifest; with `hashes`, its tensors' bytes as well.

    Raises:
        DamagedError: it is not what was committed.
    """
    path, problem = dump.directory / commit.shard, ""
    try:
        size = path.stat().st_size
        shard = read_shard(path)
        validated(path, shard.meta)
        if size != commit.bytes:
            problem = f"has {size} bytes, {commit.bytes} were committed"
        elif hashes and (bad := shard.corrupt()):
            problem = f"{', '.join(bad)} changed after it was committed"
        else:
            problem = _foreign(shard, commit, manifest_of(dump))
    except FormatError as error:
        problem = error.problem
    except FileNotFoundError:
        problem = "is committed, but the file is not there"
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {error}"
    if problem:
        hint = f"See what is lost with: kimi-agent shards verify {dump.directory}; then repair it."
        raise DamagedError(clean(f"{path}: {problem}"), hint)
    return shard


def rows_of(shard: Shard, place: int, masks: dict[str, Mask]) -> SampleRows:
    """The rows of a shard's sample."""
    sample, first = shard.meta.samples[place], int(shard.sample_offsets[place])
    rows = slice(first, first + sample.rows)
    mask, source = loss_mask(sample, masks.get(sample.rid))
    rms = shard.last_pre_norm_rms
    return SampleRows(
        sample, shard.token_ids[rows], shard.positions[rows], shard.aux_hidden_states[rows],
        shard.last_hidden_state[rows], None if rms is None else rms[rows], mask, source,
    )  # fmt: skip


def lacks(shard: Shard, place: int) -> str:
    """Why a sample is not whole, from its accounts and its positions; empty when it is."""
    sample, first = shard.meta.samples[place], int(shard.sample_offsets[place])
    if sample.missing:
        return "rows are missing: " + ", ".join(f"{clean(why, 60)} {rows}" for why, rows in sample.missing.items())
    if not sample.rows:
        return "it has no rows"
    if not np.array_equal(shard.positions[first : first + sample.rows], np.arange(sample.rows)):
        return "its positions do not count up from 0"
    return ""


def _whole(shard: Shard) -> npt.NDArray[np.int64]:
    return np.array([place for place in range(len(shard.meta.samples)) if not lacks(shard, place)], np.int64)


def _foreign(shard: Shard, commit: Commit, manifest: Manifest) -> str:
    """How a shard differs from what its commit and the manifest say; empty when it does not."""
    held = (shard.meta.dump, shard.meta.boundaries, shard.last_hidden_state.shape[1], shard.dtype)
    wanted = (manifest.dump, manifest.boundaries, manifest.hidden_size, STATE_DTYPES.get(manifest.dtype, "–"))
    if held != wanted:
        return f"is another dump's: it has {held}, the manifest says {wanted}"
    if (shard.rows, len(shard.meta.samples)) != (commit.rows, commit.samples):
        holds = f"{many(shard.rows, 'row')} of {many(len(shard.meta.samples), 'sample')}"
        return f"holds {holds}, another count was committed"
    return ""
