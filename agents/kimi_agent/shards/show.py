"""One dump's list of shards and one shard's contents, as JSON for the screen and the command line."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from kimi_agent.errors import KimiError, UsageError
from kimi_agent.shards.content import bad_rows, columns
from kimi_agent.shards.dumps import Dump, find_dumps, open_dump, validated
from kimi_agent.shards.stats import quick_statistics
from kimi_agent.shards.tokens import Vocabulary, load_vocabulary
from kimi_agent.text import clean
from kimi_capture.format import PRE_NORM_RMS, Sample, Shard, read_shard, to_float32

ANSWER_BYTES: Final = 900_000
"""Size of the samples in an answer, so that all of it stays under the wire's 1 MiB a line."""
SAMPLES: Final = 200
TOKENS: Final = 4000
MAX_TOKENS: Final = 20_000
PROBLEMS: Final = 200
"""Problems that a listing spells out; the rest are counted."""
BLOCK: Final = 64
"""Rows whose norms are computed at a time."""


@dataclass(frozen=True, slots=True)
class _Span:
    """The rows of a sample that are shown: `begin` to `end`, of the rows from `offset` on."""

    sample: Sample
    offset: int
    begin: int
    end: int


def list_dumps(root: Path) -> list[dict[str, Any]]:
    """Every dump in a directory and below it, from the commits alone.

    Raises:
        UsageError: the path is not a directory.
    """
    return [dump.summary() for dump in find_dumps(root)]


def list_shards(directory: Path, limit: int | None = None) -> dict[str, Any]:
    """The committed shards of a dump, and what can be seen to be wrong without reading any.

    `limit` keeps the newest so many shards; `more` says how many are left out.

    Raises:
        UsageError: the directory is not a dump.
    """
    dump = open_dump(directory)
    commits = dump.commits if limit is None else dump.commits[max(0, len(dump.commits) - max(limit, 0)) :]
    problems = [*(clean(str(problem)) for problem in dump.problems), *_missing(dump)]
    return {
        "dump": dump.name,
        "directory": str(dump.directory),
        "boundaries": list(dump.manifest.boundaries) if dump.manifest else [],
        "conventions": dump.manifest.conventions if dump.manifest else {},
        "shards": [
            {
                "shard": clean(commit.shard),
                "rows": commit.rows,
                "samples": commit.samples,
                "bytes": commit.bytes,
                "time": commit.time,
            }
            for commit in commits
        ],
        "more": len(dump.commits) - len(commits),
        "problems": _at_most(problems, PROBLEMS, "problems"),
    }


def show_shard(
    directory: Path, name: str, *, first: int = 0, samples: int = SAMPLES, tokens: int = TOKENS, token: int = 0
) -> dict[str, Any]:
    """One shard's tensors, statistics and samples; `more` says how many samples follow those shown.

    Args:
        first: the first sample shown.
        samples: the most samples shown.
        tokens: the most tokens shown, over all samples: the first samples get theirs, the last may have none.
        token: the first token shown of each sample.

    Raises:
        UsageError: there is no such dump or shard.
        KimiError: the shard is damaged.
    """
    dump = open_dump(directory)
    shard = open_named(dump, name)
    first = max(first, 0)
    spans = _spans(shard, first, first + max(samples, 0), max(token, 0), min(max(tokens, 0), MAX_TOKENS))
    ids = [number for span in spans for number in shard.token_ids[span.begin : span.end].tolist()]
    words = load_vocabulary(dump.manifest.model.get("path") if dump.manifest else None, ids)
    shown = _samples(shard, spans, words)
    return {
        "shard": clean(name),
        "committed": any(commit.shard == name for commit in dump.commits),
        "tensors": {
            name: {"dtype": _dtype(shard, name), "shape": list(shard.tensor(name).shape)} for name in shard.names
        },
        "statistics": {column: asdict(numbers) for column, numbers in shard.meta.statistics.items()},
        "dump_statistics": quick_statistics(dump),
        "samples": shown,
        "more": max(0, len(shard.meta.samples) - first - len(shown)),
        "text_source": words.source,
    }


def _at_most(lines: list[str], most: int, what: str) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"{len(lines) - most} more {what}"]


def _missing(dump: Dump) -> Iterator[str]:
    for commit in dump.commits:
        try:
            size = (dump.directory / commit.shard).stat().st_size
        except (OSError, ValueError):
            yield clean(f"{commit.shard}: is committed, but the file is not there")
        else:
            if size != commit.bytes:
                yield clean(f"{commit.shard}: has {size} bytes, {commit.bytes} were committed")


