"""`LogScanner`: a log's bytes to a `PhaseTracker`, fast: what says nothing of a start is not taken apart."""

import re
from typing import Final

from kimi_agent.engine.dialects import canonical
from kimi_agent.engine.loglines import parse, split_long, to_text, whole_lines
from kimi_agent.engine.phases import Change, PhaseTracker

_LONGEST: Final = 4000
"""Bytes of a line that may be skipped; a longer one is read."""
_MOST_SHAPES: Final = 32
_MOST_IDLE: Final = 4096
_DIGITS: Final = b"0123456789"
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
_PLAIN: Final = re.compile(rb"[A-Za-z /\-.*#=+|<>~^_]|\[(?!(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d)[A-Za-z]")
"""How a line without a header begins."""
_CLUES: Final = (
    "%", "rror", "xcept", "aceback", "Fatal", "terminate", "what()", "rrno", "mory", "atchdog", "illed", "ied", "dead",
    "crash", "in use", "lock", "JIT", "ompil", "build", "plugin", "roxy", "squid", "space", "handle", "endpoint",
    "quota", "arrier", "other ranks", "imeout", "imed out", "Xid", "NVRM", "bus", "broadcast", "DeepGEMM", "INFO",
    "\x1b", "[2", "[1", "[0", "sglang", "SGLang", "vllm", "vLLM",
)  # fmt: skip
"""A line without a header and without one of these is about nothing that is looked for."""
_HEADED: Final = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,\d]{0,4}(?P<tag>[ A-Z_\d]{0,60})\] ")
_SERVING_CLUES: Final = (
    *(clue for clue in _CLUES if clue not in ("[2", "[1", "[0", "INFO", "sglang", "SGLang", "vllm", "vLLM")),
    "server_args=", "batch", "HTTP/", "SIG", "sigquit", "raceful", "hutting", "ailed", "atchdog", "ngineCore",
)  # fmt: skip
"""The same for a line with a header once the server is ready."""


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
        self._idle: tuple[set[bytes], set[bytes]] = (set(), set())
        """Lines without a clue, less their digits: with a header, without one."""
        self._tags: set[bytes] = set()
        """Tags, as they are written, of ranks that are known."""
        self._skipped: bytes | None = None
        """The last line that was skipped: its time is read when it is needed."""

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
        self._set_clock()
        return changes

    def finish(self) -> list[Change]:
        """Take in the last line, if it has no end."""
        return self.feed(b"\n") if self._carry else []

    def _skip(self, body: bytes, start: int, end: int) -> None:
        self._skipped = body[max(body.rfind(b"\n", start, end - 1) + 1, start) : end - 1]
        self.tracker.skip(body.count(b"\n", start, end))

    def _set_clock(self) -> None:
        if self._skipped is not None:
            self.tracker.clock(parse(to_text(self._skipped)).time)
            self._skipped = None

    def _says_nothing(self, line: bytes) -> bool:
        """Whether a line has no clue in it: without a header, or with one once the server is ready."""
        plain = _PLAIN.match(line) is not None
        if not plain and not (self.tracker.ready and self._of_known_rank(line)):
            return False
        if self.tracker.failures.reading or len(line) >= _LONGEST:
            return False
        # Libraries repeat themselves with other numbers: what said nothing once says nothing again.
        words = line.translate(None, _DIGITS)
        if words not in self._idle[plain]:
            # Byte strings look for each other several times more slowly than strings do.
            text = line.decode("latin-1")
            if any(map(text.__contains__, _CLUES if plain else _SERVING_CLUES)):
                return False
            if len(self._idle[plain]) < _MOST_IDLE:
                self._idle[plain].add(words)
        self._skipped = self._skipped if plain else line
        return True

    def _of_known_rank(self, line: bytes) -> bool:
        """Whether a line has SGLang's header, with the tag of a rank that is known or with none."""
        header = _HEADED.match(line)
        if header is None:
            return False
        tag = header["tag"]
        if tag not in self._tags and (not tag or canonical(tag.decode("ascii")) in self.tracker.phases):
            self._tags.add(tag)
        return tag in self._tags

    def _line(self, line: bytes) -> list[Change]:
        if self._says_nothing(line):
            self.tracker.skip(1)
            return []
        self._set_clock()
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
