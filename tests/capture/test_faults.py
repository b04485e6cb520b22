"""Faults in the content of a real dump are caught and named by `shards verify` with the model's weights."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kimi_agent.shards.model import Runner
from kimi_agent.shards.weights import Weights
from kimi_capture.format import read_commits, read_manifest, read_shard, to_float32
from kimi_capture.prenorm import reconstruct_pre_norm

from . import faulting
from .conftest import ENGINE, PYTHON

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
MEMORY = 8 << 30


def make_dumps(work: Path) -> Path:
    """A directory with the clean dump and one for each fault; the real dump's own promises are checked on the way."""
    made = faulting.capture(work / "server")
    bare = faulting.load(made, {})
    samples = [
        (sample.rid, part.tensors["token_ids"][part.rows(place)])
        for part in bare.shards
        for place, sample in enumerate(part.samples)
    ]
    states = Runner(str(PYTHON), faulting.MODEL, MEMORY).states([tokens for _, tokens in samples])
    before = {
        rid: faulting.bits(computed[faulting.LAYERS], bare.manifest.dtype)
        for (rid, _), computed in zip(samples, states, strict=True)
    }
    check_pre_norm(made, {rid: computed[faulting.LAYERS] for (rid, _), computed in zip(samples, states, strict=True)})
    real, dumps = faulting.load(made, before), work / "dumps"
    faulting.save(real, dumps / "clean")
    for number, (fault, _) in enumerate(faulting.FAULTS.values()):
        faulting.save(real, dumps / f"fault-{number}", fault)
    return dumps


def check_pre_norm(made: Path, before: dict[str, npt.NDArray[np.float32]]) -> None:
    """In bf16 too the state before the norm comes back, and the self-check finds nothing but rounding.

    The median of the rows: where rounding routed a row to another expert, two right answers differ.
    """
    (commit,) = read_commits(made)[0]
    shard, final = read_shard(made / commit.shard), read_manifest(made).final_norm
    assert shard.last_pre_norm_rms is not None
    assert final is not None
    weight = Weights(faulting.MODEL).final_norm()
    post = to_float32(shard.last_hidden_state)
    pre = reconstruct_pre_norm(post, shard.last_pre_norm_rms, weight, final["eps"])
    true = np.concatenate([before[sample.rid] for sample in shard.meta.samples])
    cosine = (pre * true).sum(axis=1) / np.linalg.norm(pre, axis=1) / np.linalg.norm(true, axis=1)
    assert np.median(cosine) >= 0.9999
    assert shard.meta.self_check is not None
    assert (shard.meta.self_check.failed, shard.meta.self_check.max_error < 0.05) == (0, True)


def verify(directory: Path, *options: str) -> dict[str, Any]:
    """`kimi-agent shards verify --json` of every dump below a directory, by dump."""
    command = [str(PYTHON), "-m", "kimi_agent", "shards", "verify", str(directory), "--json", *options]
    agents = Path(__file__).parents[2] / "agents"
    env = os.environ | {"PYTHONPATH": str(agents), "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout, done.stderr
    return {dump["dump"]: dump for dump in json.loads(done.stdout)["dumps"]}


def faults_found(verified: dict[str, Any]) -> dict[str, tuple[str, list[dict[str, str]]]]:
    """By fault: the kind that names it, and what was found."""
    found = {}
    for number, (name, (_, kind)) in enumerate(faulting.FAULTS.items()):
        dump = verified[f"fault-{number}"]
        found[name] = (kind, [*dump["problems"], *(p for shard in dump["shards"] for p in shard["problems"])])
    return found


def test_every_fault_is_caught_and_named(tmp_path: Path) -> None:
    dumps = make_dumps(tmp_path)
    verified = verify(dumps, "--model")
    clean = verified["clean"]
    assert clean["ok"], clean
    assert [(check["check"], check["ok"]) for check in clean["model"]["checks"]] == [
        ("final norm", True), ("head", True), ("forward pass", True),
    ]  # fmt: skip
    found = faults_found(verified)
    print("\n".join(faulting.table(found)))
    for name, (kind, problems) in found.items():
        assert kind in {problem["kind"] for problem in problems}, (name, problems)
    wrong_model = verify_refused(dumps / "clean", ENGINE / "models" / "tiny-llama")
    assert "is not the dump's model" in wrong_model


def verify_refused(directory: Path, model: Path) -> str:
    """The sentence with which `shards verify --model` refuses."""
    command = [str(PYTHON), "-m", "kimi_agent", "shards", "verify", str(directory), "--model", str(model)]
    agents = Path(__file__).parents[2] / "agents"
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(agents)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    return done.stderr


def test_bits_round_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, -2.5], np.float32)
    assert faulting.bits(values, "bfloat16").tolist() == [0x3F80, 0x3F80, 0xC020]
