"""What a `shards` command prints on stdout."""

import argparse
import sys
from collections.abc import Sequence

import orjson


def put(args: argparse.Namespace, value: object, lines: Sequence[str]) -> None:
    """A value as one line of JSON where that was asked for, else lines of text, at once."""
    if args.json:
        sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
