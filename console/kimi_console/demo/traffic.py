"""Requests to a server: what the demo serves and captures."""

import asyncio
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kimi_agent.errors import KimiError

SHORT: Final = "What is a hidden state?"
LONG: Final = (
    "Please explain, step by step, how a server that is spread over several ranks starts: every rank imports its "
    "code, joins the others, loads its part of the weights and makes room for the tokens that are to come. Then say "
    "what happens when one rank is late, who waits for whom, and how a person at the console can tell a slow start "
    "from one that will never end."
)
"""Longer than one prefill chunk of the demo's profile."""
SEVERAL: Final = (
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "List three things that make a good tool.",
    "Tell me about the weather in the mountains.",
    "What is the difference between a thread and a process?",
    "Why is the sky blue in the morning and red in the evening?",
    "How many days are there in a year, and why is it not a round number?",
)
"""Prompts that are sent at once, or in turn."""
TIMEOUT: Final = 120.0
"""Seconds one request may take."""


class TrafficError(KimiError):
    """The server did not answer a request as it should."""

    slug = "traffic"


@dataclass(frozen=True, slots=True)
class Served:
    """One answered request."""

    rid: str
    prompt_tokens: int
    output_tokens: int

    @property
    def rows(self) -> int:
        """Rows that a capture of this request has: the last token is never fed back."""
        return self.prompt_tokens + self.output_tokens - 1


class Traffic:
    """Sends prompts to one server and keeps count of what was served."""

    def __init__(self, host: str, port: int, prefix: str = "demo") -> None:
        self._host = host
        self.port = port
        self._rids: Iterator[str] = (f"{prefix}-{number:06d}" for number in itertools.count(1))
        self.served: list[Served] = []
        """Every request answered so far."""

    @property
    def tokens(self) -> int:
        """Prompt and output tokens served so far."""
        return sum(one.prompt_tokens + one.output_tokens for one in self.served)

    async def send(self, prompt: str, output_tokens: int) -> Served:
        """Send one prompt and wait for exactly `output_tokens` tokens.

        Raises:
            TrafficError: the server refused, broke off or took longer than `TIMEOUT`.
        """
        rid = next(self._rids)
        sampling = {"max_new_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
        try:
            async with asyncio.timeout(TIMEOUT):
                answer = await self._post("/generate", {"rid": rid, "text": prompt, "sampling_params": sampling})
            meta = answer["meta_info"]
            served = Served(rid, int(meta["prompt_tokens"]), int(meta["completion_tokens"]))
        except TimeoutError as error:
            raise self._failed(rid, f"no answer within {TIMEOUT:.0f} s") from error
        except (OSError, EOFError) as error:
            raise self._failed(rid, f"the connection broke ({error})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._failed(rid, "the answer is not what /generate returns") from error
        self.served.append(served)
        return served

    async def send_all(self, prompts: Sequence[str], output_tokens: int) -> None:
        """Send several prompts at once and wait for all answers.

        Raises:
            TrafficError: one of them failed; the others are cancelled.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for prompt in prompts:
                    group.create_task(self.send(prompt, output_tokens))
        except* TrafficError as failed:
            raise failed.exceptions[0] from failed

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection(self._host, self.port)
        try:
            writer.write(head.encode() + data)
            await writer.drain()
            answer = await reader.read()
        finally:
            writer.close()
        header, _, content = answer.partition(b"\r\n\r\n")
        status = header.split(b"\r\n", 1)[0].decode(errors="replace")
        if status.split(" ")[1:2] != ["200"]:
            raise self._failed(body["rid"], f"it answered {status!r}")
        parsed: dict[str, Any] = json.loads(content)
        return parsed

    def _failed(self, rid: str, why: str) -> TrafficError:
        return TrafficError(f"Request {rid} to {self._host}:{self.port} failed: {why}", "Read the server's log.")
