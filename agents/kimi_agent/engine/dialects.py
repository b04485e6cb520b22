"""What stands before a log's message: SGLang's header in every version, vLLM's, and what containers and loggers add."""

import re
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, Final

import orjson

from kimi_agent.text import clean

TAG_ORDER: Final = ("DP", "PP", "ATTN_CP", "MOE_DP", "TP", "EP")
"""The dimensions of a rank tag in the order SGLang writes them today; older versions mixed them."""

UNDATED: Final = 1e8
"""A time below this is from a header without a year (vLLM) or without a date (SGLang 0.2): only differences count."""

_DIMENSION = re.compile(r"(DP|PP|ATTN_CP|MOE_DP|TP|EP)(\d{1,5})")
_HEADER = re.compile(
    r"\[(?P<time>(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d{1,3})?)"
    r"(?P<tag>(?: (?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d{1,5})*)\](?: (?P<message>.*))?$"
)
_PLAIN_HEADER = re.compile(r"\[\d{4}-|\[\d\d:")
_WRAPPERS = (
    re.compile(
        r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d))"
        r"(?: std(?:out|err) [FP]| [\w.-]{1,80} [\w./-]{1,80}\[\d{1,9}\]:)? "
    ),
    re.compile(r"(?!\d{4}-)[A-Za-z0-9][\w.-]{0,80} *\| (?!\d+/\d)"),
    re.compile(r"\[pod/[^\]\s]{1,200}\] "),
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,80} \S{1,80}\[\d{1,9}\]: "),
    re.compile(r"\[(?:default|rank)?(?P<index>\d{1,4})\]:(?: |$|(?=\[[EWI]\d{4} ))"),
    re.compile(r"\((?P<process>[A-Za-z][\w:.-]{0,60})?(?: rank=(?P<rank>\d{1,5}))? ?pid=\d{1,9}(?:, ip=[\d.]+)?\) "),
)
"""Compose's service, the kubelet's and `kubectl`'s prefix, the journal's, torchrun's, Ray's and vLLM's process."""
_MOST_WRAPPERS = 4
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SUCCESS)"
_PLACE = (
    r"(?:[a-z_][a-z0-9_]*(?:\.[a-z0-9_]+)+(?::\w+){0,2}|[\w.-]{1,60}\.(?:py|cc|cpp|cu):\d{1,6}"
    r"|sglang|vllm|root|uvicorn)"
)
_TOKEN = rf"(?:\[?{_LEVEL}\]?|\[?{_PLACE}\]?|\[?(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d{{1,5}}\]?|\[?\d{{1,8}}\]?)"
_STRUCTURED_BEGINS = frozenset("[(0123456789TDINWECFS")
_STAMP = r"(?:\d{4}-)?\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_TOKENS = rf"(?P<tokens>(?:(?: +[-|:] +|[ |]+|: ){_TOKEN}(?=[\s:|\]])|:)*)"
_STRUCTURED = re.compile(
    rf"(?:\[?{_LEVEL}\]?:? +)?[\[(]?(?P<time>{_STAMP})[\])]?{_TOKENS}(?:\]? *[-|:]+ |\] | )(?P<message>.*)$"
)
_LEVELLED = re.compile(rf"{_LEVEL}:{_PLACE}:(?P<message>.*)$")
_TAG_ALONE = re.compile(r"\[(?P<tag>(?:(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d{1,5} ?)+)\] (?P<message>.*)$")
_STAMPED_BEFORE = re.compile(rf"\[?{_LEVEL}\]?(?!:  ){_TOKENS}(?:\]? *[-|:]+ |\] | )(?P<message>.*)$")
"""A level and what follows it, where the time stood in a container's prefix or in SGLang's header."""
_DIMENSIONS = re.compile(r"\b(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d{1,5}\b")
_UVICORN = re.compile(r"INFO: {2,}\S")
_STAMP_PARTS = re.compile(
    r"(?:(?P<date>\d{4}-\d\d-\d\d|\d\d-\d\d)[T ])?(?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?$"
)
_MESSAGE_KEYS = ("message", "msg", "log", "event", "text", "body")
_TIME_KEYS = ("time", "timestamp", "ts", "asctime", "@timestamp")
_RANK_KEYS = ("rank_tag", "prefix", "tp_rank", "rank")


@dataclass(frozen=True, slots=True)
class Parts:
    """A line without what stood before its message."""

    time: float | None
    rank: str | None
    message: str
    headed: bool
    """Whether a logger wrote it: SGLang's header or another one was there."""
    glued: str = ""
    """Text that was not ended before SGLang's header began."""
    more: tuple[str, ...] = ()
    """Further lines of a record that holds several."""


