"""A fault in a dump is found, named, and found in that shard only."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_agent.shards.verify import DumpResult, verify
from kimi_capture.format import COMMITS, Commit, Sample, file_xxh3, read_commits

NAN, ZERO = 0x7FC0, 0
Maker = Callable[..., Any]


def kinds(result: DumpResult) -> dict[str, set[str]]:
    """The kinds of problems of each bad shard."""
    return {shard.shard: {problem.kind for problem in shard.problems} for shard in result.shards if shard.problems}


def texts(result: DumpResult) -> str:
    """All that is said about the dump, as one text."""
    problems = [*result.problems, *(problem for shard in result.shards for problem in shard.problems)]
    return "\n".join(str(problem) for problem in problems)


def recommit(directory: Path, path: Path) -> None:
    """Commit a changed file anew, as if it had been written so."""
    commits, _ = read_commits(directory)
    lines = [
        replace(commit, bytes=path.stat().st_size, xxh3=file_xxh3(path)) if commit.shard == path.name else commit
        for commit in commits
    ]
    (directory / COMMITS).write_text("".join(json.dumps(vars_of(commit)) + "\n" for commit in lines))


def vars_of(commit: Commit) -> dict[str, Any]:
    """A commit's fields."""
    return {name: getattr(commit, name) for name in Commit.__slots__}


def rewrite_header(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change a shard's header and its metadata, with hashes that fit again."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    kimi = json.loads(header["__metadata__"]["kimi"])
    change(header, kimi)
    text = json.dumps(kimi)
    header["__metadata__"] = {"kimi": text, "kimi_xxh3": xxhash.xxh3_64_hexdigest(text.encode())}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-(8 + len(encoded)) % 64)
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data[8 + length :])
    recommit(path.parent, path)


def test_a_good_dump_is_good(dump: Any) -> None:
    result = verify(dump.directory)
    assert result.ok
    assert (len(result.shards), result.bad, result.uncommitted) == (3, 0, ())
    answer = result.as_json()
    assert (answer["rows"], answer["samples"], answer["problems"]) == (33, 6, [])
    assert answer["bytes"] == sum(path.stat().st_size for path in dump.directory.glob("*.safetensors"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_dtype_is_verified(make_dump: Maker, dtype: str) -> None:
    writer = make_dump(dtype=dtype)
    spelled = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[dtype]

    def convert(tensors: dict[str, Any]) -> None:
        for name in ("aux_hidden_states", "last_hidden_state"):
            tensors[name] = tensors[name].astype({"BF16": np.uint16, "F16": np.float16, "F32": np.float32}[spelled])

    writer.add(change=convert, dtype=spelled)
    assert verify(writer.directory).ok


def test_an_empty_dump_is_good(make_dump: Maker) -> None:
    result = verify(make_dump().directory)
    assert result.ok
    assert result.shards == ()


@settings(max_examples=120)
@given(data=st.data())
def test_a_flipped_bit_is_found_in_its_shard_and_only_there(dump: Any, data: st.DataObject) -> None:
    path = sorted(dump.directory.glob("*.safetensors"))[data.draw(st.integers(0, 2))]
    whole = path.read_bytes()
    place, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :])
    try:
        found = kinds(verify(dump.directory))
        assert set(found) == {path.name}
        assert "hash" in found[path.name]
    finally:
        path.write_bytes(whole)


@settings(max_examples=60)
@given(data=st.data())
def test_a_shard_cut_or_grown_anywhere_is_found_and_only_that(dump: Any, data: st.DataObject) -> None:
    path = sorted(dump.directory.glob("*.safetensors"))[data.draw(st.integers(0, 2))]
    whole = path.read_bytes()
    path.write_bytes(data.draw(st.integers(0, len(whole) - 1).map(lambda end: whole[:end]) | st.just(whole + b"x")))
    try:
        found = kinds(verify(dump.directory))
        assert set(found) == {path.name}
        assert found[path.name] >= {"size", "format"}
    finally:
        path.write_bytes(whole)


@settings(max_examples=120)
@given(data=st.data())
def test_a_flipped_bit_is_found_even_where_the_commit_was_made_to_fit(dump: Any, data: st.DataObject) -> None:
    """The shard's own hashes see what the commit's does not, outside the JSON header's free spelling."""
    path = dump.directory / "shard-TP0-000001.safetensors"
    whole, commits = path.read_bytes(), (dump.directory / COMMITS).read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    place = data.draw(st.integers(begin, len(whole) - 1))
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    try:
        recommit(dump.directory, path)
        found = kinds(verify(dump.directory))
        assert set(found) == {path.name}
        assert found[path.name] & {"tensor hash", "format"}
    finally:
        path.write_bytes(whole)
        (dump.directory / COMMITS).write_bytes(commits)


