"""`kimi-agent shards ls|show|verify|compare|…`: dumps on this host from a terminal or a script."""

import argparse
import sys
from pathlib import Path
from typing import Final, TextIO

from kimi_agent.errors import Exit, UsageError
from kimi_agent.shards import tables
from kimi_agent.shards.dumps import find_dumps, is_dump, open_dump
from kimi_agent.shards.export.cli import add_export_parser, run
from kimi_agent.shards.inspect import cli as inspect
from kimi_agent.shards.output import put
from kimi_agent.shards.repair import repair
from kimi_agent.shards.show import SAMPLES, TOKENS, list_dumps, list_shards, show_shard
from kimi_agent.shards.stats import dump_statistics
from kimi_agent.shards.verify import Progress, verify
from kimi_agent.text import clean

TERMINAL_SAMPLES: Final = 20
TERMINAL_TOKENS: Final = 200


def add_shards_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `shards` and its commands to the agent's command line."""
    shards = subparsers.add_parser("shards", help="list, show, verify and repair captured shards")
    commands = shards.add_subparsers(dest="shards_command", required=True, metavar="COMMAND")
    listed = _command(commands, "ls", "list the dumps below a directory, or the shards of one dump")
    listed.add_argument("directory", type=Path, metavar="DIR")
    listed.add_argument("--limit", type=int, metavar="N", help="the newest N shards of a dump (all)")
    shown = _command(commands, "show", "show a shard's tensors, statistics, samples and tokens")
    shown.add_argument("directory", type=Path, metavar="DIR|SHARD", help="a dump, or a shard's file")
    shown.add_argument("shard", nargs="?", help="name of the shard; the dump's first when left out")
    shown.add_argument("--rid", metavar="RID", help="one sample: its layers and every marked token")
    shown.add_argument("--first", type=int, default=0, metavar="N", help="first sample shown (0)")
    shown.add_argument(
        "--samples", type=int, metavar="N", help=f"most samples shown ({TERMINAL_SAMPLES}, JSON {SAMPLES})"
    )
    shown.add_argument("--token", type=int, default=0, metavar="N", help="first token shown of each sample (0)")
    shown.add_argument(
        "--tokens", type=int, metavar="N", help=f"most tokens shown, in all ({TERMINAL_TOKENS}, JSON {TOKENS})"
    )
    verified = _command(commands, "verify", "check every committed shard; exit 5 when anything is wrong")
    verified.add_argument("directory", type=Path, metavar="DIR")
    verified.add_argument(
        "--model", type=Path, nargs="?", const=Path(), metavar="DIR",
        help="check the states with the model's weights too, those in DIR or where the dump says they are",
    )  # fmt: skip
    verified.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="Python that runs the model, with transformers [this]"
    )
    inspect.add_compare_parser(
        _command(commands, "compare", "hold two dumps, or two samples, against each other; exit 5 when they differ")
    )
    inspect.add_match_parser(
        _command(commands, "match", "say which of the model's states a sample's rows are, by a forward pass")
    )
    repaired = _command(commands, "repair", "set right what a crash left; exit 5 when a dump does not verify after it")
    repaired.add_argument("directory", type=Path, metavar="DIR")
    add_export_parser(
        _command(commands, "export", "write a dump as a trainer reads it; exit 5 when samples are left out")
    )
    counted = _command(commands, "stats", "statistics of each dump, from the shards' metadata")
    counted.add_argument("directory", type=Path, metavar="DIR")


def run_shards(args: argparse.Namespace) -> int:
    """Run one `shards` command; returns the exit code: 0 all is well, 5 something is wrong.

    Raises:
        UsageError: the path is not what the command needs.
        KimiError: the shard to show is damaged.
    """
    commands = {
        "ls": _ls, "show": _show, "verify": _verify, "repair": _repair, "stats": _stats, "export": run,
        "compare": inspect.run_compare, "match": inspect.run_match,
    }  # fmt: skip
    return commands[args.shards_command](args)


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, about: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=about, description=about)
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    return parser