def open_named(dump: Dump, name: str) -> Shard:
    """A shard of a dump by its file's name, committed or not.

    Raises:
        UsageError: there is no such file.
        KimiError: it is damaged.
    """
    path = dump.directory / name
    if Path(name).name != name or "\0" in name or not path.is_file():
        raise UsageError(f"there is no shard {clean(name)} in {dump.directory}", "List them with: kimi-agent shards ls")
    try:
        shard = read_shard(path)
        validated(path, shard.meta)
    except (OSError, ValueError) as error:
        advice = f"Check the whole dump with: kimi-agent shards verify {dump.directory}"
        raise KimiError(clean(f"{path} cannot be shown: {error}"), advice, slug="shard") from error
    return shard


def _dtype(shard: Shard, tensor: str) -> str:
    return {"aux_hidden_states": shard.dtype, "last_hidden_state": shard.dtype, PRE_NORM_RMS: "F32"}.get(tensor, "I64")


def _spans(shard: Shard, first: int, last: int, token: int, tokens: int) -> list[_Span]:
    """What is shown of each sample, until the tokens are used up."""
    spans: list[_Span] = []
    for sample, offset in zip(shard.meta.samples[first:last], shard.sample_offsets[first:].tolist(), strict=False):
        begin = min(offset + token, offset + sample.rows)
        end = min(offset + sample.rows, begin + tokens)
        spans.append(_Span(sample, offset, begin, end))
        tokens -= end - begin
    return spans


def _samples(shard: Shard, spans: list[_Span], words: Vocabulary) -> list[dict[str, Any]]:
    """The samples' heads as far as they fit, then their tokens as far as those fit."""
    room, shown = ANSWER_BYTES, []
    for span in spans:
        head = _head(shard, span, words)
        room -= len(orjson.dumps(head)) + 1
        if room < 0:
            break
        shown.append(head)
    for span, entry in zip(spans, shown, strict=False):
        for line in _tokens(shard, span, words):
            room -= len(orjson.dumps(line)) + 1
            if room < 0:
                return shown
            entry["tokens"].append(line)
    return shown


def _head(shard: Shard, span: _Span, words: Vocabulary) -> dict[str, Any]:
    sample = span.sample
    return {
        "rid": clean(sample.rid, 200),
        "prompt_tokens": sample.prompt_tokens,
        "output_tokens": sample.output_tokens,
        "rows": sample.rows,
        "finish_reason": clean(sample.finish_reason, 200),
        "missing": {clean(reason, 200): rows for reason, rows in sample.missing.items()},
        "bad": bad_rows(shard, sample, span.offset),
        "text": words.text(shard.token_ids[span.begin : span.end].tolist()),
        "first_token": span.begin - span.offset,
        "tokens": [],
    }


def _tokens(shard: Shard, span: _Span, words: Vocabulary) -> Iterator[dict[str, Any]]:
    for first in range(span.begin, span.end, BLOCK):
        rows = slice(first, min(first + BLOCK, span.end))
        norms = {name: _norms(states[rows]) for name, states in columns(shard).items()}
        ids, positions = shard.token_ids[rows].tolist(), shard.positions[rows].tolist()
        for place, (number, position) in enumerate(zip(ids, positions, strict=True)):
            norm = {name: float(values[place]) for name, values in norms.items()}
            expected = None if span.sample.missing else first + place - span.offset
            yield {
                "id": number,
                "text": words.piece(number),
                "position": position,
                "norm": {name: float(f"{value:.5g}") if isfinite(value) else None for name, value in norm.items()},
                "bad": _fault(norm, position, expected),
            }


def _norms(states: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Euclidean norm of each row of [N, H] states, not finite where the row is not: [N]."""
    with np.errstate(invalid="ignore"):  # a damaged value may be a signalling NaN
        values = to_float32(states).astype(np.float64)
        norms: npt.NDArray[np.float64] = np.sqrt(np.einsum("nh,nh->n", values, values))
    return norms


def _fault(norm: dict[str, float], position: int, expected: int | None) -> str | None:
    """Why a row cannot be right, or None. `norm` is by boundary."""
    broken = [name for name, value in norm.items() if not isfinite(value)]
    zero = [name for name, value in norm.items() if value == 0]
    faults = []
    if broken:
        faults.append(f"not finite at {', '.join(broken)}")
    if zero:
        faults.append(f"all zero at {', '.join(zero)}")
    if expected is not None and position != expected:
        faults.append(f"position {position}, expected {expected}")
    return "; ".join(faults) or None
