"""What makes capture exact, on plain data: the state before the norm, the kinds of steps, shards with the RMS."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_capture.format import PRE_NORM_RMS, FormatError, Sample, SelfCheck, read_shard
from kimi_capture.modes import Modes, mode_of, rows_given
from kimi_capture.parts import encode_parts, write_shard
from kimi_capture.prenorm import reconstruct_pre_norm
from kimi_capture.rows import Ledger

from .conftest import PYTHON


@given(st.integers(1, 20), st.integers(2, 64), st.floats(1e-3, 1e3), st.sampled_from([0.0, 1.0]), st.integers(0, 1000))
@settings(max_examples=60)
def test_the_state_before_the_norm_comes_back(rows: int, hidden: int, size: float, offset: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    pre = (random.normal(size=(rows, hidden)) * size).astype(np.float32)
    weight = random.uniform(0.2, 3, hidden).astype(np.float32)
    rms = np.sqrt(np.square(pre, dtype=np.float64).mean(axis=1))
    post = pre / np.sqrt(rms**2 + 1e-6)[:, None] * (weight + offset)
    back = reconstruct_pre_norm(post.astype(np.float32), rms.astype(np.float32), weight, 1e-6, offset)
    np.testing.assert_allclose(back, pre, rtol=2e-5, atol=1e-7 * size)


def test_what_cannot_come_back_is_not_a_number() -> None:
    post = np.ones((2, 3), np.float32)
    back = reconstruct_pre_norm(post, np.array([2, np.nan], np.float32), np.array([1, 0, 2], np.float32), 0.0)
    np.testing.assert_array_equal(back, [[2, np.nan, 1], [np.nan, np.nan, np.nan]])


def tensors(rows: int, *, rms: bool) -> dict[str, Any]:
    random = np.random.default_rng(0)
    made = {
        "token_ids": np.arange(rows), "positions": np.arange(rows), "sample_offsets": np.array([0, rows]),
        "aux_hidden_states": random.normal(size=(rows, 2, 4)).astype(np.float32),
        "last_hidden_state": random.normal(size=(rows, 4)).astype(np.float32),
    }  # fmt: skip
    return made | ({PRE_NORM_RMS: np.linspace(1, 2, rows, dtype=np.float32)} if rms else {})


def save(path: Path, made: dict[str, Any], rows: int) -> None:
    samples = (Sample("r", rows, 1, rows, "stop"),)
    write_shard(path, made, dump="d", dtype="F32", boundaries=(1, 2), samples=samples)


@pytest.mark.parametrize("rms", [True, False])
def test_a_shard_has_the_rms_or_has_not(tmp_path: Path, rms: bool) -> None:
    save(tmp_path / "s", tensors(5, rms=rms), 5)
    shard = read_shard(tmp_path / "s")
    assert (PRE_NORM_RMS in shard.names, shard.corrupt()) == (rms, [])
    if rms:
        assert shard.tensor(PRE_NORM_RMS).tolist() == pytest.approx([1, 1.25, 1.5, 1.75, 2])


def test_a_damaged_rms_is_found(tmp_path: Path) -> None:
    save(tmp_path / "s", tensors(5, rms=True), 5)
    data = bytearray((tmp_path / "s").read_bytes())
    data[-1] ^= 1
    (tmp_path / "s").write_bytes(data)
    assert read_shard(tmp_path / "s").corrupt() == [PRE_NORM_RMS]


def test_an_rms_of_other_rows_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "s", tensors(5, rms=True) | {PRE_NORM_RMS: np.ones(4, np.float32)}, 5)
    with pytest.raises(FormatError, match="does not belong to 5 rows"):
        read_shard(tmp_path / "s")


def test_the_self_check_is_kept_in_the_shard(tmp_path: Path) -> None:
    whole = {name: [tensor] for name, tensor in tensors(3, rms=False).items()}
    check = SelfCheck(7, 3e-9, 1e-9, 0)
    buffers = encode_parts(
        whole, [None], dump="d", dtype="F32", boundaries=(1, 2), samples=(Sample("r", 3, 1, 3, "stop"),),
        self_check=check,
    )  # fmt: skip
    (tmp_path / "s").write_bytes(b"".join(buffer.tobytes() for buffer in buffers))
    assert read_shard(tmp_path / "s").meta.self_check == check


def batch(*, decode: bool) -> Any:
    return SimpleNamespace(forward_mode=SimpleNamespace(is_decode=lambda: decode))


@pytest.mark.parametrize(
    ("entries", "decode", "graph", "mode"),
    [
        ([], False, False, "IDLE"),
        ([("a", 0, 5)], False, False, "EXTEND"),
        ([("a", 0, 5), ("b", 0, 1)], False, True, "EXTEND_GRAPH"),
        ([("a", 16, 16)], False, False, "CHUNKED"),
        ([("a", 16, 1)], False, False, "CHUNKED"),
        ([("a", 16, 9), ("b", 30, 1)], False, False, "MIXED"),
        ([("a", 0, 16), ("b", 30, 1)], False, False, "MIXED"),
        ([("a", 30, 1), ("b", 4, 1)], True, False, "DECODE"),
        ([("a", 30, 1)], True, True, "DECODE_GRAPH"),
    ],
)
def test_steps_are_told_apart(entries: Any, decode: bool, graph: bool, mode: str) -> None:
    assert mode_of(batch(decode=decode), entries, graph=graph) == mode


def test_the_first_step_without_states_is_told_once_a_mode() -> None:
    modes = Modes()
    assert [modes.book("DECODE", 3, captured) for captured in (3, 0, 0)] == [False, True, False]
    assert modes.book("EXTEND", 10, 0)
    assert not modes.book("IDLE", 0, 0)
    assert modes.describe()["DECODE"] == {"steps": 3, "computed": 9, "captured": 3}


def test_rows_without_every_boundary_are_not_captured() -> None:
    last = np.zeros((4, 8))
    output = SimpleNamespace(hidden_states=np.zeros((4, 24)), last_hidden_states=last)
    assert rows_given(output, 4, 3) == 4
    assert rows_given(output, 4, 2) == 0
    assert rows_given(SimpleNamespace(hidden_states=None, last_hidden_states=last), 4, 3) == 0
    assert rows_given(SimpleNamespace(hidden_states=np.zeros((3, 24)), last_hidden_states=last), 4, 3) == 3
    assert rows_given(None, 4, 3) == 0


def test_rows_that_only_prove_are_in_no_dump() -> None:
    ledger = Ledger()
    ledger.open()
    (piece,) = ledger.step([("KIMI_PROOF_1", 0, 4), ("mine", 0, 2)])
    assert (piece.offset, piece.length, ledger.served) == (4, 2, 2)


@pytest.mark.engine
@pytest.mark.timeout(120)
def test_the_hooks_on_the_norm_and_the_head_with_torch() -> None:
    """By the engine's Python: SGLang's own norm, and a head cut as a rank's part of it."""
    script = Path(__file__).with_name("norm_and_head.py")
    path = str(Path(__file__).parents[2] / "agents")
    done = subprocess.run(
        [str(PYTHON), str(script)], capture_output=True, text=True, timeout=100, check=False,
        env={"PYTHONPATH": f"{path}:{PYTHON.parents[1] / 'shims'}", "SGLANG_USE_CPU_ENGINE": "1", "PATH": "/usr/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["fused"] == pytest.approx(found["expected"], rel=1e-5)
    assert found["alone"] == pytest.approx(found["expected"], rel=1e-5)
    assert found["unknown"] is None
    assert found["refused"] == "the model's final norm is a LayerNorm"
    assert found["right"]["checked"] == 3
    assert (found["right"]["failed"], found["right"]["max_error"] < 1e-4) == (0, True)
    assert (found["wrong"]["failed"], found["wrong"]["max_error"] > 0.1) == (1, True)
    assert "row 5 of request wrong" in found["error"]
    assert found["quantised"] == "the head has no plain weights"
