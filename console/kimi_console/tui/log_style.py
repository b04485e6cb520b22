"""How a line of SGLang's log is coloured and what a search or a filter means."""

import re
from dataclasses import dataclass

from kimi_console.store.expression import Expression, Pattern
from kimi_console.tui.cells import Line, Role

_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d)(?:\.\d+)?((?: (?:[A-Z]{2,3}\d+|[A-Z]+\d*))*)\] ?")
_BAD = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|Traceback|[A-Z]\w*(?:Error|Exception))\b|\bsigquit\b|[Ff]atal")
_WARN = re.compile(r"\bWARN(?:ING)?\b|[Ww]arning\b|\b[Ff]ailed?\b|\bdeprecated\b")
_ACCESS = re.compile(r'^INFO: +\S+ - "')
_RANK = re.compile(r"^(?:[A-Z]{2,3}\d+ ?)+$")
_NUMBER = re.compile(r"\d+")
RANK_ROLES: tuple[Role, ...] = ("rank0", "rank1", "rank2", "rank3")


@dataclass(frozen=True, slots=True)
class Parts:
    """A line's time of day, rank tag and text."""

    time: str
    rank: str
    text: str


def parts(line: str) -> Parts:
    """Split SGLang's own prefix off; other lines are all text."""
    match = _PREFIX.match(line)
    if match is None:
        return Parts("", "", line)
    return Parts(match[1], match[2].strip(), line[match.end() :])


def level(text: str) -> Role:
    """A line's role by what it says."""
    if _BAD.search(text):
        return "bad"
    if _WARN.search(text):
        return "warn"
    return "dim" if _ACCESS.match(text) else "plain"


def rank_role(rank: str) -> Role:
    """A rank's colour, the same on every line."""
    numbers = _NUMBER.findall(rank)
    return RANK_ROLES[int(numbers[-1]) % len(RANK_ROLES)] if numbers else "dim"


def coloured(line: str, rank_cells: int = 0) -> Line:
    """A log line as spans: time dim, rank in its own colour, text by level; nothing in it is read as markup."""
    split = parts(line)
    text: Line = [(split.text, level(split.text))]
    if not split.time:
        return text
    rank = f"{split.rank:<{rank_cells}} " if split.rank or rank_cells else ""
    return [(f"{split.time} ", "dim"), (rank, rank_role(split.rank)), *text]


def highlighted(line: Line, pattern: Pattern) -> Line:
    """The same line with what matches marked."""
    marked: Line = []
    for text, role in line:
        at = 0
        for match in pattern.finditer(text):
            if match.start() == match.end():
                continue
            marked += [(text[at : match.start()], role), (text[match.start() : match.end()], "match")]
            at = match.end()
        marked.append((text[at:], role))
    return [span for span in marked if span[0]]


@dataclass(frozen=True, slots=True)
class Query:
    """What the operator searches or filters for."""

    text: str
    pattern: Pattern
    inverse: bool = False


def parse_query(text: str) -> Query:
    """`text`, `/regex/`, `TP3` (that rank's lines), and `!` before any of them for all others.

    Plain text in lower case finds upper case too.

    Raises:
        UsageError: the regular expression is not one.
    """
    inverse = text.startswith("!")
    wanted = text[1:] if inverse else text
    if len(wanted) > 2 and wanted.startswith("/") and wanted.endswith("/"):
        return Query(text, Expression(wanted[1:-1]), inverse)
    if _RANK.match(wanted):
        return Query(text, re.compile(rf"^\[[^]]*\b{re.escape(wanted.strip())}(?: [^]]*)?\]"), inverse)
    flags = re.IGNORECASE if wanted == wanted.lower() else 0
    return Query(text, re.compile(re.escape(wanted), flags), inverse)
