"""Exports read back value by value: by the trainers' own packages, by readers of the layouts, after kills."""

import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kimi_agent.bundle import ensure_bundle
from kimi_agent.shards.export.container import read_tensor, write_tensors
from kimi_agent.shards.export.rows import from_float32, runs
from kimi_agent.shards.masks import FEED, Mask, mask_line
from kimi_agent.shards.samples import Samples
from kimi_capture.format import MANIFEST, Sample, to_float32
from kimi_console.demo.engine import Engine

from .commanding import command_here
from .conftest import BOUNDARIES, HIDDEN, DumpWriter

Array = npt.NDArray[Any]
EPS = 1e-6
READER = Path(__file__).with_name("reading.py")


def export(
    dump: Path, out: Path, name: str, *more: object, python: Path | str = sys.executable, path: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `shards export --json` in a process of its own."""
    return subprocess.run(
        [str(python), "-m", "kimi_agent", "shards", "export", str(dump), str(out), "--format", name, "--json",
         *map(str, more)],
        capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | ({"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""} if path else {}),
    )  # fmt: skip


def export_here(dump: Path, out: Path, name: str, *more: object) -> subprocess.CompletedProcess[str]:
    """The same command in this process."""
    return command_here(
        ["shards", "export", str(dump), str(out), "--format", name, "--json", "--jobs", "1", *map(str, more)]
    )


class NormedDump:
    """A dump whose last states come out of a known final norm, and the model's directory with its weight."""

    def __init__(self, make_dump: Callable[..., DumpWriter], model: Path, shards: int = 2) -> None:
        random_ = np.random.default_rng(7)
        self.weight = to_float32(from_float32(random_.uniform(0.5, 2, HIDDEN).astype(np.float32), np.dtype(np.uint16)))
        model.mkdir()
        stored = from_float32(self.weight, np.dtype(np.uint16))
        write_tensors(model / "model.safetensors", {"model.norm.weight": ("BF16", stored)}, {"format": "pt"})
        config = {"hidden_size": HIDDEN, "num_hidden_layers": 6, "model_type": "kimi_k2", "rms_norm_eps": EPS}
        (model / "config.json").write_text(json.dumps({"text_config": config}))
        facts = {"path": str(model), "class": "KimiK25ForConditionalGeneration", "config": None, "weights": None}
        self.writer = make_dump(model=facts, pre_norm="rms", final_norm={"eps": EPS, "offset": 0.0})
        self.pre: list[Array] = []
        """By sample, the states before the norm, as float32 of bf16."""
        for _ in range(shards):
            self.writer.add(change=self._norm)
        self.directory = self.writer.directory

    def _norm(self, tensors: dict[str, Array]) -> None:
        pre = to_float32(tensors["last_hidden_state"]) * 9
        pre = to_float32(from_float32(pre, np.dtype(np.uint16)))
        rms = np.sqrt(np.square(pre.astype(np.float64)).mean(axis=1))
        post = (pre / np.sqrt(rms**2 + EPS)[:, None] * self.weight).astype(np.float32)
        tensors["last_hidden_state"] = from_float32(post, np.dtype(np.uint16))
        tensors["last_pre_norm_rms"] = rms.astype(np.float32)
        self.pre += [pre[a:b] for a, b in zip(tensors["sample_offsets"], tensors["sample_offsets"][1:], strict=False)]


@pytest.fixture
def normed(make_dump: Callable[..., DumpWriter], tmp_path: Path) -> NormedDump:
    return NormedDump(make_dump, tmp_path / "model")


@given(arrays(np.float32, 8, elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)))
def test_rounding_to_bf16_is_to_the_nearest(values: Array) -> None:
    rounded = to_float32(from_float32(values, np.dtype(np.uint16))).astype(np.float64)
    assert (np.abs(rounded - values) <= np.abs(values.astype(np.float64)) * 2**-8 + 1e-38).all()
    assert np.array_equal(from_float32(rounded.astype(np.float32), np.dtype(np.uint16)).astype(np.uint32) << 16,
                          rounded.astype(np.float32).view(np.uint32))  # fmt: skip


