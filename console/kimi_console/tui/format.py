"""Numbers as an operator reads them: fixed widths, three digits, and a dash for what was not seen."""

import time
from collections.abc import Sequence
from typing import Final

DASH: Final = "–"
"""What stands where there is no value; never 0."""
BARS: Final = "▁▂▃▄▅▆▇█"
GAP: Final = " "
GIB: Final = 1 << 30

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL: Final = ("", "k", "M", "G", "T", "P")


def _digits(value: float) -> str:
    """Three digits of a value below 1000."""
    for digits, bound in ((2, 9.995), (1, 99.95)):
        if value < bound:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def _scaled(value: float, step: float, units: Sequence[str]) -> tuple[float, str]:
    index = 0
    while value >= 999.5 and index < len(units) - 1:
        value /= step
        index += 1
    return value, units[index]


def size(count: float | None) -> str:
    """Bytes in binary units: `512 B`, `74.1 GiB`."""
    if count is None:
        return DASH
    value, unit = _scaled(count, 1024, _BINARY)
    return f"{value:.0f} B" if unit == "B" else f"{_digits(value)} {unit}"


def count(number: int | None) -> str:
    """A whole number in full: `1,204`."""
    return DASH if number is None else f"{number:,}"


def short(number: float | None) -> str:
    """A number in three digits: `8,412`, `41.2 M`."""
    if number is None:
        return DASH
    if number < 9999.5:
        return f"{number:,.0f}"
    value, unit = _scaled(number, 1000, _DECIMAL)
    return f"{_digits(value)} {unit}"


def rate(number: float | None) -> str:
    """A rate in three digits: `9.41k`, `812`, `0.40`; the caller names the unit."""
    if number is None:
        return DASH
    if number == 0:
        return "0"
    value, unit = _scaled(number, 1000, _DECIMAL)
    return f"{_digits(value)}{unit}"


def duration(seconds: float | None) -> str:
    """`m:ss`, from an hour on `h:mm:ss`."""
    if seconds is None:
        return DASH
    whole = max(0, int(seconds))
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def age(seconds: float) -> str:
    """`12 s ago`, from a minute on `3:12 ago`."""
    return f"{max(0, int(seconds))} s ago" if seconds < 60 else f"{duration(seconds)} ago"


def percent(value: float | None) -> str:
    """`12 %`."""
    return DASH if value is None else f"{value:.0f} %"


def share(part: float, whole: float) -> str:
    """A part of a whole in percent; never `100 %` before it is all of it."""
    if whole <= 0:
        return DASH
    value = 100 * part / whole
    return percent(min(value, 99.4) if part < whole else value)


def clock(unix: float) -> str:
    """Time of day on this machine, `14:03:22`."""
    return time.strftime("%H:%M:%S", time.localtime(unix))


def moment(unix: float) -> str:
    """Date and time on this machine, `2026-11-29 14:03`."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix))


def bar(part: float, whole: float, width: int) -> tuple[str, str]:
    """The filled and the empty part of a bar; full only when all is done, empty only when nothing is."""
    filled = 0 if whole <= 0 else int(width * min(part, whole) / whole)
    if 0 < part < whole:
        filled = min(max(filled, 1), width - 1) if width > 1 else filled
    return "█" * filled, "░" * (width - filled)


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The last `width` values as blocks against their own maximum; a missing value is a gap, never a low block."""
    recent = values[-width:]
    top = max((value for value in recent if value is not None), default=0.0)
    highest = len(BARS) - 1
    drawn = "".join(GAP if value is None else BARS[round(value / top * highest) if top else 0] for value in recent)
    return drawn.rjust(width)


def median(values: Sequence[float | None]) -> float | None:
    """The middle of the values above zero (an idle engine has no speed); `None` when there are none."""
    seen = sorted(value for value in values if value)
    if not seen:
        return None
    middle = len(seen) // 2
    return seen[middle] if len(seen) % 2 else (seen[middle - 1] + seen[middle]) / 2
