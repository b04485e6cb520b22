"""A state as bytes, for checkpoints; it comes back equal to what it was."""

import hashlib
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec

from kimi_agent.model.state import State

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(State)


def encode_state(state: State) -> bytes:
    """The bytes of a state."""
    return _encoder.encode(state)


def decode_state(data: bytes) -> State:
    """The state of these bytes.

    Raises:
        msgspec.MsgspecError: they are no state of this version.
    """
    return _decoder.decode(data)


@cache
def fingerprint() -> str:
    """Names the fields that a state has in this version; a checkpoint of other fields is not used."""
    seen: dict[str, str] = {}
    _describe(State, seen)
    return hashlib.sha256(repr(sorted(seen.items())).encode()).hexdigest()[:16]


def _describe(hint: Any, seen: dict[str, str]) -> None:
    if is_dataclass(hint) and isinstance(hint, type) and hint.__name__ not in seen:
        hints = get_type_hints(hint)
        seen[hint.__name__] = repr([(field.name, str(hints[field.name])) for field in fields(hint)])
        for inner in hints.values():
            _describe(inner, seen)
    for inner in get_args(hint):
        _describe(inner, seen)
