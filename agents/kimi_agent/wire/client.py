"""A blocking client of the agent's socket, for the agent's own commands."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kimi_agent.errors import KimiError
from kimi_agent.wire.codec import MAX_LINE, WireError, decode, encode
from kimi_agent.wire.peer import same_user
from kimi_agent.wire.rpc import refusal

READ_BYTES = 256 << 10


class _ClosedError(KimiError):
    """The agent is gone."""


class Client:
    """One connection; requests and events may be mixed on it."""

    def __init__(self, path: Path, timeout: float | None = 60.0) -> None:
        """Connect and read the greeting.

        Raises:
            OSError: nobody listens, whoever did has just ended, or it is another user's socket.
            WireError: what answers is not an agent.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        self._buffer = b""
        self._lines: list[bytes] = []
        self._events: list[bytes] = []
        self._next = 0
        try:
            self._socket.connect(str(path))
            if not same_user(self._socket):
                raise PermissionError("the agent's socket belongs to another user")
            self.hello: dict[str, Any] = decode(self._line()).get("hello") or {}
        except _ClosedError as error:
            self._socket.close()
            raise ConnectionError(error.message) from error
        except BaseException:
            self._socket.close()
            raise
        if not self.hello:
            raise WireError(f"{path} does not speak the agent's protocol", "Stop what listens there.")

    def request(self, method: str, **params: Any) -> Any:
        """Call a method and wait for its answer; events that come meanwhile are kept for `events`.

        Raises:
            KimiError: the agent refused, or the connection broke.
        """
        self._next += 1
        self.send(encode({"id": self._next, "method": method, "params": params}) + b"\n")
        while True:
            line = self._line()
            message = decode(line)
            if message.get("id") == self._next:
                break
            if "seq" in message:
                self._events.append(line)
        if error := message.get("error"):
            raise refusal(error)
        return message.get("result")

    def events(self) -> Iterator[bytes]:
        """Lines of events, for ever, after `subscribe` was requested."""
        while True:
            kept, self._events = self._events, []
            yield from kept
            if not self._events:
                line = self._line()
                if b'"seq"' in line[:8]:
                    self._events.append(line)

    def send(self, data: bytes) -> None:
        """Write raw bytes."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise KimiError(f"the agent closed the connection: {error.strerror}", "Connect again.") from error

    def fileno(self) -> int:
        """The socket's file descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection; the agent goes on."""
        self._socket.close()

    def _line(self) -> bytes:
        while not self._lines:
            try:
                chunk = self._socket.recv(READ_BYTES)
            except TimeoutError as error:
                raise KimiError("the agent does not answer", "Look at its agent.log.") from error
            except OSError as error:
                raise _ClosedError(f"the agent closed the connection: {error.strerror}", "Connect again.") from error
            if not chunk:
                raise _ClosedError("the agent closed the connection", "Connect again.")
            *self._lines, self._buffer = (self._buffer + chunk).split(b"\n")
            self._lines.reverse()
            if len(self._buffer) > MAX_LINE:
                raise WireError(f"the agent sent a line of more than {MAX_LINE} bytes", "Connect again.")
        return self._lines.pop()
