"""The index of a dump: always what the commits and the headers say, whatever happened to its file or to the dump."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_agent.shards.inspect import index as indexes
from kimi_agent.shards.inspect.index import FILE, MISSING, ROWS, DumpIndex
from kimi_agent.shards.inspect.listing import MOST, Listing, Query
from kimi_agent.shards.verify import verify
from kimi_capture.format import COMMITS, Sample, encode_commit, read_commits, read_shard

from .conftest import DumpWriter

Maker = Callable[..., Any]
ONE = settings(max_examples=10)


def whole(directory: Path, cache: Path | None = None) -> DumpIndex:
    """An index with every header in it."""
    index = DumpIndex(directory, cache)
    while index.step(1.0):
        pass
    return index


def truth(directory: Path) -> list[tuple[Any, ...]]:
    """What the shards themselves say of every committed sample."""
    rows = []
    for commit in read_commits(directory)[0]:
        meta = read_shard(directory / commit.shard).meta
        rows += [(one.rid, one.prompt_tokens, one.output_tokens, one.rows, sum(one.missing.values()))
                 for one in meta.samples]  # fmt: skip
    return rows


def told(index: DumpIndex) -> list[tuple[Any, ...]]:
    return [(rid, *numbers) for rid, numbers in zip(index.rids, index.numbers.tolist(), strict=True)]


@ONE
@given(st.lists(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), max_size=4), min_size=1, max_size=5),
       st.integers(0, 5))  # fmt: skip
def test_it_says_what_the_shards_say_however_far_it_was_when_it_was_kept(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[tuple[int, int]]], kept: int
) -> None:
    writer = DumpWriter(tmp_path_factory.mktemp("dumps") / "d")
    for lengths in shards[:kept]:
        writer.add(writer.samples(tuple(lengths)))
    if kept:
        whole(writer.directory).save(always=True)
    for lengths in shards[kept:]:
        writer.add(writer.samples(tuple(lengths)))
    index = whole(writer.directory)
    assert told(index) == truth(writer.directory)
    assert index.loaded == (writer.directory / FILE).exists()
    assert [index.shard_of(number) for number in range(len(index))] == [
        (place, within) for place, lengths in enumerate(shards) for within in range(len(lengths))
    ]


def test_the_commits_alone_name_every_sample_before_a_header_is_read(dump: Any) -> None:
    for path in dump.directory.glob("shard-*"):
        path.chmod(0o644)
    commits = read_commits(dump.directory)[0]
    (dump.directory / COMMITS).write_bytes(b"".join(
        encode_commit(type(commit)(**{name: getattr(commit, name) for name in commit.__slots__} | {"rids": rids}))
        for commit, rids in zip(commits, (("a", "b"), ("c", "d"), ()), strict=True)
    ))  # fmt: skip
    index = DumpIndex(dump.directory)
    assert index.rids == ["a", "b", "c", "d", "", ""]
    assert index.numbers[:, ROWS].tolist() == [-1] * 6
    index.need([2], 1.0)
    assert index.rids[4:] == ["r2-0", "r2-1"]
    assert index.numbers[:, ROWS].tolist() == [-1] * 4 + [7, 4]


def test_it_grows_with_the_dump_and_keeps_its_numbers(dump: Any) -> None:
    index = whole(dump.directory)
    before, version = told(index), index.version
    index.refresh()
    assert index.version == version
    dump.add()
    index.refresh()
    assert told(index)[:6] == before
    assert (len(index), index.complete) == (8, False)
    assert not index.step(1.0)
    assert told(index) == truth(dump.directory)


@ONE
@given(st.data())
def test_a_damaged_file_is_thrown_away_and_never_believed(dump: Any, data: st.DataObject) -> None:
    path = dump.directory / FILE
    path.unlink(missing_ok=True)
    whole(dump.directory).save(always=True)
    good = path.read_bytes()
    place = data.draw(st.integers(0, len(good) - 1))
    if data.draw(st.booleans()):
        path.write_bytes(good[:place])
    else:
        path.write_bytes(good[:place] + bytes([good[place] ^ (1 << data.draw(st.integers(0, 7)))]) + good[place + 1 :])
    index = whole(dump.directory)
    assert not index.loaded
    assert told(index) == truth(dump.directory)
    index.save(always=True)
    assert DumpIndex(dump.directory).loaded


def test_other_commits_than_it_was_made_of_make_it_begin_anew(dump: Any, make_dump: Maker) -> None:
    whole(dump.directory).save(always=True)
    lines = (dump.directory / COMMITS).read_bytes().splitlines(keepends=True)
    (dump.directory / COMMITS).write_bytes(lines[0] + lines[2])  # as a repair leaves it
    index = whole(dump.directory)
    assert told(index) == truth(dump.directory)
    other = make_dump("other")
    for _ in range(5):  # longer than what the index was made of, so that only the hash tells
        other.add(other.samples(((9, 1), (8, 2))))
    (other.directory / FILE).write_bytes((dump.directory / FILE).read_bytes())
    assert told(whole(other.directory)) == truth(other.directory)


def test_a_shard_that_is_committed_again_is_read_again(dump: Any) -> None:
    index = whole(dump.directory)
    dump.count = 1
    dump.add((Sample("again", 3, 2, 4, "stop"),))
    index.refresh()
    while index.step(1.0):
        pass
    assert told(index) == truth(dump.directory)
    assert index.rids == ["r0-0", "r0-1", "again", "r2-0", "r2-1"]


def test_a_dump_that_cannot_be_written_is_indexed_in_the_cache(
    dump: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    index = whole(dump.directory, cache)
    (dump.directory / FILE).mkdir()  # nothing can be renamed onto it, not even by root
    where = index.save(always=True)
    assert where is not None
    assert where.parent == cache
    assert DumpIndex(dump.directory, cache).loaded
    assert not list(dump.directory.glob("*.tmp"))


def test_damaged_shards_are_named_and_the_rest_is_there(dump: Any) -> None:
    first, second, third = sorted(dump.directory.glob("shard-*"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-7])
    data = bytearray(third.read_bytes())
    data[third.read_bytes().index(b"r2-0")] ^= 1
    third.write_bytes(data)
    dump.add()
    listing = Listing(dump.directory)
    answer = listing.samples(Query(sort="worst"), 0, 100)
    while listing.index.step(1.0):
        pass
    answer = listing.samples(Query(sort="worst"), 0, 100)
    problems = " ".join(answer["problems"])
    for words in ("is committed, but the file is not there", "bytes, ", "its hash does not match"):
        assert words in problems
    assert [bool(sample["problem"]) for sample in answer["samples"]] == [True] * 6 + [False] * 2
    assert answer["known"] == answer["shard_count"] == 4


def test_lines_that_are_no_commits_are_counted(dump: Any) -> None:
    with (dump.directory / COMMITS).open("ab") as file:
        file.write(b'{"shard":"../x","bytes":1,"rows":1,"samples":1,"xxh3":"","time":1}\n{"no":1}\n{"shard":"torn')
    listing = Listing(dump.directory)
    assert "2 lines cannot be read" in listing.problems()[0]
    assert len(listing.index) == 6


@ONE
@given(search=st.sampled_from(["", "R1", "-0"]), first=st.integers(-3, 9), count=st.integers(0, 9))
def test_a_page_is_that_part_of_the_sorted_and_searched_whole(dump: Any, search: str, first: int, count: int) -> None:
    listing = Listing(dump.directory)
    while listing.index.step(1.0):
        pass
    rows = [(number, *row) for number, row in enumerate(truth(dump.directory)) if search.lower() in str(row[0])]
    keys: dict[str, Callable[[tuple[Any, ...]], int]] = {
        "order": lambda row: row[0], "rows": lambda row: -row[4], "missing": lambda row: -row[5],
    }  # fmt: skip
    for sort, key in keys.items():
        for way in (1, -1):
            expected = sorted(rows, key=key)[::way]
            answer = listing.samples(Query(sort, way < 0, search), first, count)
            assert [sample["rid"] for sample in answer["samples"]] == [
                row[1] for row in expected[max(first, 0) :][:count]
            ]
            assert (answer["matched"], answer["total"]) == (len(rows), 6)


def test_the_worst_come_first_and_the_dump_says_what_is_usual(make_dump: Maker) -> None:
    writer = make_dump()
    for _ in range(4):
        writer.add()

    def zero(tensors: dict[str, Any]) -> None:
        tensors["last_hidden_state"][1] = 0

    def large(tensors: dict[str, Any]) -> None:
        tensors["aux_hidden_states"][:, 1] = (
            (tensors["aux_hidden_states"][:, 1].astype(np.uint32) << 16).view(np.float32) * 8
        ).view(np.uint32) >> 16

    writer.add(change=zero)
    writer.add(change=large)
    listing = Listing(writer.directory)
    while listing.index.step(1.0):
        pass
    answer = listing.shards(Query(sort="worst"), 0, 10)
    assert [shard["shard"][-13] for shard in answer["shards"][:2]] == ["4", "5"]
    assert answer["shards"][0]["bad"] == 1
    assert 2.7 ** answer["shards"][1]["deviation"] == pytest.approx(8, rel=0.2)
    assert answer["bad_shards"] == 1
    samples = listing.samples(Query(sort="worst"), 0, 10)["samples"]
    assert [sample["perhaps"] for sample in samples[:3]] == [True, True, False]
    assert answer["layers"]["2"]["rms"] == pytest.approx(1, rel=0.1)


def test_an_answer_is_bounded_whatever_is_asked_for(make_dump: Maker) -> None:
    writer = make_dump()
    writer.add(writer.samples(((2, 1),) * (MOST + 50)))
    assert len(Listing(writer.directory).samples(Query(), 0, 10**9)["samples"]) == MOST


def test_an_index_is_no_foreign_file_of_a_dump(dump: Any) -> None:
    whole(dump.directory).save(always=True)
    assert [entry.file for entry in verify(dump.directory).uncommitted] == []


def test_a_complete_index_is_written_again_once_a_tenth_of_it_is_new(make_dump: Maker) -> None:
    writer = make_dump()
    for _ in range(20):
        writer.add()
    index = whole(writer.directory)
    assert index.save() == writer.directory / FILE
    assert index.save() is None
    for expected in (None, writer.directory / FILE):
        writer.add()
        index.refresh()
        index.step(1.0)
        assert index.save() == expected
    assert indexes.SAVE_SHARE == 0.1
    assert index.numbers[:, MISSING].max() == 0
