"""The agent's end of the inspector's process: requests by id, a deadline for each, one process at a time."""

import asyncio
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson

from kimi_agent import child
from kimi_agent.errors import KimiError
from kimi_agent.wire.codec import MAX_LINE
from kimi_agent.wire.rpc import refusal

DEADLINE: Final = 30.0
"""Seconds for one answer: a disk that does not give it by then is not waited for."""
PATIENCE: Final = 5.0
"""Seconds for a process to end by itself, and again for the kernel to end it: one that waits for a disk may not."""
IDLE: Final = 120.0
"""Seconds without a request after which the process is let go."""


class InspectorChild:
    """One process, until it ends or is killed."""

    def __init__(self, process: asyncio.subprocess.Process, ended: Callable[["InspectorChild"], None]) -> None:
        self._process = process
        self._ended = ended
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._next = 0
        self._doing = ""
        self._idle: asyncio.TimerHandle | None = None
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, cache: Path, ended: Callable[["InspectorChild"], None]) -> "InspectorChild":
        """Start it; `ended` is called once it takes no more requests."""
        worker = ("-m", "kimi_agent.shards.inspect.worker", str(cache))
        return cls(await child.start(*worker, stdin=PIPE, stderr=DEVNULL, limit=2 * MAX_LINE), ended)

    async def ask(self, operation: str, params: dict[str, Any]) -> Any:
        """The answer to one request.

        Raises:
            KimiError: it was refused, took too long, or the process died of it.
        """
        if self._process.stdin is None:
            raise KimiError("the inspector has no stdin")
        self._wake()
        self._next += 1
        ident, self._doing = self._next, str(params.get("directory") or "the dumps")
        future = self._waiting[ident] = asyncio.get_running_loop().create_future()
        try:
            self._process.stdin.write(orjson.dumps({"id": ident, "op": operation, "params": params}) + b"\n")
            await self._process.stdin.drain()
            return await asyncio.wait_for(future, DEADLINE)
        except asyncio.TimeoutError as error:
            self.kill()
            advice = "Its disk is slow or does not answer; try again."
            raise KimiError(f"reading {self._doing} took longer than {DEADLINE:.0f} s", advice, slug="slow") from error
        except ConnectionError as error:
            raise self._death() from error
        finally:
            self._waiting.pop(ident, None)

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._reading.done()

    def kill(self) -> None:
        """End it now, and all that it started."""
        self._ended(self)
        child.kill(self._process)

    async def close(self) -> None:
        """Let it keep what it has read, and end."""
        self._ended(self)
        if self._idle is not None:
            self._idle.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        await asyncio.wait((self._reading,), timeout=PATIENCE)
        if not self.ended:
            self.kill()
            await asyncio.wait((self._reading,), timeout=PATIENCE)

    def _wake(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE, self._retire)

    def _retire(self) -> None:
        self._ended(self)
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def _read(self) -> None:
        """Hand out answers until the process ends."""
        source = self._process.stdout
        while source is not None and (line := await source.readline()):
            answer = orjson.loads(line)
            future = self._waiting.get(answer["id"])
            if future is None or future.done():
                continue  # whoever asked has left
            if "error" in answer:
                future.set_exception(refusal(answer["error"]))
            else:
                future.set_result(answer["result"])
        self._ended(self)
        await self._process.wait()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._death())

    def _death(self) -> KimiError:
        code = self._process.returncode
        why = f"ended with signal {-code}" if code is not None and code < 0 else f"ended with {code}"
        if code == -signal.SIGBUS:
            why = "ended with SIGBUS: a shard was cut short, or its disk failed, while it was read"
        advice = "See what is damaged with: kimi-agent shards verify"
        return KimiError(f"the process that read {self._doing} {why}", advice, slug="inspector")
