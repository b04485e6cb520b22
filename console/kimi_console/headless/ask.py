"""One answer of an agent, without subscribing to its events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kimi_console.source.client import AgentClient, Dial


async def ask(dial: Dial, method: str, **params: Any) -> Any:
    """Call one method over a connection of its own.

    Raises:
        KimiError: the agent cannot be reached, or refuses.
    """
    async with connected(dial) as client:
        return await client.request(method, **params)


@asynccontextmanager
async def connected(dial: Dial) -> AsyncIterator[AgentClient]:
    """A connection whose answers are read until it is left.

    Raises:
        KimiError: the agent cannot be reached.
    """
    client = await AgentClient.greet(await dial())
    reading = asyncio.create_task(_read(client))
    try:
        yield client
    finally:
        await client.close()
        await reading


async def _read(client: AgentClient) -> None:
    async for _ in client.batches():
        continue
