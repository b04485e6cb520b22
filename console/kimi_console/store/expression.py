"""Regular expressions that an operator types: on some lines some of them would take for ever."""

import warnings
from collections.abc import Iterable
from typing import Final, Protocol

import regex

from kimi_agent.errors import UsageError

LINE: Final = 0.02
"""Seconds that an expression gets for one line."""
GIVEN_UP: Final = 20
"""Lines that may take longer, and count as lines without a match, before the expression is given up."""


class Found(Protocol):
    """Where a match is."""

    def start(self) -> int:
        """Its first character."""

    def end(self) -> int:
        """Behind its last character."""


class Pattern(Protocol):
    """What lines are searched for: a `re.Pattern`, or an `Expression`."""

    def search(self, text: str, /) -> Found | None:
        """The first match."""

    def finditer(self, text: str, /) -> Iterable[Found]:
        """All matches."""


class Expression:
    """An expression with a limit of time, which lets other threads run while it matches."""

    def __init__(self, source: str) -> None:
        """Raises UsageError when it is no regular expression."""
        self._source = source
        self._given_up = 0
        try:
            with warnings.catch_warnings(action="ignore", category=FutureWarning):
                self._compiled = regex.compile(source)
        except regex.error as error:
            message = f"/{source}/ is no regular expression: {error}"
            raise UsageError(message, "Leave the slashes out to find text") from error

    def search(self, text: str, /) -> Found | None:
        """The first match; none in a line that takes too long.

        Raises:
            UsageError: too many lines did.
        """
        try:
            return self._compiled.search(text, timeout=LINE, concurrent=True)
        except TimeoutError:
            self._given_up += 1
        if self._given_up > GIVEN_UP:
            message = f"/{self._source}/ takes too long on too many lines"
            raise UsageError(message, "Make it simpler: repeats within repeats, such as (a+)+, may take for ever")
        return None

    def finditer(self, text: str, /) -> Iterable[Found]:
        """The matches that are found in time; none once the expression was given up."""
        found: list[Found] = []
        if self._given_up <= GIVEN_UP:
            try:
                found.extend(self._compiled.finditer(text, timeout=LINE))
            except TimeoutError:
                self._given_up += 1
        return found