@settings(max_examples=150)
@given(st.binary(max_size=300), st.booleans())
def test_a_foreign_file_in_a_shards_place_is_a_problem_and_no_more(dump: Any, junk: bytes, framed: bool) -> None:
    path = dump.directory / "shard-TP0-000000.safetensors"
    whole = path.read_bytes()
    path.write_bytes(len(junk).to_bytes(8, "little") + junk if framed else junk)
    try:
        assert set(kinds(verify(dump.directory))) == {path.name}
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("token_ids", "shape"), [float("inf")]),
        (("token_ids", "shape"), [-1]),
        (("token_ids", "shape"), "11"),
        (("token_ids", "data_offsets"), [0]),
        (("token_ids", "dtype"), "F99"),
        (("aux_hidden_states", "shape"), [10**30, 0, 1]),
        (("kimi", "samples"), None),
        (("kimi", "samples"), [{"rid": 1}]),
        (("kimi", "version"), 2),
        (("kimi", "statistics"), {"x": {}}),
        (("kimi", "xxh3"), {}),
        (("kimi", "xxh3"), []),
    ],
)
def test_a_header_that_lies_is_a_problem_and_no_more(dump: Any, place: tuple[str, str], value: Any) -> None:
    def change(header: dict[str, Any], kimi: dict[str, Any]) -> None:
        (kimi if place[0] == "kimi" else header[place[0]])[place[1]] = value

    path = dump.directory / "shard-TP0-000001.safetensors"
    rewrite_header(path, change)
    found = kinds(verify(dump.directory))
    assert set(found) == {path.name}
    assert found[path.name] <= {"format", "unreadable"}


@pytest.mark.parametrize("field", ["rid", "prompt_tokens", "output_tokens", "finish_reason", "missing"])
def test_a_sample_field_of_the_wrong_type_is_a_problem_and_no_more(dump: Any, field: str) -> None:
    path = dump.directory / "shard-TP0-000001.safetensors"
    rewrite_header(path, lambda _, kimi: kimi["samples"][0].update({field: [1]}))
    assert kinds(verify(dump.directory)) == {path.name: {"format"}}


def test_a_missing_shard_is_named_and_the_rest_is_checked(dump: Any) -> None:
    (dump.directory / "shard-TP0-000001.safetensors").unlink()
    result = verify(dump.directory)
    assert kinds(result) == {"shard-TP0-000001.safetensors": {"missing"}}
    assert "shard-TP0-000001.safetensors: is committed, but the file is not there. Copy it again" in texts(result)
    assert result.as_json()["rows"] == 22


@pytest.mark.parametrize("name", ["..", "", "a\0b"])
def test_a_commit_that_names_no_file_is_a_problem(dump: Any, name: str) -> None:
    dump.commit(Commit(name, 1, 1, 1, "0", 1.0))
    result = verify(dump.directory)
    assert not result.ok
    assert len([shard for shard in result.shards if not shard.problems]) == 3


def test_a_shard_that_is_a_directory_is_unreadable(dump: Any) -> None:
    path = dump.directory / "shard-TP0-000001.safetensors"
    path.unlink()
    path.mkdir()
    assert kinds(verify(dump.directory)) == {path.name: {"unreadable"}}


def test_the_damaged_tensor_is_named(dump: Any) -> None:
    path = dump.directory / "shard-TP0-000001.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x01
    path.write_bytes(data)
    assert "last_hidden_state is damaged: its bytes are not those that were written" in texts(verify(dump.directory))


