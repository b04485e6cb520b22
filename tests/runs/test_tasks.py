"""Tasks that are ended have ended, also those that lose a cancellation."""

import asyncio

from kimi_agent.tasks import end


async def test_a_probe_whose_connection_breaks_as_it_is_cancelled_ends() -> None:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    tries = 0

    async def probe() -> None:
        nonlocal answer, tries
        while True:
            tries += 1
            try:
                await asyncio.wait_for(answer, 3600)
            except ConnectionResetError:
                answer = asyncio.get_running_loop().create_future()

    task = asyncio.create_task(probe())
    await asyncio.sleep(0)
    answer.set_exception(ConnectionResetError())
    await asyncio.wait_for(end(task, again=0.01), 30)
    assert task.cancelled()
    assert tries >= 1


async def test_what_a_task_fails_with_is_its_own() -> None:
    async def fails() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise ValueError

    tasks = [asyncio.create_task(fails()), asyncio.create_task(asyncio.sleep(0))]
    await asyncio.sleep(0)
    await end(*tasks)
    assert all(task.done() for task in tasks)
    await end(*tasks)
