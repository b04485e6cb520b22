"""Events and messages as lines: one JSON object a line, at most `MAX_LINE` bytes.

An event is `{"seq": n, "t": unix_seconds, "k": kind, "d": {…}}`; `kimi_agent.model.events` names the kinds and fields.
Decoding validates types; a kind that this version does not know becomes `Unknown`, anything else
wrong is a `WireError`.
"""

from typing import Any

import msgspec
import orjson

from kimi_agent.errors import KimiError
from kimi_agent.model.events import BODIES, KINDS, Body, Event, Snapshot, Unknown
from kimi_agent.model.state import State

MAX_LINE = 1 << 20
"""Longest line on the wire, in a journal and in a recording, in bytes."""


class WireError(KimiError):
    """A line is not what the protocol says."""

    slug = "wire"


class _Envelope(msgspec.Struct):
    seq: int
    t: float
    k: str
    d: msgspec.Raw


class _Snapshot(msgspec.Struct):
    state: State
    first: int
    lines: tuple[str, ...]


_envelope = msgspec.json.Decoder(_Envelope)
_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(body, strict=True) for kind, body in BODIES.items()
}
_snapshot = msgspec.json.Decoder(_Snapshot)
_any = msgspec.json.Decoder(dict[str, Any])
SNAPSHOT = "snapshot"


def encode_event(event: Event) -> bytes:
    """One line for one event, without its newline."""
    body = event.body
    if isinstance(body, Unknown):
        return msgspec.json.encode({"seq": event.seq, "t": event.time, "k": body.kind, "d": body.data})
    kind = SNAPSHOT if isinstance(body, Snapshot) else KINDS[type(body)]
    return msgspec.json.encode({"seq": event.seq, "t": event.time, "k": kind, "d": body})


def decode_event(line: bytes) -> Event:
    """The event of one line.

    Raises:
        WireError: the line is too long, not JSON, or a field has the wrong type.
    """
    if len(line) > MAX_LINE:
        raise WireError(f"an event of {len(line)} bytes is longer than the {MAX_LINE} allowed")
    try:
        envelope = _envelope.decode(line)
        decoder = _decoders.get(envelope.k)
        if envelope.k == SNAPSHOT:
            kept = _snapshot.decode(envelope.d)
            return Event(envelope.seq, envelope.t, Snapshot(kept.state, kept.first, kept.lines))
        if decoder is None:
            return Event(envelope.seq, envelope.t, Unknown(envelope.k, _any.decode(envelope.d)))
        body: Body = decoder.decode(envelope.d)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not an event: {error}") from error
    return Event(envelope.seq, envelope.t, body)


def decode_lenient(line: bytes) -> Event:
    """The event of one line; one whose body this version cannot read keeps its place as `Unknown`.

    Raises:
        WireError: the line is not even an envelope.
    """
    try:
        return decode_event(line)
    except WireError:
        message = decode(line)
        seq, time, kind, data = (message.get(key) for key in ("seq", "t", "k", "d"))
        if type(seq) is not int or not isinstance(time, int | float) or not isinstance(kind, str):
            raise
        return Event(seq, float(time), Unknown(kind, data if isinstance(data, dict) else {"value": data}))


def encode(message: object) -> bytes:
    """Any other message (greeting, request, response) as one line, without its newline."""
    return orjson.dumps(message)


def decode(line: bytes) -> dict[str, Any]:
    """A message that is a JSON object.

    Raises:
        WireError: the line is too long, not JSON or not an object.
    """
    if len(line) > MAX_LINE:
        raise WireError(f"a message of {len(line)} bytes is longer than the {MAX_LINE} allowed")
    try:
        return _any.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a message: {error}") from error
