"""Untrusted text on its way to a terminal: escapes and control characters are taken out."""

import re

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x1b\\|\x07|\x9c|$)|[ -/]*[0-~])|[\x80-\x9f]|\x1b", re.DOTALL
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MAX_LINE = 24_576
"""Longer lines are cut, with a mark: a screen cannot show them and a regex must not choke on them.

SGLang 0.5.23 lists its arguments in a line of 19,000 characters, which stays whole.
"""


def clean(text: str, limit: int = MAX_LINE) -> str:
    """One line of text that cannot move a cursor, change a title or hide other text."""
    if len(text) > limit:
        return f"{clean(text[:limit], limit)}… [{len(text) - limit} characters cut]"
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS.sub("\ufffd", _ESCAPES.sub("", text.replace("\t", "    ").replace("\n", " ").replace("\r", " ")))
