"""One small HTTP request with a deadline: enough to ask a server on this host how it is, or to have it compute."""

import asyncio
import json
from typing import Any, Final

from kimi_agent.errors import UnavailableError

MAX_BODY: Final = 4 * 1024 * 1024
REFUSED_SLUG: Final = "http-refused"
LOCAL: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - what a server listens on, not us


async def get_json(host: str, port: int, path: str, api_key: str | None = None, deadline: float = 2.0) -> Any:
    """The JSON that `http://host:port/path` answers with 200.

    `deadline` covers the whole exchange, in seconds. Raises UnavailableError with slug `http-refused` (no one
    listens), `http-timeout` (no answer in time), `http-<status>` (another status) or `http-invalid` (no JSON).
    """
    return await _ask(host, port, path, given=None, key=api_key, deadline=deadline)


async def post_json(
    host: str, port: int, path: str, body: Any, *, api_key: str | None = None, deadline: float = 60.0
) -> Any:
    """As `get_json`, for a POST of `body` as JSON."""
    return await _ask(host, port, path, given=json.dumps(body).encode(), key=api_key, deadline=deadline)


async def _ask(host: str, port: int, path: str, *, given: bytes | None, key: str | None, deadline: float) -> Any:
    place = f"http://{host}:{port}{path}"
    try:
        status, body = await asyncio.wait_for(_exchange(LOCAL.get(host, host), port, path, given, key), deadline)
    except asyncio.TimeoutError:  # another class than TimeoutError before Python 3.11
        hint = "The server may be hung; its ranks' states say more."
        raise UnavailableError(f"{place} did not answer in {deadline:g} s", hint, slug="http-timeout") from None
    except OSError as error:
        text = f"{place} refuses connections ({error.strerror or type(error).__name__})"
        hint = "SGLang opens its port last, after the weights are loaded."
        raise UnavailableError(text, hint, slug=REFUSED_SLUG) from None
    if status != 200:
        raise UnavailableError(f"{place} answered {status}", "See the server's log.", slug=f"http-{status}")
    try:
        return json.loads(body)
    except ValueError:
        raise UnavailableError(f"{place} answered no JSON", "Is it SGLang's port?", slug="http-invalid") from None


async def _exchange(host: str, port: int, path: str, given: bytes | None, api_key: str | None) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(host, port, limit=MAX_BODY)
    try:
        # HTTP/1.0: the answer ends with the connection and is never chunked.
        method = "GET" if given is None else "POST"
        head = f"{method} {path} HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: application/json\r\n"
        if given is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(given)}\r\n"
        head += f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        writer.write(f"{head}\r\n".encode() + (given or b""))
        await writer.drain()
        status = (await reader.readline()).split(b" ", 2)
        while (await reader.readline()).strip():
            pass
        body = await _body(reader)
    except ValueError:
        return 0, b""
    finally:
        writer.close()
    return int(status[1]) if len(status) > 1 and status[1].isdigit() else 0, body


async def _body(reader: asyncio.StreamReader) -> bytes:
    parts, size = [], 0
    while size < MAX_BODY and (part := await reader.read(65_536)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)
