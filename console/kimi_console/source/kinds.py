"""What a file that is to be played is, by its first bytes."""

import re
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from kimi_agent.engine.dialects import is_record
from kimi_agent.engine.loglines import parse, split_lines
from kimi_agent.errors import UsageError
from kimi_agent.record.format import MAGIC
from kimi_console.source.files import chunks_of

LOOKED_AT: Final = 2000
"""Lines of a text in which one must be of a server for it to be taken for a log."""
_NAMED: Final = re.compile(r"sglang|vllm|server_args=", re.IGNORECASE)


def readable(path: Path) -> Literal["recording", "events", "journal", "log"]:
    """What a file is, by its first bytes.

    Raises:
        UsageError: it cannot be read or is none of these.
    """
    if path.is_dir():
        return "journal"
    head = _head(path)
    if head.startswith(MAGIC):
        return "recording"
    if _holds_events(head):
        return "events"
    if b"\0" in head:
        raise UsageError(f"{path} is a binary file", "Give a recording, a journal or a server's log.")
    if not any(map(_of_a_server, islice(split_lines(head, b"")[0], LOOKED_AT))):
        raise UsageError(f"{path} is neither a recording nor a server's log", "Give one of these.")
    return "log"


def _of_a_server(line: str) -> bool:
    return parse(line).kind != "text" or _NAMED.search(line) is not None


def is_log(path: Path) -> bool:
    """Whether a readable file is text rather than a recording.

    Raises:
        UsageError: it cannot be read.
    """
    if path.is_dir():
        return False
    head = _head(path)
    return not head.startswith(MAGIC) and not _holds_events(head)


def _holds_events(head: bytes) -> bool:
    """Whether a file that begins so holds events, and not the records of a logger or a container that writes JSON."""
    first = next(iter(split_lines(head.lstrip() + b"\n", b"")[0]), "")
    return first.startswith("{") and not is_record(first)


def _head(path: Path) -> bytes:
    head = next(chunks_of(path), b"")
    if not head.strip():
        raise UsageError(f"{path} is empty", "Give a recording, a journal or a server's log.")
    return head
