"""`kimi-agent shards compare` and `match`, and `show --rid`: the inspector's facts for a terminal or a script."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kimi_agent.counts import many
from kimi_agent.errors import Exit, UsageError
from kimi_agent.shards.dumps import Dump
from kimi_agent.shards.inspect.boundary import best_boundaries
from kimi_agent.shards.inspect.compare import PAIRS, DumpPair, compare_samples
from kimi_agent.shards.inspect.listing import Listing
from kimi_agent.shards.inspect.rows import SampleRows
from kimi_agent.shards.output import put
from kimi_agent.shards.tables import table
from kimi_agent.text import clean

MARKED: Final = 20
"""Marked tokens that a terminal shows; `--json` has all."""


def add_compare_parser(parser: argparse.ArgumentParser) -> None:
    """The arguments of `shards compare`."""
    parser.add_argument("one", type=Path, metavar="DIR")
    parser.add_argument("other", type=Path, metavar="DIR", help="another dump; or the same one, with --rid and --with")
    parser.add_argument("--rid", metavar="RID", help="compare this sample only")
    parser.add_argument("--with", dest="other_rid", metavar="RID", help="the other one's sample (of the same name)")
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N", help=f"most pairs that are compared ({PAIRS})")


def add_match_parser(parser: argparse.ArgumentParser) -> None:
    """The arguments of `shards match`."""
    parser.add_argument("directory", type=Path, metavar="DIR")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rid", metavar="RID", help="the sample (the first whole one)")
    which.add_argument("--shard", metavar="NAME", help="the shard whose sample --place is taken")
    parser.add_argument("--place", type=int, default=0, metavar="N", help="the sample's place in --shard (0)")
    parser.add_argument("--model", type=Path, metavar="DIR", help="the model's weights (where the manifest says)")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="Python with transformers [this]")


def run_compare(args: argparse.Namespace) -> int:
    """Compare; 0 when what was compared is the same, 5 when it is not.

    Raises:
        KimiError: there is no such dump or sample, or its shard is damaged.
    """
    one, other = Listing(args.one), Listing(args.other)
    if args.rid is not None:
        pair = [_rows(side, rid) for side, rid in ((one, args.rid), (other, args.other_rid or args.rid))]
        found = compare_samples(pair[0], pair[1])
        put(args, found, pair_lines(found))
        return int(Exit.OK if found["same"] else Exit.FAILED)
    dumps, told = DumpPair(one, other, most=max(1, args.pairs)), 0
    while dumps.step():
        for result in dumps.results[told:]:
            put(args, {"pair": result}, [_pair_line(result)])
        told = len(dumps.results)
    found = dumps.as_json()
    put(args, {"summary": found}, dump_lines(found))
    return int(Exit.OK if found["same"] else Exit.FAILED)


def run_match(args: argparse.Namespace) -> int:
    """Say which states a sample's rows are; 0 when they are what they are called, 5 when not or when it is not known.

    Raises:
        KimiError: there is no such dump or sample, or its shard is damaged, or the model is another one.
    """
    listing = Listing(args.directory)
    shard, place = (args.shard, args.place) if args.shard else _find(listing, args.rid)
    opened = listing.open(shard)
    if not 0 <= place < len(opened.meta.samples):
        raise UsageError(f"there is no sample {place} in {clean(shard)}", "Give --rid, or a smaller --place.")
    found = best_boundaries(Dump(listing.directory, listing.manifest, ()), opened, place, args.model, args.python)
    put(args, found, match_lines(found))
    right = found["columns"] and all(column["right"] and column["fits"] for column in found["columns"])
    return int(Exit.OK if right else Exit.FAILED)


def show_sample(directory: Path, rid: str) -> tuple[dict[str, Any], list[str]]:
    """What `shards show --rid` prints of a sample: its layers, and every marked token.

    Raises:
        KimiError: there is no such dump or sample, or its shard is damaged.
    """
    listing = Listing(directory)
    rows = _rows(listing, rid)
    rows.step(float("inf"))
    facts = rows.facts(None) | {"dump_layers": listing.layers(), "marked": list(_marked(rows))}
    return facts, sample_lines(facts)


def sample_lines(facts: dict[str, Any]) -> list[str]:
    """A sample's layers beside the dump's, and its marked tokens."""
    usual = facts["dump_layers"]
    layers = [
        (name, f"{entry['rms']:.4g}", f"{usual[name]['rms']:.4g}" if name in usual else "–", f"{entry['max_abs']:.4g}",
         _number(entry["cosine_before"]), str(entry["non_finite"]), str(entry["zero_rows"]),
         str(entry["duplicate_rows"]))
        for name, entry in facts["layers"].items()
    ]  # fmt: skip
    head = ("boundary", "rms", "dump", "max", "cosine before", "non-finite", "zero rows", "equal rows")
    marked = [f"{one['mark']} token {one['token']}: {one['why']}" for one in facts["marked"][:MARKED]]
    more = len(facts["marked"]) - len(marked)
    tokens = f"{facts['prompt_tokens']} prompt + {facts['output_tokens']} output tokens, {many(facts['rows'], 'row')}"
    return [
        f"{facts['rid']}  {tokens}",
        *table(head, layers), *marked, *([f"{more} more marked tokens"] if more else []),
    ]  # fmt: skip


def pair_lines(found: dict[str, Any]) -> list[str]:
    """Two samples beside each other."""
    one, other = found["one"], found["other"]
    head = f"{one['rid']}, {many(one['rows'], 'row')}  and  {other['rid']}, {many(other['rows'], 'row')}"
    first = found["first_different"]
    ids = " and ".join("the end" if number is None else str(number) for number in found["ids"])
    tokens = "the same tokens" if first is None else f"the same tokens up to {first}: there {ids}"
    notes = [found["note"]] if found["note"] else []
    return [head, tokens, *notes, *_layer_lines(found), *_only(found), "same" if found["same"] else "NOT THE SAME"]


def dump_lines(found: dict[str, Any]) -> list[str]:
    """Two dumps beside each other."""
    how = f"{found['by_rid']:,} by request id, {found['by_tokens']:,} by tokens"
    counts = f"{many(found['matched'], 'sample is', 'samples are')} in both ({how})"
    only = f"{found['only_one']:,} only in {found['one']}, {found['only_other']:,} only in {found['other']}"
    tokens = f"{found['different_tokens']} of {found['done']} compared pairs differ in their tokens"
    problems = [f"! {problem}" for problem in found["problems"]]
    verdict = "same" if found["same"] else "NOT THE SAME" if found["done"] else "nothing to compare"
    return [counts, only, tokens, *_layer_lines(found), *problems, verdict]


def match_lines(found: dict[str, Any]) -> list[str]:
    """Which states a sample's columns are."""
    head = f"{found['rid']} in {found['shard']}"
    if found["why"]:
        return [head, f"not known: {found['why']}"]
    rows = [
        (column["layer"], column["best"], _number(column["best_distance"]), _number(column["claimed_distance"]),
         "" if column["right"] and column["fits"] else "BAD" if column["fits"] else "no state fits")
        for column in found["columns"]
    ]  # fmt: skip
    head += f", {many(found['rows'], 'row')} through {found['model']}"
    return [head, *table(("called", "is", "distance", "as called", ""), rows, left=(0, 1, 4)), *found["findings"]]


