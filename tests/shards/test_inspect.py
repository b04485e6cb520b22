"""What is said of a sample's rows, and of two samples or dumps beside each other."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_agent.errors import UsageError
from kimi_agent.shards.content import columns
from kimi_agent.shards.inspect import suspects
from kimi_agent.shards.inspect.compare import DumpPair, apart, compare_samples, same_tokens
from kimi_agent.shards.inspect.desk import Desk
from kimi_agent.shards.inspect.listing import Listing
from kimi_agent.shards.inspect.rows import BINS, HEAT, SampleRows, bad_by_sample, histogram, value_histogram
from kimi_agent.shards.tokens import load_vocabulary
from kimi_capture.format import Sample, read_shard, to_float32
from kimi_capture.statistics import shard_moments, statistics

from .conftest import HIDDEN, DumpWriter

Maker = Callable[..., Any]
Tensors = dict[str, npt.NDArray[Any]]
NAMES = ("2", "3", "4", "last")


def read(path: Path, place: int = 0) -> SampleRows:
    """A sample whose rows are all read."""
    rows = SampleRows(read_shard(path), place)
    rows.step(float("inf"))
    return rows


def flags_of(states: npt.NDArray[Any], tokens: Any = None, positions: Any = None, names: Any = NAMES,
             missing: dict[str, int] | None = None) -> npt.NDArray[np.uint8]:  # fmt: skip
    """Flags of [n, layers, H] states."""
    count = len(states)
    moments = shard_moments(states[:, :-1], states[:, -1])
    equal = np.stack(
        [suspects.equal_to_before(states[:, column], moments[:, column], 0) for column in range(len(names))], axis=1
    )
    return suspects.row_flags(
        moments, equal, tokens=np.arange(count) if tokens is None else tokens,
        positions=np.arange(count) if positions is None else positions,
        sample=Sample("r", count, 1, count, "stop", missing or {}), names=names,
    )  # fmt: skip


def normal(seed: int, rows: int = 40, hidden: int = HIDDEN) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(rows, 4, hidden)).astype(np.float32)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 60), st.floats(0.01, 100), st.booleans())
def test_rows_as_a_model_makes_them_are_never_marked(seed: int, rows: int, scale: float, sink: bool) -> None:
    states = normal(seed, rows, 128) * scale  # in 16 dimensions one norm of ten thousand is small by chance
    states *= np.random.default_rng(seed).uniform(0.7, 1.4, (rows, 1, 1)).astype(np.float32)
    if sink:
        states[0, :3] *= 300  # the first token's massive activations
    assert not flags_of(states).any()


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(0, 39), st.integers(0, 3),
       st.sampled_from(["nan", "inf", "zero", "same", "large", "small"]))  # fmt: skip
def test_every_fault_is_marked_where_it_is_and_nowhere_else(seed: int, row: int, column: int, fault: str) -> None:
    states = normal(seed)
    row = max(row, suspects.SINKS) if fault == "large" else max(row, 1)
    bit = {"nan": suspects.BROKEN, "inf": suspects.BROKEN, "zero": suspects.ZERO, "same": suspects.SAME,
           "large": suspects.LARGE, "small": suspects.SMALL}[fault]  # fmt: skip
    states[row, column] = {
        "nan": np.where(np.arange(HIDDEN) == 3, np.nan, states[row, column]), "inf": np.full(HIDDEN, np.inf),
        "zero": np.zeros(HIDDEN), "same": states[row - 1, column], "large": states[row, column] * 200,
        "small": states[row, column] / 200,
    }[fault]  # fmt: skip
    flags = flags_of(states)
    assert flags[row, column] == bit
    flags[row, column] = 0
    assert not flags.any()
    assert suspects.WORDS[bit] in suspects.words(flags_of(states)[row], NAMES, row)


def test_equal_rows_are_right_for_the_embedding_and_for_one_token_over_and_over() -> None:
    states = normal(1)
    states[:5] = states[0]
    states[20] = states[19]
    tokens = np.arange(40)
    tokens[:5] = 7
    tokens[20] = tokens[19]
    names = ("0", "3", "4", "last")
    flags = flags_of(states, tokens, names=names)
    assert not flags[:5].any()
    assert flags[20].tolist() == [0, suspects.SAME, suspects.SAME, suspects.SAME]


def test_positions_are_out_of_place_by_the_sample_s_own_account() -> None:
    positions = np.arange(40)
    positions[30:] += 1
    placed = flags_of(normal(2), positions=positions) & suspects.PLACE
    assert np.flatnonzero(placed.any(axis=1)).tolist() == [*range(30, 40)]
    assert not flags_of(normal(2), positions=positions, missing={"aborted": 1}).any()
    assert "position 31 is out of place" in suspects.words(flags_of(normal(2), positions=positions)[30], NAMES, 31)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(0, 3), st.sampled_from([1, 400, 1 << 20]))
def test_a_sample_read_in_slices_is_told_as_its_shard_is(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], place: int, chunk: int
) -> None:
    writer = DumpWriter(tmp_path_factory.mktemp("d") / "d")
    path = writer.add(writer.samples(tuple((length, 1) for length in lengths)))
    place %= len(lengths)
    shard = read_shard(path)
    rows = SampleRows(shard, place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kimi_agent.shards.inspect.rows.CHUNK", chunk)
        while rows.step(0.0):
            assert 0 < rows.done < rows.rows
    facts = rows.facts("3")
    span = slice(int(shard.sample_offsets[place]), int(shard.sample_offsets[place + 1]))
    before = None
    for name, states in columns(shard).items():
        expected = statistics(states[span], before)
        assert facts["layers"][name]["rms"] == pytest.approx(expected.rms)
        assert facts["layers"][name]["max_abs"] == expected.max_abs
        assert facts["layers"][name]["cosine_before"] == pytest.approx(expected.cosine_before)
        norms = np.linalg.norm(to_float32(states[span]).astype(float), axis=1)
        shown = [token["norm"][rows.names.index(name)] for token in rows.lines(0, 99, load_vocabulary(None, []))]
        assert shown == pytest.approx(norms, rel=1e-3)
        before = states[span]
    assert facts["read"] == facts["rows"] == lengths[place]
    assert sum(facts["norms"]["counts"]) == lengths[place]
    assert len(facts["heat"]["cells"]) == len(facts["heat"]["marks"]) == min(HEAT, lengths[place])


def test_rows_are_held_against_the_one_before_across_slices(make_dump: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    def equal(tensors: Tensors) -> None:
        for name in ("aux_hidden_states", "last_hidden_state"):
            tensors[name][3] = tensors[name][2]

    path = make_dump().add(change=equal)
    for chunk in (1, 1 << 20):
        monkeypatch.setattr("kimi_agent.shards.inspect.rows.CHUNK", chunk)
        assert list(map(read(path).mark, range(7))) == [" ", " ", " ", "!", " ", " ", " "]


def spoil(tensors: Tensors) -> None:
    """In the second sample of the usual two (rows 7 to 10): one value not finite, one row zero."""
    tensors["last_hidden_state"][8, 2] = 0x7F81
    tensors["aux_hidden_states"][9, 1] = 0


def test_marked_tokens_are_reached_from_either_side(make_dump: Maker) -> None:
    writer = make_dump()
    path = writer.add(change=spoil)
    rows = read(path, 1)
    assert (rows.next_bad(-1, 1), rows.next_bad(1, 1), rows.next_bad(2, 1)) == (1, 2, None)
    assert (rows.next_bad(3, -1), rows.next_bad(2, -1), rows.next_bad(1, -1)) == (2, 1, None)
    assert (rows.why(1), rows.why(2)) == ("not finite at last", "all zero at 3")
    assert [rows.mark(row) for row in range(4)] == [" ", "!", "!", " "]
    assert rows.facts("last")["heat"]["marks"] == " !! "
    assert rows.lines(1, 1, load_vocabulary(None, []))[0]["norm"][3] is None
    assert bad_by_sample(read_shard(path)).tolist() == [0, 2]


@settings(max_examples=30)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=60))
def test_histograms_count_every_value_once(values: list[float]) -> None:
    array = np.array(values, np.float32)
    usable = int((np.isfinite(array) & (array > 0)).sum())
    assert sum(histogram(array.astype(float))["counts"]) == usable
    found = value_histogram(array.reshape(-1, 1)) if len(array) else value_histogram(np.zeros((0, 4), np.float32))
    assert sum(found["counts"]) + found["zero"] + found["non_finite"] == (len(values) if len(values) <= 64 else 30)
    assert len(found["counts"]) <= BINS


def test_a_search_for_bad_samples_reads_only_suspicious_shards(make_dump: Maker, tmp_path: Path) -> None:
    writer = make_dump()
    for number in range(6):
        writer.add(change=spoil if number in (1, 4) else None)
    for number in (0, 2, 3, 5):  # the headers are right, the rows must not be looked at
        path = writer.directory / f"shard-TP0-{number:06}.safetensors"
        path.write_bytes(path.read_bytes()[:-200] + b"\xff" * 200)
    desk = Desk(tmp_path)
    where = str(writer.directory)
    found = desk.do("bad_sample", {"directory": where, "number": -1})
    assert (found["sample"]["rid"], found["sample"]["bad"], found["done"]) == ("r1-1", 2, True)
    assert desk.do("bad_sample", {"directory": where, "number": 3})["sample"]["rid"] == "r4-1"
    assert desk.do("bad_sample", {"directory": where, "number": 9, "step": -1})["sample"]["rid"] == "r1-1"
    assert desk.do("bad_sample", {"directory": where, "number": 9}) == {"sample": None, "at": 12, "done": True}
    worst = desk.do("samples", {"directory": where, "sort": "worst", "count": 2})["samples"]
    assert [(sample["rid"], sample["bad"]) for sample in worst] == [("r1-1", 2), ("r4-1", 2)]


def test_equal_rows_are_a_question_until_somebody_looks(make_dump: Maker, tmp_path: Path) -> None:
    writer = make_dump()

    def equal(tensors: Tensors) -> None:
        tensors["aux_hidden_states"][1], tensors["last_hidden_state"][1] = (
            tensors["aux_hidden_states"][0], tensors["last_hidden_state"][0],
        )  # fmt: skip

    def repeated(tensors: Tensors) -> None:
        equal(tensors)
        tensors["token_ids"][1] = tensors["token_ids"][0]

    writer.add(change=repeated)
    writer.add(change=equal)
    desk, where = Desk(tmp_path), {"directory": str(writer.directory)}
    before = desk.do("shards", where)
    assert [(shard["bad"], shard["perhaps"]) for shard in before["shards"]] == [(0, True), (0, True)]
    assert (before["bad_shards"], before["perhaps_shards"]) == (0, 2)
    assert desk.do("bad_sample", where | {"number": -1})["sample"]["rid"] == "r1-0"
    after = desk.do("shards", where)
    assert [(shard["bad"], shard["perhaps"]) for shard in after["shards"]] == [(0, False), (1, False)]
    assert (after["bad_shards"], after["perhaps_shards"]) == (1, 0)


def test_wrong_requests_are_refused_in_words(dump: Any, tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    where = str(dump.directory)
    for params, words in (
        ({"directory": where, "what": 1}, "unexpected keyword|has no what"),
        ({"directory": where, "sort": "size"}, "cannot be sorted by size"),
        ({"directory": where, "shard": "no"}, "there is no shard no"),
        ({"directory": str(tmp_path / "no")}, "does not exist"),
    ):
        with pytest.raises(UsageError, match=words):
            desk.do("samples", params)
    with pytest.raises(UsageError, match="there is no sample 7"):
        desk.do("sample", {"directory": where, "shard": "shard-TP0-000000.safetensors", "place": 7})


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_the_first_different_token_is_the_first(one: list[int], other: list[int]) -> None:
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert same_tokens(np.array(one, np.int64), np.array(other, np.int64)) == expected


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(1, 300))
def test_distances_are_those_of_the_rows(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(2, rows, HIDDEN)).astype(np.float32)
    a[rows // 2] = b[rows // 2]
    found = apart(a, b)
    assert found.cosine == pytest.approx(
        (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1), abs=1e-5
    )
    assert found.distance == pytest.approx(np.linalg.norm(a - b, axis=1) / np.linalg.norm(a, axis=1), abs=1e-5)
    assert found.equal.nonzero()[0].tolist() == [rows // 2]
    b[0] = 0
    assert apart(a, b).foreign[0]
    assert np.isnan(apart(a, b).cosine[0])


def copy_of(dump: DumpWriter, name: str, **manifest: Any) -> DumpWriter:
    return DumpWriter(dump.directory.parent / name, **manifest)


def test_a_sample_is_the_same_as_itself_and_not_as_another(dump: Any) -> None:
    first, second = sorted(dump.directory.glob("shard-*"))[:2]
    same = compare_samples(read(first), read(first))
    assert (same["same"], same["first_different"], same["compared"]) == (True, None, 7)
    assert all(entry["equal_rows"] == 7 and entry["cosine"] == pytest.approx(1) for entry in same["layers"].values())
    other = compare_samples(read(first), read(second))
    assert (other["same"], other["same_tokens"], other["compared"]) == (False, 0, 0)
    assert other["ids"] == [int(read(first).tokens[0]), int(read(second).tokens[0])]
    assert "no two rows are of the same text" in other["note"]


def test_dumps_of_other_boundaries_are_compared_at_those_that_both_have(make_dump: Maker) -> None:
    one = make_dump("one")
    other = make_dump("other", boundaries=(3, 4, 5))
    path = one.add()

    def moved(tensors: Tensors) -> None:
        held = read_shard(path)
        tensors["aux_hidden_states"][:, 0] = held.aux_hidden_states[:, 1]
        tensors["aux_hidden_states"][:, 1] = held.aux_hidden_states[:, 0]  # what the other calls 4 is the first's 2
        tensors["last_hidden_state"][:] = held.last_hidden_state
        tensors["token_ids"][:] = held.token_ids

    other.add(change=moved, boundaries=(3, 4, 5))
    found = compare_samples(read(path), read(other.directory / path.name))
    assert list(found["layers"]) == ["3", "4", "last"]
    assert [entry["same"] for entry in found["layers"].values()] == [True, False, True]
    assert (found["only_one"], found["only_other"]) == (["2"], ["5"])
    assert {name: near["layer"] for name, near in found["nearest"].items()}["2"] == "4"
    assert not found["same"]


def test_one_broken_row_is_not_the_same(dump: Any, make_dump: Maker) -> None:
    other = make_dump("other")
    other.add(change=lambda tensors: tensors["last_hidden_state"].__setitem__(3, 0))
    path = other.directory / "shard-TP0-000000.safetensors"
    found = compare_samples(read(dump.directory / path.name), read(path))
    assert (found["layers"]["last"]["foreign_rows"], found["layers"]["last"]["first_foreign"]) == (1, 3)
    assert found["layers"]["2"]["same"]
    assert not found["same"]


def test_other_hidden_sizes_leave_the_tokens(make_dump: Maker) -> None:
    one, wide = make_dump("one"), make_dump("wide", hidden_size=2 * HIDDEN)
    found = compare_samples(read(one.add()), read(wide.add(hidden=2 * HIDDEN)))
    assert found["note"] == "hidden sizes 16 and 32: only the tokens can be compared"
    assert found["nearest"] == {}


def compared(one: Path, other: Path) -> dict[str, Any]:
    pair = DumpPair(Listing(one), Listing(other))
    while pair.step():
        assert pair.as_json()["state"] != "done"
    return pair.as_json()


def test_two_dumps_are_matched_by_request_and_by_tokens(dump: Any, make_dump: Maker) -> None:
    other = make_dump("other")
    other.add()
    other.count = 1
    renamed = tuple(Sample(f"new-{place}", one.prompt_tokens, one.output_tokens, one.rows, "stop")
                    for place, one in enumerate(dump.samples()))  # fmt: skip
    other.add(renamed)
    found = compared(dump.directory, other.directory)
    assert (found["matched"], found["by_rid"], found["by_tokens"]) == (4, 2, 2)
    assert (found["only_one"], found["only_other"]) == (2, 0)
    assert (found["done"], found["different_tokens"], found["same"]) == (4, 0, True)
    assert found["nearest"] == {name: name for name in NAMES}
    assert found["layers"]["last"]["rows"] == 22


def test_a_damaged_shard_does_not_end_a_comparison(dump: Any, make_dump: Maker) -> None:
    copy = dump.directory.with_name("copy")
    shutil.copytree(dump.directory, copy)
    second = copy / "shard-TP0-000001.safetensors"
    second.write_bytes(second.read_bytes()[:-5])
    found = compared(dump.directory, copy)
    assert (found["matched"], found["done"], found["of"]) == (4, 4, 4)
    assert len(found["problems"]) == 1
    assert "truncated" in found["problems"][0]
    assert found["layers"]["2"]["cosine"] == pytest.approx(1)


def shards(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "kimi_agent", "shards", *map(str, arguments)],
                          capture_output=True, text=True, timeout=120, check=False)  # fmt: skip


def test_the_command_line_streams_pairs_and_ends_with_a_summary(dump: Any, make_dump: Maker) -> None:
    other = make_dump("other")
    other.add(change=lambda tensors: tensors["token_ids"].__setitem__(2, 9))
    done = shards("compare", dump.directory, other.directory, "--json")
    *pairs, last = map(orjson.loads, done.stdout.splitlines())
    assert done.returncode == 5
    assert [pair["pair"]["first_different"] for pair in pairs] == [2, None]
    assert last["summary"]["different_tokens"] == 1
    text = shards("compare", dump.directory, dump.directory, "--rid", "r0-0")
    assert (text.returncode, text.stdout.splitlines()[-1]) == (0, "same")


def test_show_rid_and_match_say_what_they_can(make_dump: Maker) -> None:
    writer = make_dump()
    writer.add(change=spoil)
    shown = orjson.loads(shards("show", writer.directory, "--rid", "r0-1", "--json").stdout)
    assert [(one["token"], one["why"]) for one in shown["marked"]] == [(1, "not finite at last"), (2, "all zero at 3")]
    assert shown["layers"]["3"]["zero_rows"] == 1
    match = shards("match", writer.directory)
    assert match.returncode == 5
    assert "the model's weights are needed: /nowhere/tiny, as the manifest says, is not on this host" in match.stdout
    nobody = shards("show", writer.directory, "--rid", "r9")
    assert (nobody.returncode, "there is no sample r9" in nobody.stderr) == (2, True)
