"""The server's log: bytes to lines, lines to time, rank and message, batch lines to their figures."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from kimi_agent.engine.dialects import take_apart
from kimi_agent.text import MAX_LINE, clean

MAX_LINE_BYTES: Final = 262_144
"""A longer line is broken there, so that output without line ends cannot fill the memory."""

_GLUED_HEADER = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,\d]{0,4}(?: [A-Z_]{2,7}\d{1,5})*\] ")
_ACCESS = re.compile(r'(?:INFO: +)?\S+ - "[A-Z]+ \S+ HTTP/')
_BAR = re.compile(r"\d{1,3}%[^\[]{0,300}?(?P<done>\d{1,9})/(?P<total>\d{1,9}) \[")
_LONGEST_BAR = 1000
_SERVING = re.compile(r"\] (?:Decode|Prefill) batch|\] INFO: +[\d\[]")
_HEADER_ROOM = 200
_DETAIL = re.compile(r"\s*\([^()]{0,200}\)$")
_BATCH = re.compile(r"(?P<what>Prefill|Decode) batch(?: \[\d+\])?(?:\((?P<mixed>[^)]*)\))?[.,] (?P<tail>.*)")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log, taken apart."""

    time: float | None
    """Unix seconds by the host's clock and time zone, below `UNDATED` where no year is given; `None` without a time."""
    rank: str | None
    """Canonical tag, `DP0 TP1`; `None` for the main process and for a server of one rank."""
    message: str
    """What follows the header, or the whole line where there is none; what a container or launcher adds is gone."""
    kind: str
    """With a header: `batch` (Prefill, Decode), `access` (an HTTP request), `message`; else `bar` or `text`."""
    before: str = ""
    """Text that was glued in front of the header, a bar as a rule."""
    more: tuple[str, ...] = ()
    """Further lines of the same record, where a logger writes whole records: the rest of a traceback."""


def split_lines(chunk: bytes, carry: bytes) -> tuple[list[str], bytes]:
    """Complete lines of `carry + chunk` and the bytes to carry on.

    Lines end at a line feed, a carriage return or both. They come back cleaned of terminal escapes, invalid UTF-8
    replaced, long ones cut. However the bytes are chunked, the lines are the same.
    """
    body, carry = whole_lines(chunk, carry)
    return [to_text(part) for line in body.split(b"\n")[:-1] for part in split_long(line)], carry


def whole_lines(chunk: bytes, carry: bytes) -> tuple[bytes, bytes]:
    """The complete lines of `carry + chunk`, each ended by a line feed, and the bytes to carry on."""
    data = carry + chunk
    held = b""
    if data.endswith(b"\r"):
        # The line feed of this pair may be in the next chunk.
        data, held = data[:-1], b"\r"
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    end = data.rfind(b"\n") + 1
    while len(data) - end > MAX_LINE_BYTES:
        data = data[: end + MAX_LINE_BYTES] + b"\n" + data[end + MAX_LINE_BYTES :]
        end += MAX_LINE_BYTES + 1
    return data[:end], data[end:] + held


def split_long(line: bytes) -> list[bytes]:
    """A line broken where it is too long, and where a header follows so far on that it would be cut off."""
    if len(line) <= MAX_LINE:
        return [line]
    pieces = (line[start : start + MAX_LINE_BYTES] for start in range(0, len(line), MAX_LINE_BYTES))
    return [part for piece in pieces for part in _at_headers(piece)]


def _at_headers(line: bytes) -> list[bytes]:
    cuts = [0, *(match.start() for match in _GLUED_HEADER.finditer(line, 1)), len(line)]
    return [line[start:end] for start, end in pairwise(cuts)]


def to_text(line: bytes) -> str:
    """One line for people and rules: no terminal escapes, no invalid UTF-8, not too long."""
    return clean(line.decode("utf-8", "replace"))


def without_repeats(lines: Sequence[str]) -> list[str]:
    """A ready server's lines without its batch and access lines, but for the last of each kind."""
    seen: set[str] = set()
    kept: list[str] = []
    for line in reversed(lines):
        match = _SERVING.search(line, 0, _HEADER_ROOM)
        if match is None:
            kept.append(line)
        elif match[0] not in seen:
            seen.add(match[0])
            kept.append(line)
    return kept[::-1]


def parse(line: str) -> LogLine:
    """Take one line apart; never fails, whatever the text."""
    parts = take_apart(line)
    message = parts.message
    if not parts.headed:
        return LogLine(parts.time, parts.rank, message, "bar" if bar_position(message) else "text")
    return LogLine(parts.time, parts.rank, message, _kind(message), parts.glued, parts.more)


def _kind(message: str) -> str:
    if message.startswith(("Decode batch", "Prefill batch")):
        return "batch"
    return "access" if "HTTP/" in message and _ACCESS.match(message) else "message"


def bar_position(text: str) -> tuple[str, int, int] | None:
    """What a progress bar at the end of a text counts, how many are done and of how many; `None` without a bar."""
    match = _BAR.search(text[-_LONGEST_BAR:]) if "%" in text else None
    if match is None:
        return None
    what = _DETAIL.sub("", match.string[: match.start()].rstrip(" :|")).strip()
    return what[-80:], int(match["done"]), int(match["total"])


def batch_fields(message: str) -> dict[str, str]:
    """The `key: value` tail of a Prefill or Decode line, with `batch` naming which; empty for any other line.

    Read by key and never by position: the keys differ between versions and model families.
    """
    match = _BATCH.match(message)
    if match is None:
        return {}
    fields = {"batch": match["what"].lower()}
    for part in f"{match['mixed'] or ''}, {match['tail']}".split(", "):
        key, separator, value = part.partition(": ")
        if separator:
            fields[key.removeprefix("mixed ").strip()] = value.strip()
    return fields
