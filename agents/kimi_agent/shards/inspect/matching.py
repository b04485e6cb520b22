"""A forward pass for a screen: a process of its own, which lives as long as somebody asks for its answer."""

import asyncio
from time import monotonic
from typing import Any, Final

import orjson

from kimi_agent.child import run_command
from kimi_agent.errors import KimiError

DEADLINE: Final = 1800.0
"""Seconds for one forward pass."""
ASKED: Final = 10.0
"""Seconds after which nobody is taken to wait for it any more."""
PATIENCE: Final = 1.0
"""Seconds that one look waits for the answer."""


class Match:
    """Which of the model's states one sample's rows are, being found out."""

    def __init__(self, key: tuple[str, str, int]) -> None:
        """`key` is the dump's directory, the shard and the sample's place in it."""
        self.key = key
        self._began = self._asked = monotonic()
        self._left = False
        self._task = asyncio.create_task(self._run())
        self._guard = asyncio.create_task(self._watch())

    async def look(self) -> dict[str, Any]:
        """The answer, or for how long it is being found out.

        Raises:
            KimiError: the sample or the model cannot be used.
        """
        self._asked = monotonic()
        await asyncio.wait((self._task,), timeout=PATIENCE)
        if self._task.cancelled():
            raise KimiError("the forward pass was given up, since nobody waited for it", "Ask again.", slug="left")
        return await self._task if self._task.done() else {"running": round(monotonic() - self._began, 1)}

    async def close(self) -> None:
        """Kill it, and wait until it is gone."""
        self._leave()
        self._guard.cancel()
        await asyncio.wait((self._task, self._guard))

    def _leave(self) -> None:
        if not self._left:  # once: cancelled again, it would not wait for what it kills
            self._left = True
            self._task.cancel()

    async def _run(self) -> dict[str, Any]:
        directory, shard, place = self.key
        arguments = ("shards", "match", directory, "--shard", shard, "--place", str(place), "--json")
        try:
            _, out, words = await run_command(*arguments, deadline=DEADLINE)
        except TimeoutError as error:
            advice = "Run kimi-agent shards match there, it has no deadline."
            raise KimiError(f"the forward pass took longer than {DEADLINE:.0f} s", advice, slug="slow") from error
        if not out:
            raise KimiError(words or f"{shard} could not be matched", slug="match")
        answer: dict[str, Any] = orjson.loads(out)
        return answer

    async def _watch(self) -> None:
        while not self._task.done():
            left = self._asked + ASKED - monotonic()
            if left <= 0:
                self._leave()
                return
            await asyncio.wait((self._task,), timeout=left)
