"""One answer of an agent, without subscribing to its events."""

import asyncio
from typing import Any

from kimi_console.source.client import AgentClient, Dial


async def ask(dial: Dial, method: str, **params: Any) -> Any:
    """Call one method over a connection of its own.

    Raises:
        KimiError: the agent cannot be reached, or refuses.
    """
    client = await AgentClient.greet(await dial())
    reading = asyncio.create_task(_read(client))
    try:
        return await client.request(method, **params)
    finally:
        await client.close()
        await reading


async def _read(client: AgentClient) -> None:
    async for _ in client.batches():
        continue
