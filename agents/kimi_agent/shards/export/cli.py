"""`kimi-agent shards export DIR OUT`: the command line of the exporters."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson

from kimi_agent.counts import many
from kimi_agent.errors import Exit
from kimi_agent.shards.export.run import FORMATS, ExportResult, make_plan, run_export
from kimi_agent.shards.masks import mask_words
from kimi_agent.shards.meter import Meter

JOBS: Final = 4
"""Most processes, unless told otherwise."""
NAMED: Final = 10
"""Samples left out that a terminal names; `--json` names all."""


def add_export_parser(parser: argparse.ArgumentParser) -> None:
    """The arguments of `shards export`."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a dump")
    parser.add_argument("out", type=Path, metavar="OUT", help="a new directory, or one that an export began in")
    parser.add_argument("--format", required=True, choices=list(FORMATS), help="who is to read it")
    parser.add_argument(
        "--layers", type=int, nargs="+", metavar="B", help="physical boundaries to export (all that the dump has)"
    )
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="the model's weights, for a format before the norm (the dump's)"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help=f"processes (the processors, at most {JOBS})")


def run(args: argparse.Namespace) -> int:
    """Export; 0 when every sample is in it, 5 when some are left out.

    Raises:
        KimiError: it cannot be exported.
    """
    jobs = args.jobs or min(JOBS, os.cpu_count() or 1)
    plan = make_plan(args.directory, args.out, args.format, tuple(args.layers) if args.layers else None, args.model)
    result = run_export(plan, jobs, Meter.on(sys.stderr))
    if args.json:
        sys.stdout.buffer.write(orjson.dumps(result.as_json()) + b"\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in _lines(result)))
    sys.stdout.flush()
    return int(Exit.FAILED if result.refused else Exit.OK)


def _lines(result: ExportResult) -> Iterator[str]:
    labels = result.labels
    ids = labels["layer_ids"]
    yield f"{result.out}  for {labels['consumer']}"
    boundaries, spelled = (" ".join(map(str, numbers)) for numbers in (labels["boundaries"], ids["ids"]))
    yield f"  boundaries {boundaries} = {spelled} as {ids['convention']}"
    yield f"  last state {labels['last_hidden_state']}"
    yield f"  loss masks {mask_words(result.sources) or '–'}"
    for one in result.refused[:NAMED]:
        yield f"  LEFT OUT  {one.rid or one.shard}: {one.why}"
    if len(result.refused) > NAMED:
        yield f"  LEFT OUT  {len(result.refused) - NAMED} more, named by --json"
    verdict = "ok" if not result.refused else "NOT OK"
    earlier = result.samples - result.new
    before = f", {earlier:,} of them by an earlier run" if earlier else ""
    whole = f"{many(result.samples, 'sample')}, {many(result.tokens, 'token')}"
    yield f"  {verdict}: {whole}{before}; {result.left_out:,} left out"