@lru_cache(maxsize=1024)
def canonical(tag: str) -> str | None:
    """A rank tag in today's order, from any order and any separator; `None` when it names no dimension."""
    if not tag:
        return None
    found = {name: int(number) for name, number in _DIMENSION.findall(tag)}
    return " ".join(f"{name}{found[name]}" for name in TAG_ORDER if name in found) or None


def take_apart(line: str) -> Parts:
    """Find time, rank and message in a line, whatever stands around them; never fails."""
    if line.startswith("{") and (record := _record(line)) is not None:
        return record
    match = _HEADER.search(line)
    start, when, rank = _unwrap(line)
    if match is None:
        return _without_header(line[start:], when, rank)
    seen = seconds(match["time"])
    message, tag = match["message"] or "", canonical(match["tag"]) or rank
    if message.startswith("[") and (levelled := _STAMPED_BEFORE.match(message)) is not None:
        message, tag = levelled["message"], tag or _tags(levelled["tokens"])
    return Parts(when if seen is None else seen, tag, message, True, line[start : match.start()])


def _tags(text: str) -> str | None:
    return canonical(" ".join(_DIMENSIONS.findall(text)))


def is_record(line: str) -> bool:
    """Whether a line is one of a logger or a container that writes JSON objects, each with a message."""
    return line.startswith("{") and _record(line) is not None


def _unwrap(line: str) -> tuple[int, float | None, str | None]:
    """How much of a line's beginning is a container's or launcher's, and what that says of time and rank."""
    start, when, rank = 0, None, None
    if line[:2].strip() == "" or _PLAIN_HEADER.match(line):
        return start, when, rank
    for _ in range(_MOST_WRAPPERS):
        match = next((match for wrapper in _WRAPPERS if (match := wrapper.match(line, start))), None)
        if match is None:
            break
        start, found = match.end(), match.groupdict()
        when = seconds(found.get("time") or "") or when
        number = found.get("index") or found.get("rank")
        process = found.get("process") or ""
        # vLLM's workers are the ranks; its engine core carries a replica's number and speaks for all of them.
        tag = canonical(process) if "Worker" in process else None
        rank = (f"TP{int(number)}" if number else None) or tag or rank
    return start, when, rank


def _without_header(text: str, when: float | None, rank: str | None) -> Parts:
    match = _STRUCTURED.match(text) if text[:1] in _STRUCTURED_BEGINS else None
    if match is not None:
        return Parts(seconds(match["time"]) or when, _tags(match["tokens"]) or rank, match["message"], True)
    if (levelled := _LEVELLED.match(text)) is not None:
        return Parts(when, rank, levelled["message"], True)
    if text.startswith("[") and (match := _TAG_ALONE.match(text)) is not None:
        return Parts(when, canonical(match["tag"]) or rank, match["message"], True)
    if when is not None and (match := _STAMPED_BEFORE.match(text)) is not None:
        return Parts(when, _tags(match["tokens"]) or rank, match["message"], True)
    return Parts(when, rank, text, _UVICORN.match(text) is not None)


def _record(line: str) -> Parts | None:
    """A line of JSON that holds a message; `None` for any other."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    message = next((record[key] for key in _MESSAGE_KEYS if isinstance(record.get(key), str)), None)
    if message is None:
        return None
    first, *more = (clean(text) for text in message.rstrip("\r\n").split("\n"))
    inner = Parts(None, None, first, True) if first.startswith("{") else take_apart(first)
    when = next((time for key in _TIME_KEYS if (time := _moment(record.get(key))) is not None), None)
    rank = next((tag for key in _RANK_KEYS if (tag := _tag(record.get(key))) is not None), None)
    headed = inner.headed or "stream" not in record
    return replace(
        inner, time=when if inner.time is None else inner.time, rank=inner.rank or rank, headed=headed, more=tuple(more)
    )


def _moment(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if UNDATED < value < 1e11 else None
    return seconds(value) if isinstance(value, str) else None


def _tag(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 100_000:
        return f"TP{value}"
    return canonical(value) if isinstance(value, str) else None


@lru_cache(maxsize=1024)
def seconds(text: str) -> float | None:
    """Unix seconds of a time stamp, in the host's zone unless it names one; below `UNDATED` without a year."""
    match = _STAMP_PARTS.match(text)
    if match is None:
        return None
    date, fraction = match["date"] or "1970-01-02", match["fraction"]
    if len(date) == 5:
        date = f"1972-{date}"
    try:
        moment = datetime.fromisoformat(f"{date} {match['clock']}")
        if zone := match["zone"]:
            moment = moment.replace(tzinfo=timezone.utc if zone == "Z" else _zone(zone))
        return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
    except (ValueError, OverflowError, OSError):
        # Digits that are no date, or a date outside the clock's range.
        return None


def _zone(text: str) -> timezone:
    offset = datetime.strptime(text.replace(":", ""), "%z").utcoffset()
    return timezone.utc if offset is None else timezone(offset)
