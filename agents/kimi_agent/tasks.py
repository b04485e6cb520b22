"""Ending asyncio tasks for good."""

import asyncio
from typing import Any


async def end(*tasks: "asyncio.Task[Any]", again: float = 1.0) -> None:
    """Cancel tasks until they have ended, every `again` seconds; what they fail with is theirs.

    Once is not enough: until Python 3.12 `asyncio.wait_for` forgets a cancellation that comes in the moment in which
    its future is done, as when a server dies and with it the connection that a probe waits for.
    """
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=again)
    await asyncio.gather(*tasks, return_exceptions=True)  # else asyncio complains of failures that nobody took
