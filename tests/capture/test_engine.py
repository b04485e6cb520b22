"""The plugin inside the real SGLang: every captured row against Hugging Face's, and every request accounted for."""

import os
import random
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kimi_capture.format import read_commits, read_manifest, read_shard, to_float32

from .conftest import ENGINE, PYTHON, Launch, Server, ask

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
Array = npt.NDArray[Any]
MATCH = {"float32": 0.999_999, "bfloat16": 0.999}
"""Least cosine of a row with Hugging Face's, by what SGLang computes in.

The mixtures of experts are compared in float32: a router is not continuous, and where two experts score the same but
for bf16's rounding, two right implementations choose differently.
"""


@dataclass(frozen=True)
class Captured:
    """One sample as a trainer would load it."""

    tokens: Array
    states: Array
    """[K + 1, rows, hidden] float32: the boundaries in order, then the last hidden state."""


@dataclass(frozen=True)
class Loaded:
    """A dump directory as a trainer would load it."""

    samples: dict[str, Captured]
    boundaries: list[int]
    dtype: str


def load(directory: Path) -> Loaded:
    samples = {}
    for commit in read_commits(directory)[0]:
        shard = read_shard(directory / commit.shard)
        assert shard.corrupt() == []
        assert (commit.rows, commit.samples, commit.bytes) == (
            shard.rows, len(shard.meta.samples), shard.path.stat().st_size
        )  # fmt: skip
        for sample, first, last in zip(
            shard.meta.samples, shard.sample_offsets, shard.sample_offsets[1:], strict=False
        ):
            assert sample.rows == last - first == sample.prompt_tokens + sample.output_tokens - 1
            assert shard.positions[first:last].tolist() == list(range(sample.rows))
            aux = to_float32(shard.aux_hidden_states[first:last]).transpose(1, 0, 2)
            states = np.concatenate([aux, to_float32(shard.last_hidden_state[first:last])[None]])
            assert sample.rid not in samples
            samples[sample.rid] = Captured(shard.token_ids[first:last], states)
    manifest = read_manifest(directory)
    return Loaded(samples, list(manifest.boundaries), manifest.dtype)


def check_against_reference(loaded: Loaded, model: str, layers: int, work: Path) -> None:
    """Every row of every boundary agrees with the claimed boundary, which is also the nearest one."""
    claimed = [*loaded.boundaries, layers]
    arrays: dict[str, Any] = {rid: sample.tokens for rid, sample in loaded.samples.items()}
    np.savez(work / "tokens.npz", allow_pickle=False, **arrays)
    script = Path(__file__).with_name("reference.py")
    subprocess.run(
        [PYTHON, script, ENGINE / "models" / model, work / "tokens.npz", work / "reference.npz"],
        check=True, capture_output=True, timeout=240, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    reference = np.load(work / "reference.npz")
    for rid, sample in loaded.samples.items():
        for states, boundary in zip(sample.states, claimed, strict=True):
            cosines = cosine(states, reference[rid])
            assert cosines[boundary].min() >= MATCH[loaded.dtype], (rid, boundary, cosines[boundary])
            assert set(cosines.argmax(axis=0)) == {boundary}, (rid, boundary)


def cosine(rows: Array, candidates: Array) -> Array:
    """[candidates, rows]: of each row [rows, hidden] with that row of every candidate [candidates, rows, hidden]."""
    norms = np.linalg.norm(candidates, axis=-1) * np.linalg.norm(rows, axis=-1)
    product: Array = (candidates * rows).sum(axis=-1) / norms
    return product


def prompts(*lengths: int, seed: int = 1) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(3, 500) for _ in range(length)] for length in lengths]


def mixed_requests(tag: str, seed: int) -> list[tuple[str, list[int], int]]:
    """Short prompts, prompts of several chunks, one that fills a chunk to the token, and one without output."""
    shapes = [(1, 1), (5, 3), (16, 4), (17, 0), (33, 9), (70, 5)]
    texts = prompts(*(length for length, _ in shapes), seed=seed)
    return [(f"{tag}-{i:02}", text, new) for i, (text, (_, new)) in enumerate(zip(texts, shapes, strict=True))]


def expected_tokens(requests: list[tuple[str, list[int], int]], outputs: dict[str, list[int]]) -> dict[str, list[int]]:
    """The tokens of the rows that each request must have: prompt + output − 1."""
    return {rid: (prompt + outputs[rid])[: len(prompt) + max(new, 1) - 1] for rid, prompt, new in requests}


