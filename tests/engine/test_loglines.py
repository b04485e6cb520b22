"""Bytes of a log become lines, and lines become time, rank and message, in every version's spelling."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.engine.dialects import UNDATED
from kimi_agent.engine.loglines import MAX_LINE_BYTES, batch_fields, parse, split_lines, without_repeats
from kimi_agent.engine.phases import PhaseTracker

CHUNKS = st.lists(
    st.binary(max_size=40) | st.sampled_from([b"\r", b"\n", b"\r\n", b"[2026-11-29 13:20:15 TP0] x", b"\xe2"])
)


def split_all(chunks: list[bytes]) -> tuple[list[str], bytes]:
    lines, carry = [], b""
    for chunk in chunks:
        more, carry = split_lines(chunk, carry)
        lines += more
    return lines, carry


@given(CHUNKS)
def test_lines_do_not_depend_on_how_the_bytes_arrive(chunks: list[bytes]) -> None:
    assert split_all(chunks) == split_lines(b"".join(chunks), b"")


@given(st.binary(max_size=300))
def test_no_line_can_steer_a_terminal(data: bytes) -> None:
    for line in split_lines(data + b"\n", b"")[0]:
        assert not any(ord(char) < 32 or char == "\x7f" for char in line)


def test_a_carriage_return_ends_a_line_and_a_pair_ends_only_one() -> None:
    assert split_all([b"a\rb\r", b"\nc\n", b"d"]) == (["a", "b", "c"], b"d")


def test_output_without_line_ends_is_broken_and_never_piles_up() -> None:
    lines, carry = split_all([b"x" * 100_000] * 20)
    assert len(lines) == 7
    assert all("characters cut" in line for line in lines)
    assert len(carry) <= MAX_LINE_BYTES


@pytest.mark.parametrize(
    ("line", "rank", "message", "before"),
    [
        ("[2026-11-29 13:20:15 TP0] Load weight begin.", "TP0", "Load weight begin.", ""),
        ("[2026-11-29 13:20:15.123 DP0 TP1 EP1] x", "DP0 TP1 EP1", "x", ""),
        ("[2026-11-29 13:20:15 TP1 EP1 PP0] x", "PP0 TP1 EP1", "x", ""),
        ("[2026-11-29 13:20:15] x", None, "x", ""),
        ("[13:20:15 TP3] x", "TP3", "x", ""),
        ("sglang-kimi-k2  | [2026-11-29 13:20:15 TP0] x", "TP0", "x", ""),
        ("(SGLangEngine pid=12) [2026-11-29 13:20:15 TP0] x", "TP0", "x", ""),
        ("refleaks.html[2026-11-29 13:20:15] x", None, "x", "refleaks.html"),
        ("no header at all", None, "no header at all", ""),
    ],
)  # fmt: skip
def test_the_header_of_every_version(line: str, rank: str | None, message: str, before: str) -> None:
    parsed = parse(line)
    assert (parsed.rank, parsed.message, parsed.before) == (rank, message, before)


def test_time_is_the_hosts_own_with_or_without_milliseconds() -> None:
    noon = datetime(2026, 11, 29, 12, 0, 0).timestamp()
    assert parse("[2026-11-29 12:00:00] x").time == noon
    assert parse("[2026-11-29 12:00:00.250 TP0] x").time == pytest.approx(noon + 0.25)
    assert parse("[2026-19-39 12:00:00] x").time is None


def test_a_clock_without_a_year_tells_differences_only() -> None:
    times = [parse(f"[{clock} TP0] x").time or 0.0 for clock in ("12:00:00", "12:01:00")]
    assert times[1] - times[0] == 60
    assert max(times) < UNDATED
    tracker = PhaseTracker(("TP0",))
    for clock in ("23:59:50", "00:00:10", "00:00:20"):
        tracker.feed(parse(f"[{clock} TP0] x"))
    assert (tracker.first_time, tracker.last_time) != (None, None)
    assert (tracker.last_time or 0.0) - (tracker.first_time or 0.0) == 30


def test_kinds_tell_life_from_noise() -> None:
    kinds = {
        '[2026-11-29 13:35:18] INFO:     127.0.0.1:48760 - "GET /model_info HTTP/1.1" 200 OK': "access",
        "[2026-11-29 13:35:18 TP0] Decode batch, #running-req: 1": "batch",
        "Multi-thread loading shards:  12% Completed | 8/64 [00:01<00:05]": "bar",
        "[2026-11-29 13:35:18 TP0] Load weight begin.": "message",
        "Traceback (most recent call last):": "text",
    }
    assert {line: parse(line).kind for line in kinds} == kinds


@given(st.text(max_size=400))
def test_any_text_is_parsed(text: str) -> None:
    line = parse(text)
    assert line.before + line.message in text or line.kind != "text"
    batch_fields(text)
    batch_fields(f"Decode batch, {text}")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Decode batch. #running-req: 1, #token: 40, token usage: 0.00, gen throughput (token/s): 71.23, #queue-req: 0",
         {"batch": "decode", "#running-req": "1", "gen throughput (token/s)": "71.23", "#queue-req": "0"}),
        ("Decode batch [123], #running-req: 2, accept len: 2.31, cuda graph: True, gen throughput (token/s): 9.5, ",
         {"batch": "decode", "#running-req": "2", "accept len": "2.31", "gen throughput (token/s)": "9.5"}),
        ("Prefill batch(mixed #running-req: 2). #new-seq: 1, #new-token: 6, cache hit rate: 0.00%",
         {"batch": "prefill", "#running-req": "2", "#new-token": "6", "cache hit rate": "0.00%"}),
        ("Prefill batch, #new-seq: 4, #full token: 9, swa token usage: 0.1, input throughput (token/s): 454.31",
         {"batch": "prefill", "#full token": "9", "swa token usage": "0.1", "input throughput (token/s)": "454.31"}),
    ],
)  # fmt: skip
def test_batch_lines_of_every_version_are_read_by_key(message: str, expected: dict[str, str]) -> None:
    fields = batch_fields(message)
    assert {key: fields.get(key) for key in expected} == expected


def test_other_lines_have_no_batch() -> None:
    assert batch_fields("Load weight begin. avail mem=21.19 GB") == {}


def test_of_a_ready_servers_lines_the_last_batch_of_each_kind_is_kept_and_every_other_line() -> None:
    decode = [f"[2026-11-29 13:45:0{n} TP0] Decode batch, #running-req: {n}" for n in range(4)]
    prefill = "[2026-11-29 13:45:05 TP0] Prefill batch, #new-seq: 1"
    access = [f'[2026-11-29 13:45:06] INFO:     127.0.0.1:{n} - "GET / HTTP/1.1" 200 OK' for n in range(3)]
    told = ["[2026-11-29 13:45:07 TP1] Scheduler hit an exception: Traceback (most recent call last):", "  File x",
            "[2026-11-29 13:45:08] INFO:     Shutting down"]  # fmt: skip
    mixed = [
        decode[0],
        told[0],
        decode[1],
        prefill,
        access[0],
        told[1],
        access[1],
        decode[2],
        decode[3],
        access[2],
        told[2],
    ]
    assert without_repeats(mixed) == [told[0], prefill, told[1], decode[3], access[2], told[2]]
