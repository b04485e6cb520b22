"""The arguments that SGLang and vLLM print as they start: a dict, a dataclass or a namespace."""

import re
from typing import Final

_BEGIN: Final = re.compile(r"server_args=(?:ServerArgs(?=\()|(?={))|non-default args: (?={)|args: Namespace(?=\()")
_PART: Final = re.compile(r"\s*(?:'(\w+)': ?|(\w+)=)(.*)", re.DOTALL)
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}


def arguments(line: str) -> dict[str, str]:
    """Each argument's value as it is written there; empty for a line that lists none, or not to the list's end."""
    begin = _BEGIN.search(line)
    parts = _parts(line, begin.end()) if begin is not None else []
    found = filter(None, map(_PART.fullmatch, parts))
    return {part[1] or part[2]: part[3].strip() for part in found}


def _parts(line: str, begin: int) -> list[str]:
    """What stands between the commas of a bracketed list, but for commas in quotes or deeper brackets."""
    parts: list[str] = []
    closing, quote, start, place = [_CLOSING[line[begin]]], "", begin + 1, begin
    while (place := place + 1) < len(line):
        sign = line[place]
        if quote:
            if sign == "\\":
                place += 1
            elif sign == quote:
                quote = ""
        elif sign in "'\"":
            quote = sign
        elif sign in _CLOSING:
            closing.append(_CLOSING[sign])
        elif sign == closing[-1]:
            closing.pop()
            if not closing:
                return [*parts, line[start:place]]
        elif sign == "," and len(closing) == 1:
            parts.append(line[start:place])
            start = place + 1
    return []