def check_samples(loaded: Loaded, expected: dict[str, list[int]]) -> None:
    assert {rid: sample.tokens.tolist() for rid, sample in loaded.samples.items()} == expected


def abort_in_flight(server: Server, rid: str) -> None:
    """Start a long request and abort it once it has rows in the dump."""
    writer = server.writers()[0]

    def served() -> int:
        return int(ask(writer, {"op": "status"})["status"]["dump"]["served"])

    before = served()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.generate, rid, prompts(20, seed=9)[0], 1500)
        while served() < before + 25:
            assert not running.done()
        server.post("/abort_request", {"rid": rid})
        running.result(60)


def test_kimi25_over_two_ranks_with_mixed_chunks(launch: Launch, tmp_path: Path) -> None:
    """Kimi-K2.5's own class, TP=2: chunked and mixed prefill, an abort, health checks, start and stop under load."""
    server = launch(
        "tiny-kimi25", 2, [2, 3, 4], "--disable-radix-cache", "--chunked-prefill-size", "16", "--enable-mixed-chunk",
        dtype="float32",
    )  # fmt: skip
    ranks = server.ranks()
    assert set(ranks) == {"TP0", "TP1"}
    refused = ask(ranks["TP1"], {"op": "start", "dump": "d", "directory": str(server.root / "d")})
    assert (refused["ok"], refused["slug"]) == (False, "not-writer")
    early = server.root.parent / "elsewhere"
    refused = ask(ranks["TP0"], {"op": "start", "dump": "d", "directory": str(early)})
    assert (refused["slug"], early.exists()) == ("outside-root", False)

    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(server.generate, "before-00", prompts(20, seed=3)[0], 150)
        steps = ask(ranks["TP0"], {"op": "status"})["status"]["steps"]
        while ask(ranks["TP0"], {"op": "status"})["status"]["steps"] < steps + 3:
            assert not before.done()
        directory = server.start_dump("mixed")
        requests = mixed_requests("mix", seed=1)
        outputs = server.generate_all(requests)
        before.result(60)
    assert server.get("/health") == 200
    abort_in_flight(server, "abort-00")
    (dump,) = server.stop_dump()

    loaded = load(directory)
    check_samples(loaded, expected_tokens(requests, outputs))
    rows = sum(len(sample.tokens) for sample in loaded.samples.values())
    assert (dump["state"], dump["committed"], dump["captured"], dump["errors"]) == ("stopped", rows, rows, [])
    assert set(dump["missing"]) == {"started before the dump", "aborted"}
    assert dump["served"] == rows + sum(dump["missing"].values())
    check_against_reference(loaded, "tiny-kimi", 6, tmp_path)
    check_manifest(directory, server)


def check_manifest(directory: Path, server: Server) -> None:
    manifest = read_manifest(directory)
    assert (manifest.boundaries, manifest.dtype, manifest.last_hidden_norm) == ((2, 3, 4), "float32", "post")
    assert manifest.conventions["3"] == {"sglang_flag": 3, "sglang_internal": 3, "vllm": 3, "specforge": 2}
    assert (manifest.hidden_size, manifest.num_layers, manifest.sglang) == (128, 6, "0.5.23")
    assert manifest.model["class"] == "KimiK25ForConditionalGeneration"
    assert str(server.port) in manifest.argv
    assert (manifest.parallel["tp"], manifest.parallel["attn_tp"]) == (2, 2)
    for path in server.ranks().values():
        status = ask(path, {"op": "status"})["status"]
        assert (status["errors"], status["warnings"], status["stage"]) == (0, [], "forward")
        assert status["boundaries"] == [2, 3, 4]
        assert "event_loop" in ask(path, {"op": "stacks"})["stacks"]


