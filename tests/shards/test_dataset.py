"""Dumps as training data: by sample, shuffled by shard, over workers, and what is refused."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.bundle import ensure_bundle
from kimi_agent.errors import KimiError, UsageError
from kimi_agent.shards.masks import FED, FEED, GENERATED, Mask, loss_mask, mask_line, read_masks
from kimi_agent.shards.samples import DamagedError, Samples
from kimi_capture.format import MANIFEST, Sample
from kimi_console.demo.engine import Engine


def test_every_committed_sample_is_there_once_in_order(dump: Any) -> None:
    dump.add(commit=False)
    found = Samples(dump.directory)

    assert [one.sample.rid for one in found] == ["r0-0", "r0-1", "r1-0", "r1-1", "r2-0", "r2-1"]
    assert found.shards == [range(2), range(2, 4), range(4, 6)]
    first = found[0]
    assert first.aux_hidden_states.shape == (7, len(dump.manifest.boundaries), dump.manifest.hidden_size)
    assert first.positions.tolist() == list(range(7))
    with pytest.raises(IndexError):
        found[6]


def test_what_the_engine_generated_counts_where_no_feed_said_otherwise(dump: Any) -> None:
    (dump.directory / FEED).write_bytes(mask_line("r0-1", Mask(((1, 3),), output=False)))
    found = Samples(dump.directory)

    assert (found[0].loss_mask.tolist(), found[0].mask_source) == ([0, 0, 0, 0, 0, 1, 1], GENERATED)
    assert (found[1].loss_mask.tolist(), found[1].mask_source) == ([0, 1, 1, 0], FED)


def test_samples_that_lack_rows_are_left_out_and_counted(dump: Any) -> None:
    holes = (Sample("hole", 5, 2, 4, "stop", {"prefix hit": 2}), Sample("whole", 2, 1, 2, "stop"))
    dump.add(holes)
    found = Samples(dump.directory)

    assert found.skipped == 1
    assert found[len(found) - 1].sample.rid == "whole"


@given(
    rows=st.integers(1, 40), prompt=st.integers(1, 40), output=st.booleans(),
    spans=st.lists(st.tuples(st.integers(-3, 50), st.integers(-3, 50)), max_size=4),
)  # fmt: skip
def test_a_mask_covers_its_spans_and_nothing_else(
    rows: int, prompt: int, output: bool, spans: list[tuple[int, int]]
) -> None:
    sample = Sample("r", min(prompt, rows), rows - min(prompt, rows) + 1, rows, "stop")
    mask, _ = loss_mask(sample, Mask(tuple(spans), output))

    inside = [any(first <= row < last for first, last in spans) for row in range(rows)]
    generated = [output and row >= sample.prompt_tokens for row in range(rows)]
    assert mask.tolist() == [int(a or b) for a, b in zip(inside, generated, strict=True)]


def test_a_torn_last_mask_is_none_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    whole = mask_line("a", Mask(((0, 2),), output=True))
    (tmp_path / FEED).write_bytes(whole + whole[:9])
    assert read_masks(tmp_path) == {"a": Mask(((0, 2),), output=True)}

    (tmp_path / FEED).write_bytes(whole[:9] + b"\n" + whole)
    with pytest.raises(KimiError, match="line 1 is damaged"):
        read_masks(tmp_path)


def test_foreign_directories_and_newer_manifests_are_refused(dump: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a dump"):
        Samples(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        Samples(tmp_path / "nowhere")

    path = dump.directory / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
    with pytest.raises(UsageError, match=r"manifest version 2.*Update"):
        Samples(dump.directory)


def test_a_shard_of_another_dump_is_refused(dump: Any, make_dump: Callable[..., Any]) -> None:
    dump.add(dump="d2")
    with pytest.raises(DamagedError, match="another dump's"):
        Samples(dump.directory)


@pytest.mark.parametrize("cut", [0, 7, 9, 500, 2_000, -1])
def test_a_truncated_shard_is_refused(dump: Any, cut: int) -> None:
    path = next(dump.directory.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DamagedError, match="kimi-agent shards verify"):
        Samples(dump.directory)


def test_a_bit_that_flipped_anywhere_is_refused_when_it_is_read(dump: Any) -> None:
    path = sorted(dump.directory.glob("*.safetensors"))[1]
    whole = bytearray(path.read_bytes())
    for place in np.random.default_rng(0).integers(0, len(whole), 60).tolist():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(DamagedError, match=path.name):
            list(Samples(dump.directory))
    path.write_bytes(whole)
    assert len(list(Samples(dump.directory))) == 6


SCRIPT = """
import json, sys
import torch
from torch.utils.data import DataLoader
from kimi_agent.shards.dataset import DumpDataset, DumpStream, ShardSampler

if __name__ == "__main__":
    directory = sys.argv[1]
    dataset = DumpDataset(directory)
    item = dataset[1]
    print(json.dumps({
        "dtypes": {key: str(value.dtype) for key, value in item.items() if key != "rid"},
        "aux": item["aux_hidden_states"].float().tolist(), "last": item["last_hidden_state"].float().tolist(),
        "ids": item["input_ids"].tolist(),
        "plain": [one["rid"] for one in DataLoader(dataset, batch_size=None)],
        "sampled": [[one["rid"] for one in DataLoader(
            dataset, sampler=ShardSampler(dataset, seed=seed), batch_size=None, num_workers=2,
            multiprocessing_context="spawn")] for seed in (1,)],
        "order": [list(ShardSampler(dataset, seed=3)), list(ShardSampler(dataset, seed=3))],
        "ranks": [list(ShardSampler(dataset, seed=3, rank=rank, world=2)) for rank in range(2)],
        "stream": [[one["rid"] for one in DataLoader(
            DumpStream(directory, seed=5), batch_size=None, num_workers=workers)] for workers in (0, 3)],
    }))
"""


@pytest.mark.engine
def test_torch_loads_it_shuffled_by_shard_and_over_workers(dump: Any, engine: Engine, tmp_path: Path) -> None:
    script = tmp_path / "load.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [engine.python, script, dump.directory], env={"PYTHONPATH": str(ensure_bundle()), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)

    rids = ["r0-0", "r0-1", "r1-0", "r1-1", "r2-0", "r2-1"]
    rows = Samples(dump.directory)[1]
    assert told["dtypes"]["aux_hidden_states"] == told["dtypes"]["last_hidden_state"] == "torch.bfloat16"
    assert told["dtypes"]["input_ids"] == told["dtypes"]["loss_mask"] == "torch.int64"
    assert np.array_equal(told["aux"], (rows.aux_hidden_states.astype(np.uint32) << 16).view(np.float32))
    assert np.array_equal(told["last"], (rows.last_hidden_state.astype(np.uint32) << 16).view(np.float32))
    assert told["ids"] == rows.token_ids.tolist()
    assert told["plain"] == rids
    for order in (*told["sampled"], *told["stream"]):
        assert sorted(order) == rids
    one_at_a_time, _ = told["stream"]
    assert [rid[:2] for rid in one_at_a_time][::2] == [rid[:2] for rid in one_at_a_time][1::2], "shard after shard"
    assert told["order"][0] == told["order"][1]
    assert sorted(told["ranks"][0] + told["ranks"][1]) == list(range(6))
