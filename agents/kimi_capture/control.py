"""The plugin's unix socket: JSON lines, answered by threads of their own while the scheduler loop hangs."""

import inspect
import json
import os
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

MAX_LINE: Final = 1 << 20
Request = dict[str, Any]
Answer = dict[str, Any]
_Frame = tuple[FrameType, int]
_WALKS: Final = 20


class Refused(Exception):  # noqa: N818 - an answer, not a failure
    """A request cannot be granted: a stable slug, a message and what to do."""

    def __init__(self, slug: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.answer: Answer = {"ok": False, "slug": slug, "message": message, "hint": hint}


class Control:
    """Serves operations by name; each takes the request and returns the answer's fields, or raises Refused."""

    def __init__(self, path: Path, operations: Mapping[str, Callable[[Request], Answer]]) -> None:
        """Bind `path` (0600) and answer from daemon threads. Raises OSError when it cannot be bound."""
        self._operations = operations
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen(8)
        threading.Thread(target=self._accept_for_ever, name="kimi-capture-control", daemon=True).start()

    def _accept_for_ever(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(connection,), name="kimi-capture-client", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            try:
                if peer_uid(connection) not in (0, os.geteuid()):
                    return
                while line := lines.readline(MAX_LINE + 1):
                    connection.sendall(json.dumps(self._answer(line)).encode() + b"\n")
                    if len(line) > MAX_LINE:
                        return
            except OSError:
                return  # the client went away

    def _answer(self, line: bytes) -> Answer:
        try:
            return {"ok": True, **self._operate(line)}
        except Refused as refused:
            return refused.answer
        except Exception as error:  # a failed request is answered, the socket lives on
            return Refused("internal", f"{type(error).__name__}: {error}").answer

    def _operate(self, line: bytes) -> Answer:
        if len(line) > MAX_LINE:
            raise Refused("too-long", f"a request is at most {MAX_LINE} bytes")
        try:
            request = json.loads(line)
        except ValueError as error:
            raise Refused("bad-request", f"not JSON: {error}") from error
        operation = self._operations.get(str(request.get("op"))) if isinstance(request, dict) else None
        if operation is None:
            raise Refused("bad-request", "unknown op", f"one of {', '.join(self._operations)}")
        return operation(request)


def peer_uid(connection: socket.socket) -> int:
    """User id of the process at the other end."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)


def stacks() -> str:
    """The Python stacks of all threads of this process, innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frames in _whole_stacks().items():
        text = "".join(traceback.StackSummary.extract(reversed(frames)).format())
        parts.append(f"Thread {names.get(ident, 'unknown')} ({ident})\n{text}")
    return "\n".join(parts)


def _whole_stacks() -> dict[int, list[_Frame]]:
    """Each thread's frames and their lines, the innermost first, walked before formatting lets the threads run on.

    A generator that ends under the walk lets go of its caller, so that a stack that ends in one is torn: walked again.
    """
    for _ in range(_WALKS):
        walked = {
            ident: list(traceback.walk_stack(frame))
            for ident, frame in sys._current_frames().items()  # noqa: SLF001 - the interpreter's documented way
        }
        if not any(frames[-1][0].f_code.co_flags & inspect.CO_GENERATOR for frames in walked.values()):
            break
    return walked