def _layer_lines(found: dict[str, Any]) -> list[str]:
    rows = []
    for name, entry in found["layers"].items():
        near = found["nearest"].get(name)
        near = near["layer"] if isinstance(near, dict) else near
        rows.append((
            name, f"{entry['rows']:,}", _number(entry["cosine"]), _number(entry["lowest"]), _number(entry["distance"]),
            f"{entry['equal_rows']:,}", f"{entry['foreign_rows']:,}", near or "–",
        ))  # fmt: skip
    head = ("boundary", "rows", "cosine", "lowest", "distance", "bit-equal", "foreign", "nearest")
    lines = table(head, rows) if rows else []
    return lines + [f"{name}'s nearest there is {near['layer'] if isinstance(near, dict) else near}"
                    for name, near in found["nearest"].items() if name not in found["layers"]]  # fmt: skip


def _only(found: dict[str, Any]) -> list[str]:
    sides = (("the first", found["only_one"]), ("the second", found["only_other"]))
    return [f"only in {side}: {', '.join(names)}" for side, names in sides if names]


def _pair_line(result: dict[str, Any]) -> str:
    cosines = "  ".join(f"{name} {_number(entry['cosine'])}" for name, entry in result["layers"].items())
    first = result["first_different"]
    return f"{result['one']['rid']}  {cosines}" + ("" if first is None else f"  tokens differ at {first}")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _marked(rows: SampleRows) -> Iterator[dict[str, Any]]:
    row = rows.next_bad(-1, 1)
    while row is not None:
        yield {"token": row, "mark": rows.mark(row), "why": rows.why(row)}
        row = rows.next_bad(row, 1)


def _find(listing: Listing, rid: str | None) -> tuple[str, int]:
    """The shard and the place of a sample by its request id; of the first one without. Raises UsageError."""
    index = listing.index
    while index.step(1.0):
        pass
    wanted = None if rid is None else clean(rid)
    for number, held in enumerate(index.rids):
        if wanted in (None, held) and (wanted is not None or index.numbers[number, 3] == 0):
            place, within = index.shard_of(number)
            return index.commits[place].shard, within
    what = "whole sample" if rid is None else f"sample {wanted}"
    raise UsageError(f"there is no {what} in {listing.directory}", "List them with: kimi-agent shards show")


def _rows(listing: Listing, rid: str) -> SampleRows:
    shard, place = _find(listing, rid)
    return SampleRows(listing.open(shard), place)
