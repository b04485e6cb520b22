"""`attach --stdio`: a pipe between standard input and output and the agent's socket."""

import os
import selectors
import sys

from kimi_agent.wire.client import Client
from kimi_agent.wire.codec import encode

CHUNK = 256 << 10


def proxy(client: Client, *, read_only: bool) -> None:
    """Copy both ways until either side ends; the greeting, already read, is written first.

    Reads block when the other side is slow: back-pressure reaches the agent, which reads its journal more slowly.
    """
    out = sys.stdout.fileno()
    _write(out, encode({"hello": client.hello}) + b"\n")
    if read_only:
        client.request("read_only")
    source = sys.stdin.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        selector.register(client.fileno(), selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                data = os.read(key.fd, CHUNK)
                if not data:
                    return
                if key.fd == source:
                    client.send(data)
                else:
                    _write(out, data)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
