"""Statistics of a whole dump, gathered from its shards' metadata: no tensor is read."""

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Any, Final

from kimi_agent.shards.dumps import Dump, open_dump, validated
from kimi_agent.text import clean
from kimi_capture.format import ShardMeta, read_shard

COMPARED: Final = 64
"""Shards, spread evenly, that stand for the whole dump where an answer must be quick."""


def dump_statistics(directory: Path) -> dict[str, Any]:
    """What `shards stats --json` prints: statistics per boundary, sample and row counts, finish reasons, missing rows.

    Shards that cannot be opened are named under `problems` and left out.

    Raises:
        UsageError: the directory is not a dump.
    """
    dump = open_dump(directory)
    metas, problems = read_metas(dump, len(dump.commits))
    samples = [sample for meta in metas for sample in meta.samples]
    missing: Counter[str] = Counter()
    for sample in samples:
        missing.update({clean(reason): rows for reason, rows in sample.missing.items()})
    return {
        "dump": dump.name,
        "directory": str(dump.directory),
        "shards": len(metas),
        "samples": len(samples),
        "rows": sum(sample.rows for sample in samples),
        "prompt_tokens": sum(sample.prompt_tokens for sample in samples),
        "output_tokens": sum(sample.output_tokens for sample in samples),
        "finish_reasons": dict(Counter(clean(sample.finish_reason) for sample in samples)),
        "missing": dict(missing),
        "statistics": aggregate(metas),
        "problems": [*(clean(str(problem)) for problem in dump.problems), *problems],
    }


def quick_statistics(dump: Dump) -> dict[str, dict[str, float]]:
    """`aggregate` over at most `COMPARED` shards of the dump, to hold one shard against the rest."""
    return aggregate(read_metas(dump, COMPARED)[0])


def read_metas(dump: Dump, most: int) -> tuple[list[ShardMeta], list[str]]:
    """The metadata of at most `most` committed shards, spread evenly, and what could not be opened."""
    step = max(1, -(-len(dump.commits) // max(most, 1)))
    metas, problems = [], []
    for commit in dump.commits[::step]:
        try:
            shard = read_shard(dump.directory / commit.shard)
            metas.append(validated(shard.path, shard.meta))
        except (OSError, ValueError) as error:
            problems.append(clean(f"{commit.shard}: left out, it cannot be opened: {error}. Run shards verify"))
    return metas, problems


def aggregate(metas: Sequence[ShardMeta]) -> dict[str, dict[str, float]]:
    """Per boundary and `last`: rms weighted by rows, its spread over shards (standard deviation), largest, counts."""
    result: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(name for meta in metas for name in meta.statistics):
        held = [(sum(s.rows for s in meta.samples), meta.statistics[name]) for meta in metas if name in meta.statistics]
        rows = sum(weight for weight, _ in held) or 1
        mean = sum(weight * entry.rms for weight, entry in held) / rows
        result[name] = {
            "rms": sqrt(sum(weight * entry.rms**2 for weight, entry in held) / rows),
            "rms_spread": sqrt(sum(weight * (entry.rms - mean) ** 2 for weight, entry in held) / rows),
            "max_abs": max(entry.max_abs for _, entry in held),
            "non_finite": sum(entry.non_finite for _, entry in held),
            "zero_rows": sum(entry.zero_rows for _, entry in held),
        }
    return result
