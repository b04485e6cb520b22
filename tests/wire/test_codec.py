"""What is written as a line is read back equal, and no line can do worse than a WireError."""

import contextlib
import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kimi_agent.errors import KimiError
from kimi_agent.model.events import BODIES, Body, Event, LogLines, Note, Unknown
from kimi_agent.wire import codec, rpc

INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS: dict[object, st.SearchStrategy[Any]] = {
    str: st.text(max_size=20),
    int: INTEGERS,
    float: FLOATS,
    bool: st.booleans(),
    type(None): st.none(),
}
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """All values of a field's type."""
    if hint in SCALARS:
        return SCALARS[hint]
    if is_dataclass(hint):
        return instances_of(typing.cast(type, hint))
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is types.UnionType:
        return st.one_of(*map(values_of, arguments))
    if typing.get_origin(hint) is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if typing.get_origin(hint) is tuple:
        return st.tuples(*map(values_of, arguments))
    raise TypeError(f"no strategy for {hint}")


def instances_of(body: type) -> st.SearchStrategy[Any]:
    """All instances of a body's class, every field drawn from its type."""
    hints = typing.get_type_hints(body)
    return st.builds(body, **{field.name: values_of(hints[field.name]) for field in fields(body)})


UNKNOWN = st.builds(
    Unknown,
    st.text(max_size=9).filter(lambda kind: kind not in {*BODIES, codec.SNAPSHOT}),
    st.dictionaries(st.text(max_size=5), JSON),
)


@pytest.mark.parametrize("kind", BODIES)
@settings(max_examples=30)  # of each kind, and there are many: the code is the same for all
@given(data=st.data())
def test_every_kind_of_event_survives_the_wire(kind: str, data: st.DataObject) -> None:
    event = Event(data.draw(INTEGERS), data.draw(FLOATS), data.draw(instances_of(BODIES[kind])))
    line = codec.encode_event(event)
    assert b"\n" not in line
    assert codec.decode_event(line) == event


@given(INTEGERS, FLOATS, UNKNOWN)
def test_an_event_of_an_unknown_kind_is_kept_as_it_came(seq: int, time: float, body: Body) -> None:
    event = Event(seq, time, body)
    assert codec.decode_event(codec.encode_event(event)) == event


def test_a_field_of_a_newer_version_is_ignored() -> None:
    line = orjson.dumps({"seq": 1, "t": 2.0, "k": "note", "d": {"level": "info", "text": "x", "colour": "red"}, "z": 1})
    assert codec.decode_event(line) == Event(1, 2.0, Note("info", "x"))


def decodes_or_wire_error(line: bytes) -> None:
    """Both decoders take the line or raise WireError; an event that was taken can be written again."""
    with contextlib.suppress(codec.WireError):
        codec.decode(line)
    try:
        event = codec.decode_event(line)
    except codec.WireError:
        return
    assert codec.decode_event(codec.encode_event(event)) == event


@given(st.binary(max_size=200))
@example(b'{"seq":1,"t":1,"k":"\xff","d":{}}')
@example(b'{"seq":1,"t":1,"k":"note","d":{"level":"\xff","text":""}}')
@example(b'{"seq":1,"t":1,"k":"x","d":{"\xff":1}}')
@example(b'{"seq":1,"t":1,"k":"x","d":{"a":"\\ud800"}}')
@example(b'{"seq":1,"t":1,"k":"note","d":{"level":"\\ud800","text":""}}')
@example(b'{"seq":1,"t":1,"k":"x","d":{"a":' + b"9" * 400 + b"}}")
@example(b'{"seq":1,"t":1,"k":"x","d":{"a":' + b"9" * 5000 + b"}}")
@example(b'{"seq":' + b"9" * 30 + b',"t":1,"k":"x","d":{}}')
@example(b'{"seq":1,"t":1e999,"k":"x","d":{}}')
@example(b'{"seq":1,"t":1,"k":"x","d":[]}')
@example(b'{"seq":1,"t":1,"k":"x","d":' + b'{"a":' * 5000 + b"1" + b"}" * 5001)
@example(b"[" * 100_000)
@example(b'{"seq":1,"t":1,"k":"x"}')
def test_arbitrary_bytes_raise_nothing_but_wire_errors(line: bytes) -> None:
    decodes_or_wire_error(line)


@given(st.dictionaries(st.sampled_from(["seq", "t", "k", "d", "id"]), JSON))
def test_arbitrary_objects_raise_nothing_but_wire_errors(message: dict[str, Any]) -> None:
    decodes_or_wire_error(orjson.dumps(message))


@given(st.sampled_from(sorted(BODIES)), st.data())
def test_a_damaged_event_raises_nothing_but_wire_errors(kind: str, data: st.DataObject) -> None:
    line = bytearray(codec.encode_event(Event(1, 1.0, data.draw(instances_of(BODIES[kind])))))
    line[data.draw(st.integers(0, len(line) - 1))] = data.draw(st.integers(0, 255))
    decodes_or_wire_error(bytes(line))


def test_a_line_longer_than_allowed_is_refused_with_both_sizes() -> None:
    line = codec.encode_event(Event(1, 1.0, LogLines("r", 0, ("x" * codec.MAX_LINE,))))
    for decode in (codec.decode_event, codec.decode):
        with pytest.raises(codec.WireError, match=f"{len(line)} bytes is longer than the {codec.MAX_LINE}"):
            decode(line)


@given(st.dictionaries(st.text(max_size=5), JSON))
def test_a_message_survives_the_wire(message: dict[str, Any]) -> None:
    assert codec.decode(codec.encode(message)) == message


@given(st.integers(0, 2**53), st.text(), st.dictionaries(st.text(max_size=5), JSON))
def test_a_request_is_read_back(ident: int, method: str, params: dict[str, Any]) -> None:
    line = codec.encode({"id": ident, "method": method, "params": params})
    assert rpc.parse_request(codec.decode(line)) == rpc.Request(ident, method, params)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"id": "1", "method": "ping"},
        {"id": True, "method": "ping"},
        {"id": 1},
        {"id": 1, "method": "x", "params": []},
    ],
)
def test_what_is_not_a_request_is_a_wire_error(message: dict[str, Any]) -> None:
    with pytest.raises(codec.WireError, match="a request needs"):
        rpc.parse_request(message)


def test_responses_carry_the_request_and_the_error_in_full() -> None:
    error = KimiError("no dump d7", "List them with shards ls", slug="shards")
    assert codec.decode(rpc.result_line(7, {"run": "a"})) == {"id": 7, "result": {"run": "a"}}
    assert codec.decode(rpc.error_line(7, error)) == {
        "id": 7,
        "error": {"slug": "shards", "message": "no dump d7", "hint": "List them with shards ls", "exit": 5},
    }