def _ls(args: argparse.Namespace) -> int:
    if is_dump(args.directory):
        listing = list_shards(args.directory, args.limit)
        put(args, listing, tables.shard_table(listing))
        return int(Exit.FAILED if listing["problems"] else Exit.OK)
    dumps = list_dumps(args.directory)
    put(args, dumps, tables.dump_table(args.directory, dumps))
    return int(Exit.FAILED if any(dump["problems"] for dump in dumps) else Exit.OK)


def _show(args: argparse.Namespace) -> int:
    if args.rid is not None:
        facts, lines = inspect.show_sample(args.directory, args.rid)
        put(args, facts, lines)
        return int(Exit.OK)
    directory, name = args.directory, args.shard
    if directory.is_file():
        directory, name = directory.parent, directory.name
    if name is None:
        commits = open_dump(directory).commits
        if not commits:
            raise UsageError(f"{directory} has no committed shard", "Nothing was captured into it yet")
        name = commits[0].shard
    tokens, samples = (TOKENS, SAMPLES) if args.json else (TERMINAL_TOKENS, TERMINAL_SAMPLES)
    shown = show_shard(
        directory, name, first=args.first, token=args.token,
        samples=samples if args.samples is None else args.samples,
        tokens=tokens if args.tokens is None else args.tokens,
    )  # fmt: skip
    put(args, shown, tables.shard_lines(shown))
    return int(Exit.OK)


def _verify(args: argparse.Namespace) -> int:
    dumps = _dumps(args.directory)
    results = [verify(dump, _progress(sys.stderr), _model(args.model, dump), args.python) for dump in dumps]
    ok = all(result.ok for result in results)
    verified = [result.as_json() for result in results]
    lines = [line for dump in verified for line in tables.verify_lines(dump)]
    put(args, {"ok": ok, "dumps": verified}, lines)
    return int(Exit.OK if ok else Exit.FAILED)


def _repair(args: argparse.Namespace) -> int:
    results = [repair(dump, _progress(sys.stderr)) for dump in _dumps(args.directory)]
    ok = all(result.ok for result in results)
    repaired = [result.as_json() for result in results]
    lines = [line for dump in repaired for line in tables.repair_lines(dump)]
    put(args, {"ok": ok, "dumps": repaired}, lines)
    return int(Exit.OK if ok else Exit.FAILED)


def _stats(args: argparse.Namespace) -> int:
    dumps = [dump_statistics(directory) for directory in _dumps(args.directory)]
    put(args, {"dumps": dumps}, [line for dump in dumps for line in tables.statistics_lines(dump)])
    return int(Exit.FAILED if any(dump["problems"] for dump in dumps) else Exit.OK)


def _model(given: Path | None, dump: Path) -> Path | None:
    """The directory of the weights: as given, or of the dump's own model for a bare --model."""
    if given is None or given != Path():
        return given
    manifest = open_dump(dump).manifest
    path = manifest.model.get("path") if manifest else None
    if path is None or not Path(path).is_dir():
        raise UsageError(f"the model of {dump} is not on this host", "Give its directory: --model DIR")
    return Path(path)


def _dumps(directory: Path) -> list[Path]:
    found = [dump.directory for dump in find_dumps(directory)]
    if not found:
        raise UsageError(f"there is no dump in {directory}", "Give a dump's directory, or the one that dumps are in")
    return found


def _progress(stream: TextIO) -> Progress | None:
    """A line on a terminal that is written over; nothing when stderr is not one."""
    if not stream.isatty():
        return None

    def show(done: int, total: int, shard: str) -> None:
        line = f"{tables.size(done)} of {tables.size(total)}  {clean(shard, 40)}" if shard else ""
        stream.write(f"\r\x1b[K{line}")
        stream.flush()

    return show
