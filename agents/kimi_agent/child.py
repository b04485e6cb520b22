"""Processes of the agent's own, each with all that it starts: their memory and their pace must not be the agent's."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process


async def start(*arguments: str, stdin: int = DEVNULL, stderr: int = PIPE, limit: int = 1 << 16) -> Process:
    """Start this Python with these arguments, in a session of its own; nothing of it is left when that is cancelled.

    Args:
        arguments: the interpreter's.
        stdin: PIPE or DEVNULL.
        stderr: PIPE or DEVNULL.
        limit: bytes of a line that is read of it at most.

    Raises:
        OSError: the host starts no process now.
    """
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdin=stdin, stdout=PIPE, stderr=stderr, limit=limit, start_new_session=True,
    ))  # fmt: skip
    try:
        return await asyncio.shield(starting)  # asyncio would end the process alone, and leave what it started
    except asyncio.CancelledError:
        starting.add_done_callback(_abandon)
        await asyncio.wait((starting,))
        raise


def kill(process: Process) -> None:
    """End a process that `start` gave, and all that it started."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _abandon(starting: "asyncio.Future[Process]") -> None:
    if not starting.cancelled() and starting.exception() is None:
        kill(starting.result())


async def run_command(*arguments: str, deadline: float) -> tuple[int, bytes, str]:
    """Run `kimi-agent` with these arguments; its exit code, its stdout, and what it said last, without its name.

    It and all that it started are killed when that is cancelled.

    Raises:
        OSError: the host starts no process now.
        TimeoutError: it took longer than `deadline` seconds, and was killed.
    """
    process = await start("-m", "kimi_agent", *arguments)
    try:
        out, err = await asyncio.wait_for(process.communicate(), deadline)
    except asyncio.TimeoutError as error:  # another class than TimeoutError before Python 3.11
        raise TimeoutError from error
    finally:
        kill(process)
        await process.wait()
    words = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return process.returncode or 0, out, words.removeprefix("kimi-agent: ")