def test_kimi_with_attention_data_parallelism(launch: Launch, tmp_path: Path) -> None:
    """Two attention-DP ranks both write into one dump; idle steps and padding leave no trace."""
    server = launch(
        "tiny-kimi", 2, [0, 2, 5], "--disable-radix-cache", "--chunked-prefill-size", "32", "--dp", "2",
        "--enable-dp-attention", dtype="float32",
    )  # fmt: skip
    assert set(server.ranks()) == {"DP0 TP0", "DP1 TP1"}
    directory = server.start_dump("two")
    requests = mixed_requests("one", seed=4)
    outputs = server.generate_all(requests)
    alone = ("alone-00", prompts(11, seed=6)[0], 4)
    outputs |= server.generate_all([alone])
    dumps = server.stop_dump()
    assert len(dumps) == 2
    assert all(dump["captured"] == dump["committed"] == dump["served"] > 0 for dump in dumps)
    assert {commit.shard[:13] for commit in read_commits(directory)[0]} == {"shard-DP0-TP0", "shard-DP1-TP1"}
    loaded = load(directory)
    check_samples(loaded, expected_tokens([*requests, alone], outputs))
    check_against_reference(loaded, "tiny-kimi", 6, tmp_path)


def test_llama_on_one_rank_with_a_prefix_cache(launch: Launch, tmp_path: Path) -> None:
    """A prefix from the cache was never computed: that request is missing, and named so; the next dump goes on."""
    server = launch("tiny-llama", 1, [1, 3, 5], "--chunked-prefill-size", "16", dtype="bfloat16")
    assert set(server.ranks()) == {"TP0"}
    directory = server.start_dump("cache")
    requests = mixed_requests("llama", seed=2)
    outputs = server.generate_all(requests)
    server.generate("again-00", requests[-1][1], 3)
    (dump,) = server.stop_dump()
    loaded = load(directory)
    check_samples(loaded, expected_tokens(requests, outputs))
    assert dump["missing"] == {"prefix hit": len(requests[-1][1]) + 3 - 1}
    assert loaded.boundaries == [2, 4, 6]
    check_against_reference(loaded, "tiny-llama", 8, tmp_path)

    writer = server.writers()[0]
    other = ask(writer, {"op": "start", "dump": "other", "directory": str(directory)})
    assert (other["ok"], other["slug"]) == (False, "directory-taken")
    second = server.start_dump("second")
    late = [("late-00", prompts(7, seed=8)[0], 2)]
    check = expected_tokens(late, server.generate_all(late))
    server.stop_dump()
    check_samples(load(second), check)


def test_llama_over_two_ranks_with_retractions(launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang takes requests back in mid-decode and prefills them anew; the rows are still each request's own."""
    monkeypatch.setenv("SGLANG_TEST_RETRACT", "1")
    server = launch(
        "tiny-llama", 2, [1, 3, 5], "--disable-radix-cache", "--chunked-prefill-size", "16", dtype="bfloat16"
    )
    directory = server.start_dump("retract")
    long = [(f"long-{number:02}", prompt, 20) for number, prompt in enumerate(prompts(9, 10, 11, seed=7))]
    requests = [*mixed_requests("back", seed=5), *long]
    outputs = server.generate_all(requests)
    (dump,) = server.stop_dump()
    assert re.search(r"#retracted_reqs: [1-9]", server.log.read_text())
    loaded = load(directory)
    check_samples(loaded, expected_tokens(requests, outputs))
    assert (dump["missing"], dump["errors"], dump["served"]) == ({}, [], dump["committed"])
    check_against_reference(loaded, "tiny-llama", 8, tmp_path)


@pytest.mark.parametrize(("model", "tp"), [("tiny-kimi25", 1), ("tiny-kimi", 1), ("tiny-kimi", 2)])
def test_kimi_as_it_is_mostly_run(launch: Launch, tmp_path: Path, model: str, tp: int) -> None:
    """The remaining pairs of model and tensor-parallel size, with other boundaries than the tests above."""
    server = launch(
        model, tp, [1, 2, 4], "--disable-radix-cache", "--chunked-prefill-size", "16", dtype="float32"
    )  # fmt: skip
    assert set(server.ranks()) == {f"TP{rank}" for rank in range(tp)}
    directory = server.start_dump("plain")
    requests = mixed_requests("plain", seed=11)
    outputs = server.generate_all(requests)
    (dump,) = server.stop_dump()
    assert (dump["missing"], dump["errors"], dump["served"]) == ({}, [], dump["committed"])
    loaded = load(directory)
    assert loaded.boundaries == [2, 3, 5], "this class adds one to every id when the first is 1"
    check_samples(loaded, expected_tokens(requests, outputs))
    check_against_reference(loaded, "tiny-kimi", 6, tmp_path)