@given(arrays(np.uint8, st.integers(0, 30), elements=st.integers(0, 1)))
def test_a_masks_runs_make_the_mask(mask: Array) -> None:
    again = np.zeros_like(mask)
    for first, last in runs(mask):
        again[first:last] = 1
    assert np.array_equal(again, mask)


@pytest.mark.engine
def test_each_trainers_own_package_reads_the_same_values(
    normed: NormedDump, engine: Engine, trainers: Path, tmp_path: Path
) -> None:
    fed = Mask(((1, 2),), output=False)
    (normed.directory / FEED).write_bytes(mask_line("r0-1", fed))
    path = os.pathsep.join(map(str, (ensure_bundle(), trainers)))
    outs = {name: tmp_path / name for name in ("specforge", "speculators", "modelopt")}
    for name, out in outs.items():
        done = export(normed.directory, out, name, "--jobs", 1, python=engine.python, path=path)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert (told["samples"], told["left_out"], told["exact"]) == (4, 0, name != "speculators")
        assert told["loss_masks"] == {"feed": 1, "generated tokens": 2, "all tokens": 1}
    read = subprocess.run(
        [engine.python, READER, tmp_path / "read.npz", *(f"{name}={out}" for name, out in outs.items())],
        env=os.environ | {"PYTHONPATH": str(trainers), "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert read.returncode == 0, read.stderr
    held = np.load(tmp_path / "read.npz")

    for number, rows in enumerate(Samples(normed.directory)):
        aux, last = rows.aux_hidden_states.view(np.int16), rows.last_hidden_state.view(np.int16)
        flat, ids, mask = aux.reshape(len(aux), -1), rows.token_ids, rows.loss_mask
        assert np.array_equal(held[f"specforge/{number}/hidden_state"], flat[None])
        assert np.array_equal(held[f"specforge/{number}/target"], last[None])
        assert np.array_equal(held[f"specforge/{number}/input_ids"], ids[None])
        assert np.array_equal(held[f"specforge/{number}/raw_loss_mask"], mask)
        assert np.array_equal(held[f"modelopt/{number}/aux_hidden_states"], flat)
        assert np.array_equal(held[f"modelopt/{number}/base_model_hidden_states"], last)
        assert np.array_equal(held[f"modelopt/{number}/input_ids"], ids)
        assert np.array_equal(held[f"modelopt/{number}/loss_mask"], mask)
        assert np.array_equal(held[f"speculators/{number}/hidden_states"], flat)
        assert np.array_equal(held[f"speculators/{number}/input_ids"], ids)
        assert np.array_equal(held[f"speculators/{number}/loss_mask"], mask)
        before = to_float32(held[f"speculators/{number}/verifier_last_hidden_states"].view(np.uint16))
        exact = normed.pre[number]
        assert (np.abs(before - exact) <= np.abs(exact) * 2**-7).all(), "more than one unit in the last place"
        assert (before == exact).mean() > 0.5


def test_plain_formats_hold_the_dumps_own_values(normed: NormedDump, tmp_path: Path) -> None:
    for name in ("safetensors", "numpy"):
        assert export_here(normed.directory, tmp_path / name, name).returncode == 0
    for number, rows in enumerate(Samples(normed.directory)):
        path = tmp_path / "safetensors" / f"{number:08}.safetensors"
        assert np.array_equal(read_tensor(path, "aux_hidden_states"), rows.aux_hidden_states)
        assert np.array_equal(read_tensor(path, "last_hidden_state"), rows.last_hidden_state)
        assert np.array_equal(read_tensor(path, "input_ids"), rows.token_ids)
        assert np.array_equal(read_tensor(path, "loss_mask"), rows.loss_mask)
        assert rows.last_pre_norm_rms is not None
        assert np.array_equal(read_tensor(path, "last_pre_norm_rms"), rows.last_pre_norm_rms)
        with np.load(tmp_path / "numpy" / f"{number:08}.npz") as file:
            assert np.array_equal(file["aux_hidden_states"], to_float32(rows.aux_hidden_states))
            assert np.array_equal(file["last_hidden_state"], to_float32(rows.last_hidden_state))
            assert str(file["rid"]) == rows.sample.rid


def test_deepspec_by_a_reader_of_its_documented_layout(normed: NormedDump, tmp_path: Path) -> None:
    """DeepSpec is not published as a package: the layout is that of its target cache, version 2."""
    out = tmp_path / "out"
    assert export_here(normed.directory, out, "deepspec").returncode == 0
    manifest, index = json.loads((out / "manifest.json").read_text()), (out / "samples.idx").read_bytes()
    assert (manifest["version"], manifest["num_samples"], manifest["num_shards"]) == (2, 4, 2)
    assert manifest["target_layer_ids"] == [1, 2, 3]
    assert (manifest["hidden_dtype"], manifest["token_dtype"], manifest["mask_dtype"]) == ("bfloat16", "int32", "uint8")
    assert manifest["index_record_size"] * manifest["num_samples"] == len(index)
    assert [shard["shard_id"] for shard in manifest["shards"]] == [0, 1]
    for number, rows in enumerate(Samples(normed.directory)):
        sample, shard, tokens, *offsets = struct.unpack_from("<QIIQQQQQ", index, number * 56)
        data = (out / manifest["shards"][shard]["file_name"]).read_bytes()
        assert (sample, tokens) == (number, len(rows.token_ids))
        kinds = [np.dtype(kind) for kind in ("<i4", "u1", "u1", "<u2", "<u2")]
        width = (1, 1, 1, len(BOUNDARIES) * HIDDEN, HIDDEN)
        ids, seen, mask, aux, last = (
            np.frombuffer(data, kind, tokens * wide, offset)
            for kind, wide, offset in zip(kinds, width, offsets, strict=True)
        )
        assert np.array_equal(ids, rows.token_ids)
        assert seen.all()
        assert np.array_equal(mask, rows.loss_mask)
        assert np.array_equal(aux, rows.aux_hidden_states.reshape(-1))
        assert np.array_equal(last, rows.last_hidden_state.reshape(-1))


def test_what_cannot_be_exact_is_refused_with_what_to_do(
    make_dump: Callable[..., DumpWriter], normed: NormedDump, tmp_path: Path
) -> None:
    dump = make_dump("plain")
    dump.add()

    def refusal(directory: Path, name: str, *more: object) -> str:
        done = export_here(directory, tmp_path / "out", name, *more)
        assert done.returncode == 2, done.stdout + done.stderr
        assert not (tmp_path / "out").exists()
        return done.stderr.removeprefix("kimi-agent: ")

    assert "exactly 3 layers" in refusal(dump.directory, "specforge", "--layers", 2, 3)
    assert "boundaries 7 are not in the dump" in refusal(dump.directory, "numpy", "--layers", 2, 7)
    assert "no RMS to reconstruct it from" in refusal(dump.directory, "speculators")
    assert "needs the Python package torch" in refusal(dump.directory, "modelopt")
    assert "needs the Python package pyarrow" in refusal(normed.directory, "speculators")
    config = tmp_path / "model" / "config.json"
    right = config.read_text()
    config.write_text(right.replace('"num_hidden_layers": 6', '"num_hidden_layers": 5'))
    assert "is not the dump's model" in refusal(normed.directory, "speculators")
    config.write_text(right)
    weight = from_float32(np.where(np.arange(HIDDEN) == 3, 0, normed.weight).astype(np.float32), np.dtype(np.uint16))
    write_tensors(tmp_path / "model" / "model.safetensors", {"model.norm.weight": ("BF16", weight)}, {})
    assert "multiplies 1 channels by 0" in refusal(normed.directory, "speculators")
    assert "is not a dump" in refusal(tmp_path / "model", "numpy")


@pytest.mark.parametrize("place", [3, 40, 900, 3_000, -1])
def test_a_damaged_shard_is_left_out_and_the_rest_goes_on(dump: DumpWriter, tmp_path: Path, place: int) -> None:
    path = sorted(dump.directory.glob("*.safetensors"))[1]
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    done = export_here(dump.directory, tmp_path / "out", "safetensors")
    told = json.loads(done.stdout)

    assert (done.returncode, told["samples"], told["left_out"]) == (5, 4, 2)
    assert [(one["shard"], one["samples"]) for one in told["refused"]] == [(path.name, 2)]
    assert path.name in told["refused"][0]["why"]
    assert sorted(file.stem for file in (tmp_path / "out").glob("*.safetensors")) == [f"{n:08}" for n in range(4)]


def test_rows_that_cannot_be_right_are_left_out_by_name(dump: DumpWriter, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, Array]) -> None:
        tensors["last_hidden_state"][1, 0] = 0x7FC0

    dump.add(change=spoil)
    dump.add((Sample("hole", 5, 2, 4, "stop", {"prefix hit": 2}), Sample("whole", 2, 1, 2, "stop")))
    told = json.loads(export_here(dump.directory, tmp_path / "out", "numpy").stdout)

    assert {one["rid"]: one["why"] for one in told["refused"]} == {
        "r3-0": "1 of its rows are not finite or all zero",
        "hole": "rows are missing: prefix hit 2",
    }
    assert told["samples"] == 8


def test_an_export_goes_on_where_it_was_killed_and_takes_in_what_was_committed_since(
    make_dump: Callable[..., DumpWriter], tmp_path: Path
) -> None:
    writer = make_dump("many")
    for _ in range(24):
        writer.add(writer.samples(((5, 3),) * 12))
    out, dice = tmp_path / "out", random.Random(3)
    command = [
        str(word)
        for word in (
            sys.executable,
            "-m",
            "kimi_agent",
            "shards",
            "export",
            writer.directory,
            out,
            "--format",
            "safetensors",
        )
    ]
    kills = 0
    while kills < 3:
        process = subprocess.Popen([*command, "--jobs", "2"], start_new_session=True, stdout=subprocess.DEVNULL)
        before = len(list(out.glob("*.safetensors")))
        deadline = time.monotonic() + 60
        while len(list(out.glob("*.safetensors"))) < before + dice.randint(1, 40) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        if process.poll() is not None:
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    writer.add()
    told = json.loads(export_here(writer.directory, out, "safetensors").stdout)

    assert kills >= 2
    assert (told["samples"], told["left_out"]) == (24 * 12 + 2, 0)
    assert told["new"] < told["samples"]
    clean = tmp_path / "clean"
    assert export_here(writer.directory, clean, "safetensors").returncode == 0
    files = [{file.name: file.read_bytes() for file in place.glob("*.safetensors")} for place in (out, clean)]
    assert files[0] == files[1]
    assert not (out / ".tmp").exists()


def test_another_exports_directory_and_a_foreign_one_are_left_alone(dump: DumpWriter, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export_here(dump.directory, out, "numpy").returncode == 0
    other = export_here(dump.directory, out, "numpy", "--layers", 2, 3)
    assert (other.returncode, "holds another export: boundaries is [2, 3, 4] there" in other.stderr) == (2, True)
    again = json.loads(export_here(dump.directory, out, "numpy").stdout)
    assert (again["new"], again["samples"]) == (0, 6)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").touch()
    foreign = export_here(dump.directory, tmp_path / "taken", "numpy")
    assert (foreign.returncode, "files in it that are no export's" in foreign.stderr) == (2, True)

    path = dump.directory / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 9}))
    newer = export_here(dump.directory, tmp_path / "newer", "numpy")
    assert (newer.returncode, "Update kimi-console" in newer.stderr) == (2, True)
