"""A log line reduced to what it says: without the numbers, times and names that differ from run to run."""

import re
from typing import Final

from kimi_agent.engine.loglines import bar_position, parse

_CHANGING: Final = re.compile(
    r"0x[0-9a-fA-F]+|(?<![A-Za-z])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![A-Za-z])[0-9a-f]{12,}(?![A-Za-z])"
    r"|(?:/[\w.+-]+){2,}/(?=[\w.+-])|[-+]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?"
)
_ARGUMENTS: Final = re.compile(r"server_args=.*|Namespace\(.*", re.DOTALL)
LONGEST: Final = 400


def normal_form(line: str) -> str:
    """What a line says, equal for the same line of two runs; a progress bar is what it counts."""
    parsed = parse(line)
    if (bar := bar_position(parsed.message)) is not None:
        return f"{bar[0]} (bar)"
    message = _ARGUMENTS.sub("server_args", parsed.message[:LONGEST])
    return _CHANGING.sub(lambda match: "/" if match[0].startswith("/") else "#", message).strip()
