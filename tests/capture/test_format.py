"""The shard format: what is written is read back, and what is damaged is refused by name."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_capture.format import (
    COMMITS,
    DTYPES,
    TENSORS,
    Commit,
    FormatError,
    Manifest,
    Sample,
    conventions,
    encode_commit,
    file_xxh3,
    read_commits,
    read_manifest,
    read_shard,
    to_float32,
)
from kimi_capture.parts import encode_parts, write_shard
from kimi_capture.statistics import statistics

RIDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


def tensors(rows: list[int], boundaries: int, hidden: int, dtype: str, seed: int) -> dict[str, np.ndarray]:
    source = np.random.default_rng(seed)
    count = sum(rows)
    kind = DTYPES[dtype]

    def states(*shape: int) -> np.ndarray:
        raw = source.integers(0, 256, (*shape, kind.itemsize), dtype=np.uint8)
        return raw.view(kind)[..., 0]

    return {
        "token_ids": source.integers(0, 163_840, count),
        "positions": np.concatenate([np.arange(n) for n in rows]) if rows else np.zeros(0, np.int64),
        "sample_offsets": np.cumsum([0, *rows]),
        "aux_hidden_states": states(count, boundaries, hidden),
        "last_hidden_state": states(count, hidden),
    }


def samples(rids: list[str], rows: list[int]) -> tuple[Sample, ...]:
    return tuple(Sample(rid, n, 1, n, "length", {}) for rid, n in zip(rids, rows, strict=True))


def small(path: Path, rid: str = "r1") -> bytes:
    written, two = tensors([3, 2], 2, 4, "BF16", 0), samples([rid, "b"], [3, 2])
    write_shard(path, written, dump="d", dtype="BF16", boundaries=(3, 31), samples=two)
    return path.read_bytes()


@given(
    named=st.lists(st.tuples(RIDS, st.integers(1, 9)), max_size=5),
    boundaries=st.lists(st.integers(0, 60), min_size=1, max_size=4, unique=True).map(sorted),
    hidden=st.integers(1, 9),
    dtype=st.sampled_from(["BF16", "F16", "F32"]),
    seed=st.integers(0, 1 << 30),
)
def test_a_shard_reads_back_as_it_was_written(
    tmp_path: Path, named: list[tuple[str, int]], boundaries: list[int], hidden: int, dtype: str, seed: int
) -> None:
    rids, rows = [rid for rid, _ in named], [n for _, n in named]
    written = tensors(rows, len(boundaries), hidden, dtype, seed)
    path = tmp_path / "shard.safetensors"
    size, digest = write_shard(
        path, written, dump="d", dtype=dtype, boundaries=tuple(boundaries), samples=samples(rids, rows)
    )
    shard = read_shard(path)
    assert (path.stat().st_size, file_xxh3(path)) == (size, digest)
    assert (shard.meta.samples, shard.meta.boundaries) == (samples(rids, rows), tuple(boundaries))
    assert (shard.dtype, shard.rows, shard.corrupt()) == (dtype, sum(rows), [])
    for name in TENSORS:
        assert shard.tensor(name).tobytes() == written[name].tobytes()
        assert shard.tensor(name).shape == written[name].shape


def test_a_shard_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = small(tmp_path / "whole")
    path = tmp_path / "cut"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match="cut"):
            read_shard(path)


def test_a_shard_with_bytes_after_its_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(small(path) + b"\0")
    with pytest.raises(FormatError, match="follow"):
        read_shard(path)


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    """In the header the shard is refused; in the data the tensor is named by its hash."""
    whole = small(tmp_path / "whole")
    header = 8 + int.from_bytes(whole[:8], "little")
    path = tmp_path / "flipped"
    for bit in range(random.Random(0).randrange(5), len(whole) * 8, 5):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        if bit // 8 < header:
            with pytest.raises(FormatError):
                read_shard(path)
        else:
            try:
                noticed = bool(read_shard(path).corrupt())
            except FormatError:
                noticed = True  # a flipped sample offset
            assert noticed, bit


@pytest.mark.parametrize(
    "header",
    [
        {},
        [],
        {"__metadata__": {"format": "pt"}},
        {"__metadata__": {"kimi": "{}", "kimi_xxh3": "0"}},
        {"__metadata__": 3},
    ],
)
def test_a_foreign_safetensors_file_is_refused(tmp_path: Path, header: object) -> None:
    text = json.dumps(header).encode()
    path = tmp_path / "foreign"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(FormatError, match="foreign"):
        read_shard(path)


@given(st.binary(max_size=400))
def test_noise_is_refused(tmp_path: Path, noise: bytes) -> None:
    path = tmp_path / "noise"
    path.write_bytes(noise)
    with pytest.raises(FormatError):
        read_shard(path)


def test_a_shard_is_aligned_for_a_memory_map() -> None:
    whole = {name: [tensor] for name, tensor in tensors([3], 3, 5, "F32", 0).items()}
    buffers = encode_parts(whole, [None], dump="d", dtype="F32", boundaries=(1, 2, 3), samples=samples(["a"], [3]))
    assert buffers[0].nbytes % 64 == 0


COMMIT_LIST = st.lists(
    st.builds(
        Commit,
        st.integers(0, 99).map(lambda n: f"shard-TP0-{n:06}.safetensors"),
        st.integers(0, 1 << 40),
        st.integers(0, 1 << 30),
        st.integers(0, 1 << 20),
        st.just("0123456789abcdef"),
        st.floats(0, 2e9),
    ),
    max_size=6,
    unique_by=lambda commit: commit.shard,
)


@given(COMMIT_LIST, st.data())
def test_a_torn_commit_line_costs_that_commit_only(tmp_path: Path, commits: list[Commit], data: st.DataObject) -> None:
    lines = [encode_commit(commit) for commit in commits]
    text = b"".join(lines)
    cut = data.draw(st.integers(0, len(text)))
    (tmp_path / COMMITS).write_bytes(text[:cut])
    whole = sum(cut >= end for end in np.cumsum([len(line) for line in lines]))
    assert read_commits(tmp_path) == (commits[:whole], 0)
    # What is appended after the tear, on a line of its own, counts again.
    (tmp_path / COMMITS).write_bytes(text[:cut] + b"\n" + b"".join(lines[whole:]))
    again, unreadable = read_commits(tmp_path)
    assert {commit.shard for commit in again} == {commit.shard for commit in commits}
    assert unreadable <= 1


def test_a_directory_without_commits_has_none(tmp_path: Path) -> None:
    assert read_commits(tmp_path) == ([], 0)


def test_a_commit_cannot_point_outside_its_directory(tmp_path: Path) -> None:
    (tmp_path / COMMITS).write_bytes(encode_commit(Commit("../../etc/passwd", 1, 1, 1, "0", 0.0)))
    assert read_commits(tmp_path) == ([], 1)


def test_a_manifest_reads_back(tmp_path: Path) -> None:
    manifest = Manifest(
        "d", "run", 1.5, (3, 31, 59), conventions((3, 31, 59), 0), "bfloat16", 7168, 61, "post", {"path": "/m"}, None,
        "0.5.23", "0.1.0", ("python", "-m"), {"tp": 8},
    )  # fmt: skip
    (tmp_path / "manifest.json").write_bytes(manifest.encode())
    assert read_manifest(tmp_path) == manifest


def test_every_spelling_of_a_boundary_is_named() -> None:
    assert conventions((4, 32), 1)["4"] == {"sglang_flag": 3, "sglang_internal": 4, "vllm": 4, "specforge": 3}


def test_bfloat16_is_the_upper_half_of_a_float32() -> None:
    values = np.array([0.0, 1.0, -2.5, 3.0e38, np.inf], np.float32)
    assert np.allclose(to_float32((values.view(np.uint32) >> 16).astype(np.uint16)), values, rtol=2**-7)


def test_statistics_name_what_is_wrong_with_rows() -> None:
    rows = np.zeros((4, 8), np.float32)
    rows[0] = 3.0
    rows[1, 0] = np.nan
    rows[2, 3] = -np.inf
    found = statistics(rows)
    assert (found.max_abs, found.non_finite, found.zero_rows) == (3.0, 2, 1)
    assert found.rms == pytest.approx(np.sqrt(8 * 9.0 / 30))


@given(st.integers(1, 3000), st.integers(1, 300), st.integers(0, 99))
@settings(max_examples=30)
def test_the_rms_is_that_of_all_elements(rows: int, width: int, seed: int) -> None:
    states = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    expected = float(np.sqrt(np.mean(states.astype(np.float64) ** 2)))
    assert statistics(states).rms == pytest.approx(expected, rel=1e-4)
