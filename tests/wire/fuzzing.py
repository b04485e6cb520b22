"""Targets for fuzzing: everything that reads bytes of a peer, a log or a file, each with what it may raise."""

import contextlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.engine.loglines import parse, split_lines
from kimi_agent.engine.phases import PhaseTracker
from kimi_agent.errors import KimiError
from kimi_agent.model.events import Body, Event, LogLines, Note, RunStarted, StatusChanged, Verdict, VerdictChanged
from kimi_agent.model.state import State
from kimi_agent.profile import parse as parse_profile
from kimi_agent.record.writer import RecordingWriter
from kimi_agent.text import clean
from kimi_agent.wire import codec, rpc
from kimi_console.source.client import AgentClient, _hello
from kimi_console.source.replay import open_events

STARTED = RunStarted("r", "n", "/m", ("a",), 1, 1, ("TP0",), "127.0.0.1", 1, "/l", "/p", "0.5.23", True, (3,))
BODIES: tuple[Body, ...] = (
    STARTED, StatusChanged("r", "STARTING", "launched"), Note("info", "a note"),
    LogLines("r", 0, ("[2026-11-29 14:00:00 TP0] Load weight begin.", "\x1b[31mred\x1b[0m")),
    VerdictChanged("r", Verdict("deadlock", "TP0 waits", "TP0", 0.9, ("proc x",), ("a crash",), ("wait",))),
    StatusChanged("r", "READY", ""),
)  # fmt: skip
EVENTS = tuple(Event(number, 1764424800.0 + number, body) for number, body in enumerate(BODIES, 1))
LINES = tuple(codec.encode_event(event) for event in EVENTS)
MESSAGES = (
    b'{"id":1,"method":"subscribe","params":{"epoch":null,"after":0}}',
    b'{"id":1,"error":{"slug":"usage","message":"no","hint":"h","exit":2}}',
    b'{"hello":{"protocol":1,"version":"0.1.0","epoch":"e","first":1,"last":2,"host":"h","pid":1,"build":"b"}}',
)
LOG = (
    b"[2026-11-29 14:03:01 TP0] Decode batch, #running-req: 1, #token: 40, token usage: 0.00, #queue-req: 0, \n",
    b"[2026-11-29 14:03:02 TP1] Load weight end. elapsed=151.20 s, type=KimiK25, avail mem=20.1 GB\r\n",
    b"Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01]\rLoading safetensors\n",
    b"Traceback (most recent call last):\n  File \"x.py\", line 1, in y\nRuntimeError: NCCL error\n",
    b"server_args=ServerArgs(model_path='/m', tp_size=2, dp_size=1)\n\x1b]0;title\x07\xff\xfe\n",
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, *seeds: bytes) -> bytes:
    """A seed with some bytes changed, dropped, repeated or put in; or bytes of no origin."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        span = draw(st.integers(0, 24))
        change = draw(st.sampled_from(("set", "drop", "repeat", "insert")))
        if change == "set" and data:
            data[at] = draw(st.integers(0, 255))
        elif change == "drop":
            del data[at : at + span]
        elif change == "repeat":
            data[at:at] = data[at : at + span] * draw(st.integers(1, 40))
        else:
            data[at:at] = draw(st.sampled_from((b"[", b"{", b'"', b"\\u0000", b"1e999", b"-", b"null", b"\x00", b"\n")))
    return bytes(data)


def anything(*seeds: bytes) -> st.SearchStrategy[bytes]:
    """Mostly near misses of the seeds."""
    return mutated(*seeds) | mutated(*seeds) | st.binary(max_size=200)


def events_of_the_wire(data: bytes) -> None:
    """A line is an event, or a WireError."""
    with contextlib.suppress(codec.WireError):
        event = codec.decode_event(data)
        assert isinstance(event, Event)
        codec.encode_event(event)


def messages_of_the_wire(data: bytes) -> None:
    """A line is a message and perhaps a request; a greeting is one, none, or refused in words."""
    with contextlib.suppress(KimiError):
        message = codec.decode(data)
        rpc.refusal(message.get("error"))
        rpc.parse_request(message)
    with contextlib.suppress(KimiError):
        _hello(data)


def a_stream_from_an_agent(data: bytes) -> None:
    """Whatever an agent sends, the console reads events or says that it cannot."""
    client = AgentClient(None, None, data)  # type: ignore[arg-type]
    with contextlib.suppress(KimiError):
        client._take_events()


def a_log(data: bytes) -> None:
    """Any bytes are lines; none of them can move a cursor or break the reading of phases."""
    lines, carry = split_lines(data, b"")
    rest, _ = split_lines(b"\n", carry)
    tracker = PhaseTracker(("TP0", "TP1"))
    for line in [*lines, *rest]:
        tracker.feed(parse(line))
        shown = clean(line)
        assert "\x1b" not in shown
        assert shown.isprintable() or not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in shown)


@cache
def _place() -> Path:
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    return base / f"kimi-fuzz-{os.getpid()}"


@cache
def recording() -> bytes:
    """A small recording as a file's bytes."""
    path = _place()
    path.unlink(missing_ok=True)
    writer = RecordingWriter(path)
    writer.append(EVENTS, State())
    writer.close()
    data = path.read_bytes()
    path.unlink()
    return data


def a_recording(data: bytes) -> None:
    """A file is read to its end, or refused in words."""
    path = _place()
    path.write_bytes(data)
    try:
        with contextlib.suppress(KimiError):
            for event in open_events(path):
                assert isinstance(event, Event)
    finally:
        for name in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            name.unlink(missing_ok=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(("model", "server", "port", "flags", "capture", "layers", "limits", "env", "tp", "x")), inner,
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip


def a_profile(tables: Any) -> None:
    """A profile from a client is one, or refused in words."""
    if isinstance(tables, dict):
        with contextlib.suppress(KimiError):
            parse_profile(tables, "profile")


def a_damaged_recording(bytes_at: list[tuple[float, int]], kept: float) -> None:
    """The small recording with a few of its bytes changed and its end cut off is read as far as it goes, or refused."""
    data = bytearray(recording())
    for place, byte in bytes_at:
        data[int(place * (len(data) - 1))] = byte
    a_recording(bytes(data[: int(kept * len(data))]))


FRACTION = st.floats(0, 1)
DAMAGE = st.lists(st.tuples(FRACTION, st.integers(0, 255)), min_size=1, max_size=8)

TARGETS: dict[str, Callable[[], None]] = {
    "wire events": given(anything(*LINES))(events_of_the_wire),
    "wire messages": given(anything(*MESSAGES))(messages_of_the_wire),
    "agent's stream": given(anything(b"\n".join([*MESSAGES, *LINES, b""])))(a_stream_from_an_agent),
    "log": given(anything(*LOG))(a_log),
    "recording": given(DAMAGE, FRACTION | st.just(1.0))(a_damaged_recording),
    "old recording": given(anything(b"\n".join([*LINES, b""])))(a_recording),
    "profile": given(JSON)(a_profile),
}
