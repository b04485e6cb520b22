"""The times that an operator writes: after `--at`, to go to, to cut at."""

import re
from datetime import datetime, timedelta
from typing import Final

from kimi_agent.errors import UsageError
from kimi_agent.text import clean

_CLOCK: Final = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")
_OFFSET: Final = re.compile(r"\+(?:(?:(\d+):)?(\d+):)?(\d+(?:\.\d+)?)")


def parse_at(text: str, first: float) -> float:
    """The Unix time that `--at` means, in a recording that begins at `first`.

    Raises:
        UsageError: it is not a time.
    """
    if match := _OFFSET.fullmatch(text):
        hours, minutes, seconds = match.groups()
        return first + int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds)
    try:
        if match := _CLOCK.fullmatch(text):
            begin = datetime.fromtimestamp(first)
            hour, minute, second = (int(part or 0) for part in match.groups())
            then = begin.replace(hour=hour, minute=minute, second=second, microsecond=0)
            # A clock time before the beginning means the next day's.
            return (then if then >= begin.replace(microsecond=0) else then + timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise UsageError(
            f"{clean(text)!r} is not a time", "Write +90, +1:30, 14:03:22 or 2026-01-31T14:03:22 after --at."
        ) from error
