"""The proof of capture, mode by mode, and what the dump's pane is told of its rows."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kimi_agent.engine.http import post_json
from kimi_agent.errors import UnavailableError
from kimi_agent.runs.content import Content, self_check
from kimi_agent.runs.prove import lines, prompt_length, proofs
from kimi_capture.format import Sample
from kimi_capture.parts import write_shard

BODY = b'{"a": [1]}'
COUNTS = {
    "EXTEND": {"steps": 2, "computed": 30, "captured": 30},
    "DECODE_GRAPH": {"steps": 24, "computed": 24, "captured": 24},
    "IDLE": {"steps": 5, "computed": 0, "captured": 0},
}


def test_every_mode_is_in_the_table_and_what_was_not_seen_says_why() -> None:
    table = {proof.mode: proof for proof in proofs(COUNTS, ["--tp-size", "2"])}
    assert {mode: proof.verdict for mode, proof in table.items()} == {
        "EXTEND": "ok", "CHUNKED": "not seen", "MIXED": "not seen", "DECODE_GRAPH": "ok", "IDLE": "ok",
    }  # fmt: skip
    assert "--enable-mixed-chunk" in table["MIXED"].why
    seen = proofs(COUNTS, ["--enable-mixed-chunk"])
    assert "no step of this kind" in next(proof.why for proof in seen if proof.mode == "MIXED")


def test_lost_rows_are_named_with_their_mode() -> None:
    counts = COUNTS | {"DECODE": {"steps": 3, "computed": 3, "captured": 0}}
    (lost,) = [proof for proof in proofs(counts, []) if proof.verdict == "lost"]
    assert (lost.mode, lost.computed, lost.captured) == ("DECODE", 3, 0)
    shown = lines({"modes": [{"mode": p.mode, "steps": p.steps, "computed": p.computed, "captured": p.captured,
                              "verdict": p.verdict, "why": p.why} for p in proofs(counts, [])]})  # fmt: skip
    assert any(line.startswith("✖ DECODE ") and "0 of         3 rows" in line for line in shown)


@pytest.mark.parametrize(
    ("info", "argv", "length"),
    [
        ({"chunked_prefill_size": 16}, [], 25),
        ({}, ["--chunked-prefill-size", "100"], 151),
        ({}, [], 12289),
        ({"chunked_prefill_size": 8192, "context_length": 4096}, [], 2048),
        ({"chunked_prefill_size": -1}, ["--chunked-prefill-size", "64"], 97),
    ],
)
def test_the_long_prompt_takes_two_chunks_where_it_may(info: dict[str, Any], argv: list[str], length: int) -> None:
    assert prompt_length(info, argv) == length


def test_a_post_reaches_a_server_with_its_body_and_key() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(head + await reader.readexactly(len(BODY)))
        status = b"200 OK" if b"/good" in head else b"500 Oh"
        writer.write(b"HTTP/1.0 " + status + b"\r\n\r\n" + json.dumps({"ok": 1}).encode())
        writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            assert await post_json("127.0.0.1", port, "/good", {"a": [1]}, api_key="k") == {"ok": 1}
            with pytest.raises(UnavailableError, match="answered 500"):
                await post_json("127.0.0.1", port, "/bad", {"a": [1]})

    asyncio.run(ask())
    assert seen[0].startswith(b"POST /good HTTP/1.0\r\n")
    assert b"Authorization: Bearer k\r\n" in seen[0]
    assert seen[0].endswith(b"\r\n\r\n" + BODY)


def status(**check: Any) -> dict[str, Any]:
    return {"self_check": {"checked": 0, "max_error": 0.0, "mean_error": 0.0, "failed": 0, "reason": None} | check}


def test_the_self_check_in_words(tmp_path: Path) -> None:
    content = Content()
    assert self_check([status()], content) is None
    assert self_check([{}], content) is None
    assert self_check([status(reason="the head has no plain weights")], content) == (
        "logits not checked: the head has no plain weights"
    )
    checks = [status(checked=3, max_error=3.2e-9), status(checked=1, max_error=1e-9)]
    assert self_check(checks, content) == "logit error 3e-09 ok"
    drift = self_check([*checks, status(checked=4, max_error=0.5, failed=2)], content)
    assert drift == "logit error 0.5 DRIFT in 2 of 8 rows"

    states = np.ones((4, 2, 8), np.float32)
    states[1, 0] = 0
    tensors = {
        "token_ids": np.arange(4), "positions": np.arange(4), "sample_offsets": np.array([0, 4]),
        "aux_hidden_states": states * 2, "last_hidden_state": states[:, 1],
    }  # fmt: skip
    write_shard(
        tmp_path / "s", tensors, dump="d", dtype="F32", boundaries=(3, 31), samples=(Sample("r", 4, 1, 4, "stop"),)
    )
    content.add(tmp_path / "s")
    content.add(tmp_path / "not there")
    assert self_check(checks, content) == (
        "logit error 3e-09 ok · non-finite 0 · zero rows 1 · rms 3: 1.73  31: 2  last: 1"
    )
