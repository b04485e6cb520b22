"""The shards commands' answers as lines for a terminal."""

import unicodedata
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from kimi_agent.counts import many
from kimi_agent.text import clean

LOST_NAMED = 10
"""Requests of a lost shard that are named on a terminal; `--json` names all."""
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """Bytes in the unit that leaves at most four digits: `1.21 GiB`."""
    place = 0
    while count >= 1024 and place < len(UNITS) - 1:
        count, place = count / 1024, place + 1
    return f"{count:.0f} {UNITS[place]}" if place == 0 or count >= 100 else f"{count:.3g} {UNITS[place]}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> list[str]:
    """Columns under their heads, aligned to the left where `left` names them, else to the right."""
    lines = [head, *rows]
    widths = [max(_width(line[column]) for line in lines) for column in range(len(head))]
    return [
        "  ".join(_pad(cell, widths[column], right=column not in left) for column, cell in enumerate(line)).rstrip()
        for line in lines
    ]


def dump_table(root: Path, dumps: Sequence[Mapping[str, Any]]) -> list[str]:
    """The dumps below a directory."""
    if not dumps:
        return [f"no dumps in {clean(str(root))}"]
    rows = [
        (dump["dump"], _count(dump["samples"]), _count(dump["rows"]), _count(dump["shards"]), size(dump["bytes"]),
         _time(dump["time"]), clean(dump["directory"]))
        for dump in dumps
    ]  # fmt: skip
    head = ("dump", "samples", "rows", "shards", "size", "last commit", "directory")
    problems = [f"! {dump['dump']}: {problem}" for dump in dumps for problem in dump["problems"]]
    writers = [f"– {dump['dump']}: {writer}" for dump in dumps for writer in dump["writers"]]
    return [*table(head, rows, left=(0, 6)), *problems, *writers]


def shard_table(listing: Mapping[str, Any]) -> list[str]:
    """The shards of one dump under its layers in every convention."""
    rows = [
        (shard["shard"], _count(shard["rows"]), _count(shard["samples"]), size(shard["bytes"]), _time(shard["time"]))
        for shard in listing["shards"]
    ]
    older = f", {listing['more']} older ones not listed" if listing["more"] else ""
    total = f"{many(len(rows), 'shard')}{older}, {many(sum(shard['rows'] for shard in listing['shards']), 'row')}"
    lines = table(("shard", "rows", "samples", "size", "committed"), rows)
    return [*_layers(listing), *lines, total, *(f"! {problem}" for problem in listing["problems"])]


def shard_lines(shown: Mapping[str, Any]) -> list[str]:
    """One shard's contents."""
    tensors = [
        (name, tensor["dtype"], " × ".join(map(str, tensor["shape"]))) for name, tensor in shown["tensors"].items()
    ]
    lines = [
        f"{shown['shard']}{'' if shown['committed'] else '  NOT COMMITTED'}",
        *table(("tensor", "dtype", "shape"), tensors, left=(0, 1, 2)),
        "",
        *_statistics(shown["statistics"]),
        "",
        f"text: {shown['text_source']}",
    ]
    for sample in shown["samples"]:
        lines += _sample(sample)
    return [*lines, f"{shown['more']} more samples, shown by --first and --samples"] if shown["more"] else lines


def verify_lines(dump: Mapping[str, Any]) -> list[str]:
    """One verified dump: what is wrong, what is not committed, the counts."""
    lines = [f"{dump['dump']}  {clean(dump['directory'])}"]
    found = [*dump["problems"], *(problem for shard in dump["shards"] for problem in shard["problems"])]
    lines += [f"  BAD  {problem['file']}: {problem['text']}. {problem['advice']}" for problem in found]
    lines += [
        f"  –    {entry['file']}: {entry['kind']}, {size(entry['bytes'])}, not counted" for entry in dump["uncommitted"]
    ]
    if dump["torn_commit"]:
        lines.append("  –    commits.jsonl: its last line was cut by a crash; what it named was never committed")
    lines += [_model_check(check) for check in dump["model"]["checks"]] if dump["model"] else []
    rate = f" in {dump['seconds']:.1f} s" if dump["seconds"] else ""
    good = dump["checked"] - dump["bad"]
    rows = f"{many(dump['rows'], 'row')}, {many(dump['samples'], 'sample')}"
    counts = f"{good} of {many(dump['checked'], 'shard')} good: {rows}"
    verdict = "ok" if dump["ok"] else "NOT OK"
    return [*lines, f"  {verdict}: {counts}, {size(dump['bytes'])} checked{rate}"]


def _model_check(check: Mapping[str, Any]) -> str:
    if check["ok"] is None:
        return f"  –    {check['check']} not checked: {check['note']}"
    found = "ok" if check["ok"] else "BAD"
    return f"  {found:<5}{check['check']}: {_count(check['rows'])} of {many(check['of'], 'row')} checked"


