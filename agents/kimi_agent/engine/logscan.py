"""`LogScanner`: a log's bytes to a `PhaseTracker`, fast: what says nothing of a start is not taken apart."""

import re
from typing import Final

from kimi_agent.engine.loglines import parse, split_long, to_text, whole_lines
from kimi_agent.engine.phases import Change, PhaseTracker

_LONGEST: Final = 4000
"""Bytes of a line that may be skipped; a longer one is read."""
_MOST_SHAPES: Final = 32
_SERVING: Final = re.compile(
    rb"(?:Decode|Prefill) batch[ .,(]|INFO: +[\d\[]\S* - \\?\"|[\d\[]\S*:\d+ - \\?\"|NCCL (?:INFO|TRACE) "
)
_KEYWORDS: Final = {
    b"D": rb"(?:Decode|Prefill) batch[ .,(]",
    b"P": rb"(?:Decode|Prefill) batch[ .,(]",
    b"I": rb"INFO: +[\d\[]\S* - \\?\"",
    b"N": rb"NCCL (?:INFO|TRACE) ",
}
_ACCESS: Final = rb"[\d\[]\S*:\d+ - \\?\""
_TAG: Final = re.compile(rb"(?:(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d{1,5} ?)+")
_DIGIT: Final = re.compile(rb"\d")
_PLAIN: Final = re.compile(rb"[A-Za-z /\-.*#=+|<>~^_]")
"""How a line without a header begins."""
_CLUES: Final = (
    "%", "rror", "xcept", "aceback", "Fatal", "terminate", "what()", "rrno", "mory", "atchdog", "illed", "ied", "dead",
    "crash", "in use", "lock", "JIT", "ompil", "build", "plugin", "roxy", "squid", "space", "handle", "endpoint",
    "quota", "arrier", "other ranks", "imeout", "imed out", "Xid", "NVRM", "bus", "broadcast", "DeepGEMM", "INFO",
    "\x1b", "] ", "sglang", "SGLang", "vllm", "vLLM",
)  # fmt: skip
"""A line without a header and without one of these is about nothing that is looked for."""


class LogScanner:
    """Feeds one log, in chunks of any size, to a tracker.

    Batch, access and NCCL lines are recognised as bytes, by the shape that such a line has had in this very log, and
    only counted; of a run of them the last time is kept. All other lines are decoded, parsed and fed one by one.
    """

    def __init__(self, tracker: PhaseTracker) -> None:
        self.tracker = tracker
        self._carry = b""
        self._shapes: dict[bytes, None] = {}
        self._run: re.Pattern[bytes] | None = None

    def feed(self, chunk: bytes) -> list[Change]:
        """Take in the next bytes; what changed by them, in order."""
        body, self._carry = whole_lines(chunk, self._carry)
        changes: list[Change] = []
        place, end = 0, len(body)
        while place < end:
            run = self._run.match(body, place) if self._run is not None else None
            if run is not None:
                self._skip(body, place, run.end())
                place = run.end()
                continue
            stop = body.find(b"\n", place)
            changes += self._line(body[place:stop])
            place = stop + 1
        return changes

    def finish(self) -> list[Change]:
        """Take in the last line, if it has no end."""
        return self.feed(b"\n") if self._carry else []

    def _skip(self, body: bytes, start: int, end: int) -> None:
        last = body[max(body.rfind(b"\n", start, end - 1) + 1, start) : end - 1]
        self.tracker.skip(body.count(b"\n", start, end), parse(to_text(last)).time)

    def _line(self, line: bytes) -> list[Change]:
        if _PLAIN.match(line) and not self.tracker.failures.reading and len(line) < _LONGEST:
            # Byte strings look for each other several times more slowly than strings do.
            text = line.decode("latin-1")
            if not any(map(text.__contains__, _CLUES)):
                self.tracker.skip(1, None)
                return []
        changes: list[Change] = []
        for piece in split_long(line):
            parsed = parse(to_text(piece))
            changes += self.tracker.feed(parsed)
            if parsed.kind in ("batch", "access", "text") and not parsed.before and len(piece) < _LONGEST:
                self._learn(piece)
        return changes

    def _learn(self, line: bytes) -> None:
        """Skip lines of this shape from now on: the same ranks, the same words, any digits."""
        found = _SERVING.search(line)
        if found is None or len(self._shapes) >= _MOST_SHAPES or found.start() > 200:
            return
        head, start = b"", 0
        before = line[: found.start()]
        for tag in _TAG.finditer(before):
            head += _any_digits(before[start : tag.start()]) + re.escape(tag[0])
            start = tag.end()
        head += _any_digits(before[start:])
        self._shapes[head + _KEYWORDS.get(found[0][:1], _ACCESS)] = None
        self._run = re.compile(b"(?:(?:%s).{0,%d}\n)+" % (b"|".join(self._shapes), _LONGEST))


def _any_digits(text: bytes) -> bytes:
    return b".".join(map(re.escape, _DIGIT.split(text)))
