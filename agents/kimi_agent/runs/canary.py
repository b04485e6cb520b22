"""The canary: one token asked of the server when its scheduler's own sign of life is stale. Opt-in, never captured."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from kimi_agent.doctor.evidence import Evidence
from kimi_agent.doctor.facts import Answer
from kimi_agent.engine import options
from kimi_agent.engine.http import post_json
from kimi_agent.errors import KimiError
from kimi_agent.model.events import Body, Note
from kimi_agent.runs.plan import Plan
from kimi_agent.runs.prove import PROOF, TOKEN

STALE: Final = 5.0
"""Age of the scheduler's sign of life, in seconds, at which the canary is sent: half of what is called hung."""
PERIOD: Final = 5.0
"""Seconds between two canaries: each that returns stands for a sign of life."""


class Canary:
    """Sends one canary at a time for one run; `answer` is the last one that came back, or did not."""

    def __init__(self, run: str, plan: Plan, emit: Callable[[Body], object]) -> None:
        """`plan.profile.limits.canary` is the deadline in seconds; without one this does nothing."""
        self.answer: Answer | None = None
        self.time: float | None = None
        """When `answer` was known, Unix seconds."""
        self._run = run
        self._plan = plan
        self._emit = emit
        self._sent = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    def consider(self, evidence: Evidence) -> None:
        """Send one when the server is ready, has been heard before, and has now fallen silent."""
        age, deadline = evidence.stale, self._plan.profile.limits.canary
        if deadline is None or not evidence.ready or age is None or age < STALE:
            return
        busy = self._asking is not None and not self._asking.done()
        if busy or time.time() - self._sent < PERIOD:
            return
        self._sent = time.time()
        self._asking = asyncio.create_task(self._ask(deadline))

    async def close(self) -> None:
        """Give up a canary that is under way."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self, deadline: float) -> None:
        server = self._plan.profile.server
        body = {
            "rid": f"{PROOF}canary_{self._sent:.0f}",
            "input_ids": [TOKEN],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
        }
        key = options.value(self._plan.argv, "--api-key")
        began, why = time.monotonic(), ""
        try:
            await post_json(server.host, server.port, "/generate", body, api_key=key, deadline=deadline)
        except KimiError as error:
            why = error.message
        spent = time.monotonic() - began
        before = self.answer
        self.answer, self.time = Answer("/generate", None if why else 200, spent, why), time.time()
        if before is None or before.status != self.answer.status:
            words = f"did not come back: {why}" if why else f"came back after {spent:.1f} s"
            self._emit(Note("warning" if why else "info", f"the canary, one token, {words}", self._run))