def repair_lines(dump: Mapping[str, Any]) -> list[str]:
    """One repaired dump: what was found, what was done, what is lost, what is left to a person."""
    lines = [f"{dump['dump']}  {clean(dump['directory'])}"]
    if dump["held"]:
        return [*lines, f"  NOT TOUCHED: {dump['held']}. Stop the dump or its server, then repair"]
    lines += [f"  –     {who} was killed while it wrote" for who in dump["killed"]]
    lines += [f"  –     {clean(name)}: was not finished, removed" for name in dump["removed"]]
    lines += [f"  –     {clean(name)}: whole, committed now" for name in dump["committed"]]
    lines += [f"  –     {clean(name)}: moved into quarantine" for name in dump["quarantined"]]
    if dump["lines"]:
        lines.append(f"  –     commits.jsonl: {many(dump['lines'], 'line')} taken out")
    lines += [_lost(entry) for entry in dump["lost"]]
    lines += [f"  BAD   {problem['file']}: {problem['text']}. {problem['advice']}" for problem in dump["left"]]
    verdict = "ok" if dump["ok"] else "NOT OK"
    return [
        *lines,
        f"  {verdict}: {many(dump['shards'], 'shard')}, {many(dump['rows'], 'row is', 'rows are')} committed",
    ]


def statistics_lines(dump: Mapping[str, Any]) -> list[str]:
    """One dump's statistics."""
    tokens = f"{_count(dump['prompt_tokens'])} prompt + {_count(dump['output_tokens'])} output tokens"
    reasons = ", ".join(f"{reason} {_count(count)}" for reason, count in dump["finish_reasons"].items())
    missing = ", ".join(f"{reason} {_count(rows)}" for reason, rows in dump["missing"].items())
    return [
        f"{dump['dump']}  {clean(dump['directory'])}",
        f"{many(dump['rows'], 'row')} of {many(dump['samples'], 'sample')} in {many(dump['shards'], 'shard')}, "
        f"{tokens}",
        f"finished: {reasons or '–'}   missing rows: {missing or 'none'}",
        *_statistics(dump["statistics"]),
        *(f"! {problem}" for problem in dump["problems"]),
    ]


def _lost(entry: Mapping[str, Any]) -> str:
    named = ", ".join(entry["rids"][:LOST_NAMED]) or "not known which"
    more = f" and {len(entry['rids']) - LOST_NAMED} more" if len(entry["rids"]) > LOST_NAMED else ""
    counts = f"{many(entry['rows'], 'row')} of {many(entry['samples'], 'request')}"
    return f"  LOST  {clean(entry['shard'])}: {entry['problem']}; {counts}: {named}{more}"


def _statistics(statistics: Mapping[str, Mapping[str, float]]) -> list[str]:
    rows = [
        (name, f"{entry['rms']:.4g}", *([f"{entry['rms_spread']:.2g}"] if "rms_spread" in entry else []),
         f"{entry['max_abs']:.4g}", _count(entry["non_finite"]), _count(entry["zero_rows"]))
        for name, entry in statistics.items()
    ]  # fmt: skip
    spread = ["±"] if rows and len(rows[0]) == 6 else []
    return table(("boundary", "rms", *spread, "max", "non-finite", "zero rows"), rows)


def _layers(listing: Mapping[str, Any]) -> Iterator[str]:
    for boundary in listing["boundaries"]:
        spellings = listing["conventions"].get(str(boundary), {})
        named = " · ".join(f"{clean(name)} {number}" for name, number in spellings.items())
        output = f"output of block {boundary - 1}" if boundary else "the embedding"
        yield f"boundary {boundary} = input of block {boundary} = {output} · {named}"


def _sample(sample: Mapping[str, Any]) -> Iterator[str]:
    tokens = f"{sample['prompt_tokens']} prompt + {sample['output_tokens']} output tokens"
    bad = f", ! {sample['bad']} bad rows" if sample["bad"] else ""
    yield ""
    yield f"{sample['rid']}  {tokens}, {many(sample['rows'], 'row')}, finished: {sample['finish_reason']}{bad}"
    if sample["text"]:
        yield f"  {sample['text']}"
    rows = [
        (str(token["position"]), str(token["id"]), repr(token["text"]) if token["text"] else "",
         *("–" if value is None else f"{value:.4g}" for value in token["norm"].values()),
         f"! {token['bad']}" if token["bad"] else "")
        for token in sample["tokens"]
    ]  # fmt: skip
    if rows:
        norms = [f"norm {name}" for name in sample["tokens"][0]["norm"]]
        yield from (
            f"  {line}" for line in table(("position", "id", "text", *norms, ""), rows, left=(2, 3 + len(norms)))
        )
    left = sample["rows"] - sample["first_token"] - len(rows)
    if left > 0:
        yield f"  {left} more tokens, shown by --tokens or --token"


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _time(time: float | None) -> str:
    if time is None or not 0 <= time < 1e11:
        return "–"
    return datetime.fromtimestamp(time).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _pad(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space
