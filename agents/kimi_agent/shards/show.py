"""One dump's list of shards and one shard's contents, as JSON for the screen and the command line."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

import orjson

from kimi_agent.errors import KimiError, UsageError
from kimi_agent.shards.dumps import Dump, find_dumps, open_dump, validated
from kimi_agent.shards.inspect.rows import SampleRows, sample_facts
from kimi_agent.shards.stats import quick_statistics
from kimi_agent.shards.tokens import Vocabulary, load_vocabulary
from kimi_agent.text import clean
from kimi_capture.format import PRE_NORM_RMS, Sample, Shard, read_shard

ANSWER_BYTES: Final = 900_000
"""Size of the samples in an answer, so that all of it stays under the wire's 1 MiB a line."""
SAMPLES: Final = 200
TOKENS: Final = 4000
MAX_TOKENS: Final = 20_000
PROBLEMS: Final = 200
"""Problems that a listing spells out; the rest are counted."""
BLOCK: Final = 64
"""Tokens that are spelled out at a time."""


@dataclass(frozen=True, slots=True)
class _Span:
    """The rows of a sample that are shown: `begin` to `end`, of the rows from `offset` on."""

    sample: Sample
    place: int
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
    held = zip(shard.meta.samples[first:last], shard.sample_offsets[first:].tolist(), strict=False)
    for place, (sample, offset) in enumerate(held, first):
        begin = min(offset + token, offset + sample.rows)
        end = min(offset + sample.rows, begin + tokens)
        spans.append(_Span(sample, place, offset, begin, end))
        tokens -= end - begin
    return spans


def _samples(shard: Shard, spans: list[_Span], words: Vocabulary) -> list[dict[str, Any]]:
    """The samples' heads as far as they fit, then their tokens as far as those fit."""
    room, shown = ANSWER_BYTES, []
    read: list[SampleRows] = []
    for span in spans:
        rows = SampleRows(shard, span.place)
        rows.step(inf)
        head = _head(shard, rows, span, words)
        room -= len(orjson.dumps(head)) + 1
        if room < 0:
            break
        shown.append(head)
        read.append(rows)
    for span, rows, entry in zip(spans, read, shown, strict=False):
        for line in _tokens(rows, span, words):
            room -= len(orjson.dumps(line)) + 1
            if room < 0:
                return shown
            entry["tokens"].append(line)
    return shown


def _head(shard: Shard, rows: SampleRows, span: _Span, words: Vocabulary) -> dict[str, Any]:
    sample = span.sample
    return {
        **sample_facts(sample),
        "bad": rows.bad,
        "text": words.text(shard.token_ids[span.begin : span.end].tolist()),
        "first_token": span.begin - span.offset,
        "tokens": [],
    }


def _tokens(rows: SampleRows, span: _Span, words: Vocabulary) -> Iterator[dict[str, Any]]:
    last = span.end - span.offset
    for first in range(span.begin - span.offset, last, BLOCK):
        for line in rows.lines(first, min(BLOCK, last - first), words):
            norm = dict(zip(rows.names, line["norm"], strict=True))
            bad = line["why"] if line["mark"] == "!" else None
            yield {"id": line["id"], "text": line["text"], "position": line["position"], "norm": norm, "bad": bad}
