"""Events without what must not leave the host."""

import getpass
import ipaddress
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from kimi_agent.model.events import Body, Event, LogLines, Snapshot, Unknown
from kimi_agent.model.state import State
from kimi_agent.redact import Redactor
from kimi_agent.wire.codec import decode_event, encode_event


def redactor_for(*states: State) -> Redactor:
    """One that knows the hosts that these states name, and this machine, its user and home."""
    hosts = {socket.gethostname()}
    for state in states:
        if state.agent is not None:
            hosts.add(state.agent.host)
        if state.run is not None:
            hosts.add(state.run.started.host)
    users = set()
    with suppress(KeyError, OSError):
        users.add(getpass.getuser())
    return Redactor(hosts=filter(_is_name, hosts), users=users, homes=[str(Path.home())])


def _is_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return bool(host)
    return False


def without_private(batches: Iterable[Sequence[Event]], redactor: Redactor) -> Iterator[list[Event]]:
    """The same events with everything private replaced, in one way throughout."""
    for batch in batches:
        yield [Event(event.seq, event.time, _body(event, redactor)) for event in batch]


def private_state(state: State, redactor: Redactor) -> State:
    """A state with everything private replaced."""
    return msgspec.convert(redactor.data(msgspec.to_builtins(state)), State)


def _body(event: Event, redactor: Redactor) -> Body:
    body = event.body
    if isinstance(body, LogLines):
        return LogLines(body.run, body.first, _lines(body.lines, redactor))
    if isinstance(body, Snapshot) and isinstance(body.state, State):
        return Snapshot(private_state(body.state, redactor), body.first, _lines(body.lines, redactor))
    if isinstance(body, Unknown):
        return Unknown(body.kind, redactor.data(body.data))
    envelope = msgspec.json.decode(encode_event(event))
    envelope["d"] = redactor.data(envelope["d"])
    return decode_event(msgspec.json.encode(envelope)).body


def _lines(lines: Sequence[str], redactor: Redactor) -> tuple[str, ...]:
    """Line by line, so that their number stays and every line keeps its place."""
    return tuple(redactor.line(line) for line in lines)
