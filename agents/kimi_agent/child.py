"""A command of the agent's own in a child process: its memory and its pace must not be the agent's."""

import asyncio
import contextlib
import os
import signal
import sys


async def run_command(*arguments: str, deadline: float) -> tuple[int, bytes, str]:
    """Run `kimi-agent` with these arguments; its exit code, its stdout, and what it said last, without its name.

    It and all that it started are killed when that is cancelled.

    Raises:
        TimeoutError: it took longer than `deadline` seconds, and was killed.
    """
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(
        sys.executable, "-m", "kimi_agent", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    ))  # fmt: skip
    try:
        process = await asyncio.shield(starting)  # asyncio would end the command alone, and leave what it started
        out, err = await asyncio.wait_for(process.communicate(), deadline)
    except asyncio.TimeoutError as error:  # another class than TimeoutError before Python 3.11
        raise TimeoutError from error
    finally:
        process = await starting
        if process.returncode is None:  # its time is up, or nobody waits for it any more
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    words = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return process.returncode or 0, out, words.removeprefix("kimi-agent: ")
