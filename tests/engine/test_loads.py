"""HTTP with a deadline against real sockets, and rates that are never invented."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.engine.http import get_json
from kimi_agent.engine.loads import Loads, ThroughputMeter, parse_loads
from kimi_agent.engine.loglines import parse
from kimi_agent.errors import UnavailableError


@asynccontextmanager
async def serving(answer: bytes | None) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A socket that reads one request head and sends `answer`; with `None` it never answers."""
    heads: list[bytes] = []
    over = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        if answer is None:
            await over.wait()
        else:
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], heads
    finally:
        over.set()
        server.close()
        await server.wait_closed()


async def slug_of(answer: bytes | None) -> str:
    async with serving(answer) as (port, _):
        with pytest.raises(UnavailableError) as caught:
            await get_json("127.0.0.1", port, "/v1/loads", deadline=0.3 if answer is None else 30)
    return caught.value.slug


async def test_an_answer_is_read_and_the_key_is_sent() -> None:
    async with serving(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"loads": []}') as (port, heads):
        assert await get_json("0.0.0.0", port, "/v1/loads", api_key="secret") == {"loads": []}
    assert b"GET /v1/loads HTTP/1.0" in heads[0]
    assert b"Authorization: Bearer secret" in heads[0]


async def test_every_way_of_not_answering_has_its_own_name() -> None:
    assert await slug_of(None) == "http-timeout"
    assert await slug_of(b"HTTP/1.1 503 Service Unavailable\r\n\r\n") == "http-503"
    assert await slug_of(b"HTTP/1.1 200 OK\r\n\r\nhello") == "http-invalid"
    assert await slug_of(b"nonsense") == "http-0"


async def test_a_closed_port_refuses() -> None:
    async with serving(b"") as (port, _):
        pass
    with pytest.raises(UnavailableError, match="refuses") as caught:
        await get_json("127.0.0.1", port, "/v1/loads")
    assert caught.value.slug == "http-refused"


def answer(*ranks: dict[str, Any]) -> dict[str, Any]:
    return {"timestamp": "2026-11-29T13:00:00Z", "loads": list(ranks)}


def rank(time: float, prefill: int, decoded: float | None, running: int = 1) -> dict[str, Any]:
    moments = None if decoded is None else [1, 1, 1, 1, 1, decoded]
    return {
        "timestamp": time,
        "num_running_reqs": running,
        "num_waiting_reqs": 0,
        "num_used_tokens": 5,
        "max_total_num_tokens": 100,
        "total_prefill_uncached_tokens": prefill,
        "decode_moments": moments,
    }


def test_ranks_are_summed_and_the_oldest_heartbeat_counts() -> None:
    loads = parse_loads(answer(rank(100.0, 10, 4.0), rank(90.0, 20, 6.0)))
    assert loads == Loads(2, 0, 10, 200, 30, 10, 90.0)


def test_rates_are_deltas_and_a_missing_end_is_a_gap() -> None:
    meter = ThroughputMeter("r")
    first = meter.update(parse_loads(answer(rank(100.0, 1000, None))), 100.5)
    assert (first.prefill_rate, first.decode_rate, first.engine_age) == (None, None, 0.5)
    second = meter.update(parse_loads(answer(rank(101.0, 3000, 10.0))), 102.5)
    assert (second.prefill_rate, second.decode_rate) == (1000.0, None)
    meter.update(None, 103.0)
    after_gap = meter.update(parse_loads(answer(rank(104.0, 9000, 90.0))), 104.5)
    assert (after_gap.prefill_rate, after_gap.decode_rate) == (None, None)
    restarted = meter.update(parse_loads(answer(rank(105.0, 5, 1.0))), 105.5)
    assert (restarted.prefill_rate, restarted.decode_rate) == (None, None)


def test_the_engines_age_grows_while_http_still_answers() -> None:
    meter = ThroughputMeter("r")
    stuck = parse_loads(answer(rank(100.0, 1000, 5.0)))
    assert [meter.update(stuck, now).engine_age for now in (100.0, 160.0, 289.5)] == [0.0, 60.0, 189.5]


def test_without_loads_fresh_batch_lines_are_used_and_old_ones_are_not() -> None:
    meter = ThroughputMeter("r")
    batch = "Decode batch, #running-req: 3, #token: 40, gen throughput (token/s): 71.23, #queue-req: 2"
    meter.feed(parse(f"[2026-11-29 13:00:00] {batch}"), 10.0)
    fresh = meter.update(None, 12.0, "HTTP 404")
    assert (fresh.decode_rate, fresh.running, fresh.waiting, fresh.source) == (71.23, 3, 2, "log")
    old = meter.update(None, 60.0, "HTTP 404")
    assert (old.decode_rate, old.running, old.source) == (None, None, "HTTP 404")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.sampled_from(list(rank(0, 0, 0))), inner),
    max_leaves=20,
)


@given(JSON, JSON)
def test_any_answer_is_survived_and_nothing_is_made_up(first: Any, second: Any) -> None:
    meter = ThroughputMeter("r")
    for now, value in ((1.0, first), (2.0, {"loads": second}), (3.0, {"loads": [second]})):
        sample = meter.update(parse_loads(value), now)
        assert sample.prefill_rate is None or sample.prefill_rate >= 0
    assert parse_loads(json.loads("[]")) == Loads(None, None, None, None, None, None, None)
