"""`kimi-agent feed DATASET --dump DIR`: its command line."""

import argparse
import sys
from pathlib import Path
from typing import Final

from kimi_agent.errors import Exit, UsageError
from kimi_agent.paths import Home, default_home

NAMED: Final = 20
"""Missing rows that a terminal names."""
PATIENCE: Final = 900.0
"""Seconds for one answer of the agent: to go on with a dump, its ranks open every shard of it."""


def add_feed_parser(parser: argparse.ArgumentParser) -> None:
    """The arguments of `feed`."""
    parser.add_argument("dataset", type=Path, metavar="DATASET", help="JSONL or Parquet: conversations, prompts or ids")
    parser.add_argument("--dump", type=Path, required=True, metavar="DIR", help="a new dump, or one to go on with")
    parser.add_argument("--regenerate", action="store_true", help="have last answers made anew where one is given")
    parser.add_argument("--max-new-tokens", type=int, default=512, metavar="N", help="longest answer to be made (512)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="of answers to be made (0)")
    parser.add_argument("--chat-template", type=Path, metavar="FILE", help="a Jinja template (the server's)")
    parser.add_argument("--concurrency", type=int, default=256, metavar="N", help="most requests in flight (256)")
    parser.add_argument("--request-timeout", type=float, default=600.0, metavar="S", help="seconds for one (600)")
    parser.add_argument("--json", action="store_true", help="JSON lines on stdout")


def run(args: argparse.Namespace) -> int:
    """Feed; 0 when every row is captured, 5 when some are missing, 130 when it was interrupted.

    Raises:
        KimiError: nothing can be fed.
    """
    from kimi_agent import daemon
    from kimi_agent.feed.accounts import lines
    from kimi_agent.feed.report import Reporter
    from kimi_agent.feed.run import INTERRUPTED, Feed, Options, summary
    from kimi_agent.feed.target import find_target
    from kimi_agent.wire.client import Client

    _check(args)
    home = Home((args.home or default_home()).absolute())
    daemon.connect(home, start=False).close()
    client = Client(home.socket, timeout=PATIENCE)
    options = Options(
        args.dataset, args.regenerate, args.max_new_tokens, args.temperature, args.chat_template, args.concurrency,
        args.request_timeout,
    )  # fmt: skip
    reporter = Reporter(as_json=args.json)
    feed = Feed(client, find_target(client, home, args.dump), options, reporter)
    try:
        accounts = feed.run()
    finally:
        reporter.end()
    for one in accounts.missing:
        reporter.event({"event": "row", "row": one.row, "state": "missing", "kind": one.kind, "why": one.why})
    reporter.event(summary(feed, accounts))
    if not args.json:
        print("\n".join(lines(accounts, NAMED)))
    if feed.gone:
        print(f"kimi-agent: {feed.gone}; the same command goes on where it stopped", file=sys.stderr)
    if feed.gone == INTERRUPTED:
        return int(Exit.INTERRUPTED)
    return int(Exit.FAILED if accounts.missing else Exit.OK)


def _check(args: argparse.Namespace) -> None:
    if not args.dataset.is_file():
        what = "is not a file" if args.dataset.exists() else "does not exist"
        raise UsageError(f"{args.dataset} {what}", "Give a JSONL or Parquet file.")
    if args.chat_template is not None and not args.chat_template.is_file():
        raise UsageError(f"the chat template {args.chat_template} is not a file", "Give a Jinja file.")
    if args.max_new_tokens < 1 or args.concurrency < 1 or args.request_timeout <= 0:
        raise UsageError("--max-new-tokens, --concurrency and --request-timeout are at least 1", "Correct them.")
