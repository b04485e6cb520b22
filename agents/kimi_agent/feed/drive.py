"""One pass of requests through a server, as many at a time as keep its queue filled and no more."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kimi_agent.engine.http import get_json, post_json
from kimi_agent.engine.loads import LOADS_PATH, parse_loads
from kimi_agent.errors import KimiError
from kimi_agent.feed.requests import Request
from kimi_agent.tasks import end
from kimi_agent.text import clean

FIRST: Final = 8
"""Requests in flight to begin with."""
QUEUE_LOW: Final = 2
QUEUE_HIGH: Final = 16
"""Requests that wait in the engine: fewer, and it may run dry; more only cost it memory."""
PERIOD: Final = 0.5
"""Seconds between two looks at the queue."""
BUSY: Final = frozenset({"http-429", "http-503"})
"""Answers of a server that has not taken the request: the same request may be sent again at once."""
WAITS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each further try of a request that was not taken."""
GONE_AFTER: Final = 3
"""Connections in a row that fail before the server counts as gone."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go."""

    host: str
    port: int
    key: str | None
    deadline: float
    """Seconds for one request."""
    temperature: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that was not answered as it should be."""

    why: str
    final: bool
    """Whether sending it again can only fail again."""


@dataclass(slots=True)
class Pass:
    """What a pass has come to."""

    answered: int = 0
    tokens: int = 0
    """Prompt and output tokens that the server says it computed."""
    in_flight: int = 0
    waiting: int | None = None
    """Requests in the engine's queue, as it last said."""
    limit: int = FIRST
    failures: dict[str, Failure] = field(default_factory=dict)
    """By request id."""
    gone: str = ""
    """Why nothing more was sent, if so."""
    broken: int = 0
    """Connections that failed in a row."""


class Driver:
    """Sends requests; the pass it is in can be watched and ended from outside."""

    def __init__(self, server: Server, ids: Callable[[Request], list[int]], most: int) -> None:
        """`ids` gives a request's tokens, `most` is the largest number in flight."""
        self._server, self._ids, self._most = server, ids, most
        self.done = Pass()
        self._stop = asyncio.Event()

    def stop(self, why: str) -> None:
        """Send nothing more; what is in flight comes to its end."""
        self.done.gone = self.done.gone or why
        self._stop.set()

    async def run(self, requests: Iterable[Request]) -> Pass:
        """Send all requests and wait for their answers, or for what `stop` leaves."""
        self.done = Pass(gone=self.done.gone)
        watch = asyncio.create_task(self._watch())
        try:
            await self._send_all(iter(requests))
        finally:
            await end(watch)
        return self.done

    async def _send_all(self, requests: Iterator[Request]) -> None:
        tasks: set[asyncio.Task[None]] = set()
        left = True
        while left or tasks:
            while left and len(tasks) < self.done.limit and not self._stop.is_set():
                request = next(requests, None)
                left = request is not None
                if request is not None:
                    tasks.add(asyncio.create_task(self._send(request)))
            left = left and not self._stop.is_set()
            self.done.in_flight = len(tasks)
            if tasks:
                ended, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
        self.done.in_flight = 0

    async def _send(self, request: Request) -> None:
        body = {
            "rid": request.rid,
            "input_ids": self._ids(request),
            "sampling_params": {"max_new_tokens": request.new, "temperature": self._server.temperature},
        }
        failure: Failure | None = None
        for wait in (*WAITS, None):
            try:
                answer = await self._post(body)
            except KimiError as error:
                failure = self._failure(error)
                if error.slug in BUSY and wait is not None and not self._stop.is_set():
                    await asyncio.sleep(wait)
                    continue
            else:
                failure = self._take(answer)
            break
        if failure is not None:
            self.done.failures[request.rid] = failure

    async def _post(self, body: dict[str, Any]) -> Any:
        server = self._server
        return await post_json(
            server.host, server.port, "/generate", body, api_key=server.key, deadline=server.deadline
        )  # fmt: skip

    def _failure(self, error: KimiError) -> Failure:
        if error.slug == "http-refused":
            self.done.broken += 1
            if self.done.broken >= GONE_AFTER:
                self.stop(f"the server is gone: {error.message}")
        return Failure(clean(error.message, 400), final=error.slug in ("http-400", "http-413", "http-422"))

    def _take(self, answer: Any) -> Failure | None:
        """Count an answer; what is wrong with it, or None."""
        self.done.broken = 0
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        reason = meta.get("finish_reason") if isinstance(meta, dict) else None
        if not isinstance(meta, dict) or not isinstance(reason, dict):
            return Failure("the answer is not what /generate returns", final=False)
        if reason.get("type") == "abort":
            said = clean(str(reason.get("message") or "aborted by the server"), 400)
            return Failure(said, final=reason.get("status_code") == 400)
        self.done.answered += 1
        self.done.tokens += int(meta.get("prompt_tokens") or 0) + int(meta.get("completion_tokens") or 0)
        return None

    async def _watch(self) -> None:
        """Keep between `QUEUE_LOW` and `QUEUE_HIGH` requests waiting in the engine, for ever."""
        server = self._server
        while True:
            try:
                loads = parse_loads(await get_json(server.host, server.port, LOADS_PATH, server.key, 5.0))
            except KimiError:
                loads = None  # the requests themselves say what is wrong with the server
            waiting = self.done.waiting = loads.waiting if loads is not None else None
            if waiting is not None:
                self.done.limit = adjusted(self.done.limit, self.done.in_flight, waiting, self._most)
            await asyncio.sleep(PERIOD)


def adjusted(limit: int, in_flight: int, waiting: int, most: int) -> int:
    """How many requests may be in flight from now on: 1 to `most`."""
    if waiting < QUEUE_LOW and in_flight >= limit:
        limit += max(2, limit // 2)
    elif waiting > QUEUE_HIGH:
        limit = in_flight - (waiting - QUEUE_HIGH)
    return max(1, min(limit, most))
