"""The real SGLang in float32: the state before the norm, the self-check, the modes, several samples a prompt."""

import asyncio
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kimi_agent import profile as profile_module
from kimi_agent.profile import Profile
from kimi_agent.runs.plan import Plan
from kimi_agent.runs.prove import prove
from kimi_agent.shards.weights import Weights
from kimi_capture.format import read_commits, read_manifest, read_shard, to_float32
from kimi_capture.prenorm import reconstruct_pre_norm

from .conftest import ENGINE, PYTHON, Launch, Server, ask

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
Array = npt.NDArray[Any]
LAYERS = 6


def reference(model: Path, tokens: dict[str, Array], work: Path) -> dict[str, Array]:
    """[layers + 2, rows, hidden] by request: boundaries, the state before the final norm, the state after it."""
    np.savez(work / "tokens.npz", allow_pickle=False, **tokens)
    agents = str(Path(__file__).parents[2] / "agents")
    subprocess.run(
        [PYTHON, "-m", "kimi_agent.shards.forward", model, work / "tokens.npz", work / "states.npz", str(8 << 30)],
        check=True, capture_output=True, timeout=240, env=os.environ | {"PYTHONPATH": agents, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    with np.load(work / "states.npz") as file:
        return dict(file)


def check_pre_norm(directory: Path, model: str, work: Path, least: float) -> None:
    """The state before the final norm, reconstructed, is Hugging Face's: least cosine of any row."""
    manifest = read_manifest(directory)
    assert (manifest.pre_norm, manifest.pre_norm_reason) == ("rms", None)
    assert manifest.final_norm == {"eps": pytest.approx(1e-6), "offset": 0.0}
    weight = next(Weights(ENGINE / "models" / model).blocks(norm_name(model)))[1]
    tokens: dict[str, Array] = {}
    back: dict[str, Array] = {}
    for commit in read_commits(directory)[0]:
        shard = read_shard(directory / commit.shard)
        assert shard.last_pre_norm_rms is not None
        assert np.isfinite(shard.last_pre_norm_rms).all()
        pre = reconstruct_pre_norm(
            to_float32(shard.last_hidden_state), shard.last_pre_norm_rms, weight, manifest.final_norm["eps"]
        )
        for sample, first in zip(shard.meta.samples, shard.sample_offsets.tolist(), strict=False):
            rows = slice(first, first + sample.rows)
            tokens[sample.rid], back[sample.rid] = shard.token_ids[rows], pre[rows]
    for rid, states in reference(ENGINE / "models" / model, tokens, work).items():
        true, found = states[LAYERS], back[rid]
        lengths = np.linalg.norm(true, axis=1) * np.linalg.norm(found, axis=1)
        assert ((true * found).sum(axis=1) / lengths).min() >= least, rid
        np.testing.assert_allclose(np.linalg.norm(found, axis=1) / np.linalg.norm(true, axis=1), 1, atol=1e-3)


def norm_name(model: str) -> str:
    return "language_model.model.norm.weight" if model == "tiny-kimi25" else "model.norm.weight"


def modes(server: Server) -> dict[str, dict[str, int]]:
    (writer,) = server.writers()
    found: dict[str, dict[str, int]] = ask(writer, {"op": "status"})["status"]["modes"]
    return found


def proved(server: Server) -> dict[str, dict[str, Any]]:
    """What the agent's proof says of the server, by mode."""
    flags = ("--chunked-prefill-size", "16", "--enable-mixed-chunk")
    profile = Profile(name="proved", server=profile_module.Server(model="tiny-kimi25", port=server.port))
    plan = Plan(
        profile=profile, argv=flags, env={}, python=str(PYTHON), version=None, known_flags=frozenset(), ranks=(),
        dump_root=server.root,
    )  # fmt: skip
    answer = asyncio.run(prove(plan, server.sockets))
    assert answer["ok"], answer
    return {mode["mode"]: mode for mode in answer["modes"]}


def test_kimi25_in_float32(launch: Launch, tmp_path: Path) -> None:
    server = launch(
        "tiny-kimi25", 2, [2, 3, 4], "--disable-radix-cache", "--chunked-prefill-size", "16", "--enable-mixed-chunk",
        dtype="float32",
    )  # fmt: skip
    directory = server.start_dump("exact")
    with ThreadPoolExecutor(2) as pool:
        decoding = pool.submit(server.generate, "decoding", list(range(5, 15)), 60)
        before = modes(server).get("DECODE", {"steps": 0})["steps"]
        while modes(server).get("DECODE", {"steps": 0})["steps"] == before:
            assert not decoding.done()
        server.generate("chunked", list(range(20, 90)), 4)
        decoding.result(60)
    table = proved(server)
    assert {mode for mode, proof in table.items() if proof["verdict"] == "ok"} == {
        "EXTEND", "CHUNKED", "MIXED", "DECODE",
    }  # fmt: skip
    many = server.post(
        "/generate",
        {"input_ids": list(range(30, 50)), "sampling_params": {"max_new_tokens": 6, "n": 3, "temperature": 1.0}},
    )
    assert len(many) == 3
    (dump,) = server.stop_dump()

    shards = [read_shard(directory / commit.shard) for commit in read_commits(directory)[0]]
    samples = [sample for shard in shards for sample in shard.meta.samples]
    assert {"decoding", "chunked"} <= {sample.rid for sample in samples}
    outputs = sorted(sample.output_tokens for sample in samples if len(sample.rid) == 32)
    assert outputs[-3:] == sorted(len(answer["output_ids"]) for answer in many)
    assert not any(sample.rid.startswith("KIMI_PROOF") for sample in samples)
    assert (dump["missing"], dump["errors"]) == ({}, [])
    assert dump["served"] == dump["captured"] == dump["committed"] == sum(sample.rows for sample in samples)

    counts = modes(server)
    assert {"EXTEND", "CHUNKED", "MIXED", "DECODE"} <= set(counts)
    assert all(count["captured"] == count["computed"] for count in counts.values())

    check = dump["self_check"]
    assert (check["reason"], check["failed"]) == (None, 0)
    assert check["checked"] >= 1
    assert check["max_error"] < 1e-4
    assert shards[-1].meta.self_check is not None
    assert shards[-1].meta.self_check.failed == 0
    check_pre_norm(directory, "tiny-kimi25", tmp_path, 0.999_999)
