"""What a login asks of the operator: one question at a time, answers kept in memory only and never on disk."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kimi_agent.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to type; its text is clean already."""

    host: str
    """Who asks, as the operator knows it."""
    prompt: str
    """What is asked for, such as `password of root on gpu-07`."""
    secret: bool = True
    """Whether the answer must not be seen."""
    again: bool = False
    """Whether the answer before was refused."""
    words: str = ""
    """What the host says beside its question."""


Handler = Callable[[Question], Awaitable[str | None]]
"""Shows a question and returns the answer; `None` when the operator leaves it."""


class LoginCancelled(UnavailableError):  # noqa: N818 - the operator's choice
    """A question was left unanswered: asking again must wait for the operator."""

    slug = "login_cancelled"


class Questions:
    """One desk for the logins of one process: whoever owns the terminal answers, one question after the other."""

    def __init__(self, handler: Handler | None = None) -> None:
        self.handler = handler
        """Who answers now; `None` when nobody can."""
        self._turn = asyncio.Lock()
        self._answers: dict[str, str] = {}

    async def answer(self, question: Question, *, keep: bool = False) -> str | None:
        """The operator's answer; with `keep` the one given before, unless that was refused.

        Returns:
            `None` when the question was left, or nobody can answer.
        """
        if keep and question.again:
            self._answers.pop(question.prompt, None)
        if keep and (known := self._answers.get(question.prompt)) is not None:
            return known
        async with self._turn:
            if self.handler is None:
                return None
            given = await self.handler(question)
        if keep and given is not None:
            self._answers[question.prompt] = given
        return given
