"""A dump goes on in another run only if its rows are the same kind of rows, and has each request once."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kimi_capture.claim import StoreError, differences
from kimi_capture.directory import RUNS
from kimi_capture.dump import MIB, Dump, Limits
from kimi_capture.format import COMMITS, Manifest, read_commits
from kimi_capture.guard import Guard
from kimi_capture.rows import ALREADY, Ledger
from kimi_capture.staging import Stager
from kimi_capture.store import Store

from .dumping import ROW_BYTES, Dumping, finished, manifest
from .test_writer import check

MODEL: dict[str, str | None] = {"path": "/models/a", "class": "Tiny", "config": "c1", "weights": "w1"}


def written(directory: Path, *rids: str) -> None:
    """A dump of one shard with these requests, stopped."""
    dumping = Dumping(directory)
    for number, rid in enumerate(rids):
        dumping.writer.put(finished(rid, 7 + number, number))
    dumping.writer.close(time.monotonic() + 30)
    dumping.writer.store.release()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"dump": "e"}, "dump is d there and e here"),
        ({"boundaries": (2, 3, 5)}, "boundaries is [2, 3, 4] there and [2, 3, 5] here"),
        ({"dtype": "float32"}, "dtype is bfloat16 there and float32 here"),
        ({"last_hidden_norm": "pre"}, "last_hidden_norm is post there and pre here"),
        ({"tokenizer": "t2"}, "tokenizer is t1 there and t2 here"),
        ({"model": {**MODEL, "config": "c2"}}, "model.config is c1 there and c2 here"),
        ({"model": {**MODEL, "weights": "w2"}}, "model.weights is w1 there and w2 here"),
        ({"model": {**MODEL, "class": "Other"}}, "model.class is Tiny there and Other here"),
    ],
)
def test_what_makes_other_rows_is_named_with_both_values(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    before = replace(manifest(), model=MODEL, tokenizer="t1")
    Store(tmp_path / "d", "TP0", before).release()
    with pytest.raises(StoreError) as refused:
        Store(tmp_path / "d", "TP0", replace(before, run="later", **change), resume=True)
    assert refused.value.slug == "differs"
    assert told in refused.value.message


def test_what_only_the_run_changes_is_no_difference() -> None:
    before = replace(manifest(), model=MODEL)
    after = replace(
        before, run="later", created=9.0, sglang="0.5.24", plugin="0.2.0", argv=("x",), parallel={"tp": 8},
        model={**MODEL, "path": "/elsewhere/a"},
    )  # fmt: skip
    assert differences(before, after) == []
    unknown: dict[str, str | None] = {**MODEL, "weights": None}
    moved = replace(after, model={**unknown, "path": "/elsewhere/a"})
    assert differences(replace(before, model=unknown), moved) == ["model.path is /models/a there and /elsewhere/a here"]


def test_requests_that_are_there_are_not_captured_again(tmp_path: Path) -> None:
    written(tmp_path / "d", "a", "b")
    ledger, lock = Ledger(), threading.Condition()
    store = Store(tmp_path / "d", "TP0", manifest(run="later"), resume=True)
    dump = Dump(
        ledger, lock, store, stager=Stager(), row_bytes=ROW_BYTES,
        limits=Limits(shard=MIB, waiting=4 * MIB, memory=64 * MIB), guard=Guard(),
    )  # fmt: skip
    for rid, rows in (("a", 7), ("c", 5), ("c", 5), ("b", 8)):  # c is served twice, too
        with lock:
            ledger.step([(rid, 0, rows)], dump.refusal(), dump.writer.rids)
            if ledger.finish(rid, rows, 1) is not None:
                dump.put(finished(rid, rows))
    dump.stop(30)
    status = dump.status()
    assert (status["served"], status["committed"], status["missing"]) == (25, 5, {ALREADY: 20})
    assert status["errors"] == []
    assert check(tmp_path / "d") == {"a": 7, "b": 8, "c": 5}
    assert [commit.rids for commit in read_commits(tmp_path / "d")[0]] == [("a", "b"), ("c",)]


def test_every_run_is_listed_and_the_manifest_stays(tmp_path: Path) -> None:
    written(tmp_path / "d", "a")
    before = (tmp_path / "d" / "manifest.json").read_bytes()
    Store(tmp_path / "d", "TP0", replace(manifest(run="later"), sglang="0.5.24"), resume=True).release()
    runs = [json.loads(line) for line in (tmp_path / "d" / RUNS).read_bytes().splitlines()]
    assert [(run["run"], run["rank"], run["sglang"], run["first_shard"]) for run in runs] == [
        ("run", "TP0", "0.5.23", 0), ("later", "TP0", "0.5.24", 1),
    ]  # fmt: skip
    assert (tmp_path / "d" / "manifest.json").read_bytes() == before


def test_a_living_writer_s_dump_is_not_resumed_and_its_files_stay(tmp_path: Path) -> None:
    store = Store(tmp_path / "d", "TP0", manifest())
    other = Store(tmp_path / "d", "DP1 TP0", manifest())
    (tmp_path / "d" / ".shard-TP0-000000.safetensors.tmp").write_bytes(b"half")
    with pytest.raises(StoreError, match="is being written by process") as refused:
        Store(tmp_path / "d", "TP0", manifest(run="later"), resume=True)
    assert refused.value.slug == "held"
    other.release()
    Store(tmp_path / "d", "DP1 TP0", manifest(run="later"), resume=True).release()
    assert (tmp_path / "d" / ".shard-TP0-000000.safetensors.tmp").exists()
    store.release()
    Store(tmp_path / "d", "DP1 TP0", manifest(run="later"), resume=True).release()
    assert not (tmp_path / "d" / ".shard-TP0-000000.safetensors.tmp").exists()


def test_a_damaged_dump_is_repaired_first(tmp_path: Path) -> None:
    written(tmp_path / "d", "a")
    (shard,) = (tmp_path / "d").glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"truncated|bytes") as refused:
        Store(tmp_path / "d", "TP0", manifest(run="later"), resume=True)
    assert (refused.value.slug, refused.value.hint) == ("damaged", f"run kimi-agent shards repair {tmp_path / 'd'}")
    shard.unlink()
    with pytest.raises(StoreError, match="is committed but gone"):
        Store(tmp_path / "d", "TP0", manifest(run="later"), resume=True)
    (tmp_path / "d" / COMMITS).write_bytes(b"garbage\n")
    with pytest.raises(StoreError, match="1 commit lines that cannot be read"):
        Store(tmp_path / "d", "TP0", manifest(run="later"), resume=True)


def test_nothing_cannot_be_resumed_and_shards_are_not_taken_over_unasked(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as refused:
        Store(tmp_path / "none", "TP0", manifest(), resume=True)
    assert refused.value.slug == "nothing-to-resume"
    assert not (tmp_path / "none").exists()
    written(tmp_path / "d", "a")
    with pytest.raises(StoreError, match="already has shards of this rank"):
        Store(tmp_path / "d", "TP0", manifest())
    (tmp_path / "early").mkdir()  # a run that died before its manifest was durable
    (tmp_path / "early" / ".manifest.json.77.tmp").write_bytes(b"{")
    Store(tmp_path / "early", "TP0", manifest(), resume=True).release()
    assert sorted(path.name for path in (tmp_path / "early").iterdir()) == ["manifest.json", RUNS]


def test_shard_numbers_are_never_used_again(tmp_path: Path) -> None:
    written(tmp_path / "d", "a")
    (shard,) = (tmp_path / "d").glob("*.safetensors")
    (tmp_path / "d" / "quarantine").mkdir()
    shard.with_name("shard-TP0-000004.safetensors").write_bytes(b"no shard")
    store = Store(tmp_path / "d", "TP0", manifest(run="later"), resume=True)
    assert store.new_name() == "shard-TP0-000005.safetensors"
    assert (tmp_path / "d" / "quarantine" / "shard-TP0-000004.safetensors").exists()


def test_a_manifest_says_what_differs_in_words() -> None:
    found: Manifest = manifest()
    assert differences(found, replace(found, hidden_size=65, num_layers=7)) == [
        "hidden_size is 64 there and 65 here", "num_layers is 6 there and 7 here",
    ]  # fmt: skip
