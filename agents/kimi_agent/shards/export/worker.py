"""One shard's part of an export, in a process of its own: read, checked, chosen, written."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from kimi_agent.errors import KimiError
from kimi_agent.shards.content import bad_rows
from kimi_agent.shards.dumps import Dump
from kimi_agent.shards.export.base import Format, Piece, Source
from kimi_agent.shards.export.journal import TEMPORARY
from kimi_agent.shards.export.rows import Inexact, Norm, export_rows
from kimi_agent.shards.head import check_norm
from kimi_agent.shards.masks import Mask
from kimi_agent.shards.samples import lacks, open_committed, rows_of
from kimi_agent.text import clean
from kimi_capture.format import Commit, Shard


@dataclass(frozen=True, slots=True)
class Plan:
    """What is exported, decided before the first file."""

    dump: Dump
    out: Path
    layout: Format
    boundaries: tuple[int, ...]
    columns: tuple[int, ...]
    """Of `aux_hidden_states`, those of the boundaries."""
    dtype: str
    """BF16, F16 or F32."""
    norm: Norm | None


@dataclass(frozen=True, slots=True)
class Job:
    """One shard."""

    commit: Commit
    skip: frozenset[int]
    """Its samples that are exported already."""
    masks: dict[str, Mask]


@dataclass(frozen=True, slots=True)
class Refused:
    """A sample that is not exported, or a whole shard of them."""

    shard: str
    rid: str | None
    """None when it is all samples of the shard."""
    samples: int
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one shard."""

    job: Job
    directory: Path
    """Where its files lie until they are taken."""
    pieces: tuple[Piece, ...]
    refused: tuple[Refused, ...]


def begin() -> None:
    """A worker process: an interrupt is its parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def export_shard(plan: Plan, job: Job) -> Outcome:
    """Write a shard's samples into files of a temporary directory.

    Raises:
        KimiError: the files cannot be written.
    """
    refused: list[Refused] = []
    name = job.commit.shard
    try:
        shard = open_committed(plan.dump, job.commit, hashes=True)
    except KimiError as error:
        return Outcome(job, plan.out, (), (Refused(name, None, job.commit.samples, error.message),))
    if plan.norm is not None and (wrong := list(check_norm(shard, plan.norm.weight))):
        return Outcome(job, plan.out, (), (Refused(name, None, job.commit.samples, clean(wrong[0][1])),))
    directory = plan.out / TEMPORARY
    try:
        directory = Path(mkdtemp(dir=directory, prefix=f"{os.getpid()}-"))
        pieces = tuple(plan.layout.write_shard(_sources(plan, job, shard, refused), directory, plan.dtype))
    except OSError as error:
        hint = "Free space or correct the permissions; the same command goes on where it stopped."
        raise KimiError(f"{directory} cannot be written: {error.strerror or error}", hint, slug="export") from error
    return Outcome(job, directory, pieces, tuple(refused))


def _sources(plan: Plan, job: Job, shard: Shard, refused: list[Refused]) -> Iterator[Source]:
    """The samples that can be exported; why the others cannot goes into `refused`."""
    suspect = any(numbers.non_finite or numbers.zero_rows for numbers in shard.meta.statistics.values())
    for place, sample in enumerate(shard.meta.samples):
        if place in job.skip:
            continue
        why = lacks(shard, place)
        if not why and suspect and (bad := bad_rows(shard, sample, int(shard.sample_offsets[place]))):
            why = f"{bad} of its rows are not finite or all zero"
        if not why:
            rows = rows_of(shard, place, job.masks)
            try:
                yield place, export_rows(rows, plan.columns, plan.norm), rows.mask_source
            except Inexact as error:
                why = str(error)
        if why:
            refused.append(Refused(shard.path.name, clean(sample.rid, 200), 1, why))