def put(name: str, index: Any, value: float) -> Callable[[dict[str, Any]], None]:
    """A change of one tensor before it is written."""

    def change(tensors: dict[str, Any]) -> None:
        tensors[name][index] = value

    return change


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        (put("aux_hidden_states", (8, 1, 3), NAN), "non-finite",
         "1 value of boundary 3 is not finite, in 1 row, first row 1 of request r3-1"),
        (put("last_hidden_state", (2, 0), 0x7F80), "non-finite",
         "1 value of the last state is not finite, in 1 row, first row 2 of request r3-0"),
        (put("aux_hidden_states", (slice(7, 9), 0), ZERO), "zero rows",
         "2 rows of boundary 2 are all zero, first row 0 of request r3-1"),
        (put("last_hidden_state", 10, 0x8000), "zero rows", "1 row of the last state is all zero"),
        (put("positions", 3, 9), "positions", "request r3-0 has position 9 at its row 3"),
        (put("positions", slice(7, None), 0), "positions", "request r3-1 has position 0 at its row 1"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_right_are_named(dump: Any, change: Any, kind: str, says: str) -> None:
    path = dump.add(change=change)
    result = verify(dump.directory)
    assert kinds(result) == {path.name: {kind}}
    assert says in texts(result)


def test_rows_that_do_not_fit_the_tokens_are_named(dump: Any) -> None:
    path = dump.add((Sample("short", 5, 3, 6, "stop"), Sample("right", 5, 3, 7, "stop")))
    result = verify(dump.directory)
    assert kinds(result) == {path.name: {"rows"}}
    assert "request short has 6 rows, expected 7 (5 prompt + 3 output tokens − 1 − missing)" in texts(result)


def test_many_samples_with_one_fault_are_counted(dump: Any) -> None:
    dump.add(tuple(Sample(f"s{place}", 5, 3, 6, "stop") for place in range(10)))
    assert "7 more samples have the same fault" in texts(verify(dump.directory))


def test_missing_rows_that_are_accounted_for_are_no_problem(dump: Any) -> None:
    dump.add((Sample("cached", 5, 3, 3, "stop", {"prefix hit": 4}),), shifted)
    assert verify(dump.directory).ok


def shifted(tensors: dict[str, Any]) -> None:
    """Positions of a sample whose first four rows are missing."""
    tensors["positions"] += 4


def test_positions_that_fall_are_a_problem_even_with_rows_missing(dump: Any) -> None:
    path = dump.add((Sample("cached", 5, 3, 3, "stop", {"prefix hit": 4}),), put("positions", 2, 0))
    assert kinds(verify(dump.directory)) == {path.name: {"positions"}}


@pytest.mark.parametrize(
    ("shard", "kind", "says"),
    [
        ({"boundaries": (2, 3, 5)}, "boundaries", "boundaries [2, 3, 5], the manifest says [2, 3, 4]"),
        ({"boundaries": (2, 3)}, "boundaries", "boundaries [2, 3], the manifest says [2, 3, 4]"),
        ({"hidden": 8}, "hidden size", "hidden size 8, the manifest says 16"),
        ({"dtype": "F32"}, "dtype", "dtype F32, the manifest says BF16"),
        ({"dump": "other"}, "dump name", "dump name other, the manifest says d1"),
        ({"rows": 12}, "counts", "holds 11 rows of 2 samples, 12 of 2 were committed"),
    ],
)
def test_a_shard_of_another_make_is_named(dump: Any, shard: dict[str, Any], kind: str, says: str) -> None:
    path = dump.add(**shard)
    result = verify(dump.directory)
    assert kinds(result) == {path.name: {kind}}
    assert says in texts(result)


def test_a_request_in_two_shards_is_a_problem_of_the_second(dump: Any) -> None:
    path = dump.add((Sample("r1-0", 5, 3, 7, "stop"),))
    result = verify(dump.directory)
    assert kinds(result) == {path.name: {"duplicate request"}}
    assert "request r1-0 is also in shard-TP0-000001.safetensors" in texts(result)


def test_a_request_twice_in_one_shard_is_a_problem(dump: Any) -> None:
    path = dump.add((Sample("a", 5, 3, 7, "stop"), Sample("a", 5, 3, 7, "stop")))
    assert kinds(verify(dump.directory)) == {path.name: {"duplicate request"}}


def test_the_same_bytes_under_two_names_are_one_shard_too_many(dump: Any) -> None:
    first, twin = dump.directory / "shard-TP0-000000.safetensors", dump.directory / "shard-TP0-000009.safetensors"
    twin.write_bytes(first.read_bytes())
    dump.commit(Commit(twin.name, twin.stat().st_size, 11, 2, file_xxh3(twin), 1.0))
    assert kinds(verify(dump.directory)) == {twin.name: {"duplicate shard"}}


def test_a_shard_committed_twice_is_a_problem_of_the_dump(dump: Any) -> None:
    lines = (dump.directory / COMMITS).read_bytes().splitlines(keepends=True)
    (dump.directory / COMMITS).write_bytes(b"".join([*lines, lines[1]]))
    result = verify(dump.directory)
    assert kinds(result) == {}
    assert [str(problem) for problem in result.problems] == [
        "shard-TP0-000001.safetensors: is committed 2 times. Keep one of its lines in commits.jsonl"
    ]


@pytest.mark.parametrize("name", ["4", "last"])
@pytest.mark.parametrize("entry", ["rms", "max_abs", "non_finite", "zero_rows"])
def test_statistics_that_are_not_the_data_s_are_a_problem(dump: Any, name: str, entry: str) -> None:
    def change(_: dict[str, Any], kimi: dict[str, Any]) -> None:
        kimi["statistics"][name][entry] += 1

    path = dump.directory / "shard-TP0-000001.safetensors"
    rewrite_header(path, change)
    result = verify(dump.directory)
    assert kinds(result) == {path.name: {"statistics"}}
    assert "statistics of " in texts(result)


def test_statistics_that_are_not_there_are_a_problem(dump: Any) -> None:
    path = dump.directory / "shard-TP0-000001.safetensors"
    rewrite_header(path, lambda _, kimi: kimi["statistics"].pop("last"))
    assert kinds(verify(dump.directory)) == {path.name: {"statistics"}}


def test_names_from_the_dump_cannot_act_on_a_terminal(dump: Any) -> None:
    dump.add((Sample("\x1b[2Jr", 5, 3, 6, "stop"),))
    assert "\x1b" not in texts(verify(dump.directory))
