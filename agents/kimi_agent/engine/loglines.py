"""The server's log: bytes to lines, lines to time, rank and message, batch lines to their figures."""

import re
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from kimi_agent.text import clean

MAX_LINE_BYTES: Final = 262_144
"""A longer line is broken there, so that output without line ends cannot fill the memory."""

TAG_ORDER: Final = ("DP", "PP", "ATTN_CP", "MOE_DP", "TP", "EP")
"""The dimensions of a rank tag in the order SGLang writes them today; older versions mixed them."""

_BREAK = re.compile(rb"\r\n|\r|\n")
_HEADER = re.compile(
    r"\[(?P<time>(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d{1,3})?)"
    r"(?P<tag>(?: (?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d{1,5})*)\](?: (?P<message>.*))?$"
)
_DIMENSION = re.compile(r"(DP|PP|ATTN_CP|MOE_DP|TP|EP)(\d{1,5})")
_ACCESS = re.compile(r'INFO: +\S+ - "[A-Z]+ \S+ HTTP/')
_BAR = re.compile(r"\d{1,3}%[^\[]{0,300}?(?P<done>\d{1,9})/(?P<total>\d{1,9}) \[")
_LONGEST_BAR = 1000
_DETAIL = re.compile(r"\s*\([^()]{0,200}\)$")
_BATCH = re.compile(r"(?P<what>Prefill|Decode) batch(?: \[\d+\])?(?:\((?P<mixed>[^)]*)\))?[.,] (?P<tail>.*)")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log, taken apart."""

    time: float | None
    """Unix seconds by the host's clock and time zone; `None` without a dated header."""
    rank: str | None
    """Canonical tag, `DP0 TP1`; `None` for the main process and for a server of one rank."""
    message: str
    """What follows the header, or the whole line where there is none."""
    kind: str
    """With a header: `batch` (Prefill, Decode), `access` (an HTTP request), `message`; else `bar` or `text`."""
    before: str = ""
    """Text that was glued in front of the header: a bar, a container's prefix."""


def split_lines(chunk: bytes, carry: bytes) -> tuple[list[str], bytes]:
    """Complete lines of `carry + chunk` and the bytes to carry on.

    Lines end at a line feed, a carriage return or both. They come back cleaned of terminal escapes, invalid UTF-8
    replaced, long ones cut. However the bytes are chunked, the lines are the same.
    """
    data = carry + chunk
    held = b""
    if data.endswith(b"\r"):
        # The line feed of this pair may be in the next chunk.
        data, held = data[:-1], b"\r"
    *complete, rest = _BREAK.split(data)
    pieces = [piece for line in complete for piece in _pieces(line)]
    *broken, rest = _pieces(rest)
    return [clean(piece.decode("utf-8", "replace")) for piece in (*pieces, *broken)], rest + held


def _pieces(line: bytes) -> list[bytes]:
    return [line[start : start + MAX_LINE_BYTES] for start in range(0, len(line), MAX_LINE_BYTES)] or [b""]


@lru_cache(maxsize=1024)
def canonical(tag: str) -> str | None:
    """A rank tag in today's order, from any order and any separator; `None` when it names no dimension."""
    if not tag:
        return None
    found = {name: int(number) for name, number in _DIMENSION.findall(tag)}
    return " ".join(f"{name}{found[name]}" for name in TAG_ORDER if name in found) or None


def parse(line: str) -> LogLine:
    """Take one line apart; never fails, whatever the text."""
    match = _HEADER.search(line)
    if match is None:
        return LogLine(None, None, line, "bar" if bar_position(line) else "text")
    message = match["message"] or ""
    return LogLine(_seconds(match["time"]), canonical(match["tag"]), message, _kind(message), line[: match.start()])


def _kind(message: str) -> str:
    if message.startswith(("Decode batch", "Prefill batch")):
        return "batch"
    return "access" if message.startswith("INFO: ") and _ACCESS.match(message) else "message"


def bar_position(text: str) -> tuple[str, int, int] | None:
    """What a progress bar at the end of a text counts, how many are done and of how many; `None` without a bar."""
    match = _BAR.search(text[-_LONGEST_BAR:]) if "%" in text else None
    if match is None:
        return None
    what = _DETAIL.sub("", match.string[: match.start()].rstrip(" :|")).strip()
    return what[-80:], int(match["done"]), int(match["total"])


@lru_cache(maxsize=1024)
def _seconds(text: str) -> float | None:
    date, _, clock = text.replace(",", ".").rpartition(" ")
    whole, _, fraction = clock.partition(".")
    if not date:
        return None
    try:
        return datetime.fromisoformat(f"{date} {whole}").timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
    except (ValueError, OverflowError, OSError):
        # Digits that are no date, or a date outside the clock's range.
        return None


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
