"""The inspector's own process: `python -m kimi_agent.shards.inspect.worker CACHE`, requests and answers as JSON lines.

It stays while a screen is open, so that numpy and the indexes are loaded once. It answers `{"id", "op", "params"}` on
stdin with `{"id", "result"}` or `{"id", "error": {"slug", "message", "hint", "exit"}}` on stdout. Between requests it
goes on with what was begun, in slices, as long as somebody asks; it ends with its stdin.
"""

import os
import select
import sys
from pathlib import Path
from time import monotonic
from typing import Any, Final

import orjson

from kimi_agent.errors import KimiError
from kimi_agent.shards.inspect.desk import Desk
from kimi_agent.text import clean

SLICE: Final = 0.05
"""Seconds of work between two looks at stdin: what a request may have to wait."""
ASKED: Final = 5.0
"""Seconds after the last request in which work goes on: a screen that waits for it asks again."""


def answer(desk: Desk, line: bytes) -> bytes:
    """The answer to one request, as a line."""
    request: dict[str, Any] = orjson.loads(line)
    try:
        return _line({"id": request["id"], "result": desk.do(request["op"], request["params"])})
    except KimiError as error:
        told = error
    except MemoryError:
        told = KimiError("this host has not enough memory to read it", "Try again when more of it is free")
    except OSError as error:
        told = KimiError(clean(f"it cannot be read: {error}"), "Check the disk and the permissions", slug="unreadable")
    except ValueError as error:
        told = KimiError(clean(f"it is damaged: {error}"), "See what is lost with: kimi-agent shards verify")
    fields = {"slug": told.slug, "message": told.message, "hint": told.hint, "exit": int(told.exit)}
    return _line({"id": request["id"], "error": fields})


def serve(desk: Desk, source: int, sink: int) -> None:
    """Answer until the source ends."""
    rest, asked = b"", monotonic()
    while True:
        busy = monotonic() - asked < ASKED and desk.work(SLICE)
        if not select.select([source], [], [], 0 if busy else None)[0]:
            continue
        data = os.read(source, 1 << 16)
        if not data:
            return
        asked = monotonic()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            _write(sink, answer(desk, line))


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY) + b"\n"


def _write(sink: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(sink, rest) :]


def main() -> None:
    """Serve stdin."""
    desk = Desk(Path(sys.argv[1]))
    try:
        serve(desk, 0, 1)
    except BrokenPipeError:
        return
    finally:
        desk.close()


if __name__ == "__main__":
    main()
