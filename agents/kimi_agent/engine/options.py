"""Reading one option out of a command line, as argparse would."""

from collections.abc import Sequence


def values(argv: Sequence[str], *names: str) -> list[str] | None:
    """What follows the last use of an option, up to the next one; `None` when it is not used."""
    found: list[str] | None = None
    open_option = False
    for token in argv:
        if token.startswith("--"):
            name, separator, value = token.partition("=")
            open_option = name in names
            if open_option:
                found = [value] if separator else []
                open_option = not separator
        elif open_option and found is not None:
            found.append(token)
    return found


def present(argv: Sequence[str], *names: str) -> bool:
    """Whether any of the spellings of an option is used."""
    return values(argv, *names) is not None


def number(argv: Sequence[str], *names: str, default: int) -> int:
    """An option's value as a whole number of at least 0; `default` when it is not used or no number."""
    given = values(argv, *names)
    if given and given[0].isdecimal() and len(given[0]) < 10:
        return int(given[0])
    return default


def value(argv: Sequence[str], *names: str) -> str | None:
    """An option's single value; `None` when it is not used or has none."""
    given = values(argv, *names)
    return given[0] if given else None
