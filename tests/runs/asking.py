"""What a client sees of an agent: its run now, and everything that it tells one that comes late."""

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from kimi_agent.model.events import Event
from kimi_agent.paths import Home
from kimi_agent.wire.client import Client
from kimi_agent.wire.codec import decode_event


def wait_for(client: Client, what: str, holds: Callable[[dict[str, Any]], object], timeout: float) -> dict[str, Any]:
    """Ask for the status until it `holds`."""
    deadline = time.monotonic() + timeout
    while True:
        run: dict[str, Any] = client.request("status")["run"]
        if holds(run):
            return run
        assert time.monotonic() < deadline, f"not {what} after {timeout} s: {run}"
        time.sleep(0.2)


def history(home: Home) -> list[Event]:
    """All events, as a client that comes now and reads the whole journal gets them."""
    client = Client(home.socket)
    last = client.request("subscribe", epoch=None, after=0)["last"]
    events = [decode_event(line) for line in islice(client.events(), last)]
    client.close()
    assert [event.seq for event in events] == list(range(1, last + 1))
    return events
