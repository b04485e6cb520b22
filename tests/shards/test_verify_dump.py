"""What a dump's own files say: its commits, its manifest, what lies beside the shards."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kimi_agent.errors import UsageError
from kimi_agent.shards.verify import DumpResult, verify
from kimi_capture.format import COMMITS, MANIFEST

Maker = Callable[..., Any]


def kinds(result: DumpResult) -> dict[str, set[str]]:
    """The kinds of problems of each bad shard."""
    return {shard.shard: {problem.kind for problem in shard.problems} for shard in result.shards if shard.problems}


def texts(result: DumpResult) -> str:
    """All that is said about the dump, as one text."""
    problems = [*result.problems, *(problem for shard in result.shards for problem in shard.problems)]
    return "\n".join(str(problem) for problem in problems)


def test_files_that_are_not_committed_are_listed_and_no_error(dump: Any) -> None:
    orphan = dump.add(commit=False)
    (dump.directory / ".shard-TP0-000004.safetensors.tmp").write_bytes(b"half")
    (dump.directory / "notes.txt").write_text("mine")
    result = verify(dump.directory)
    assert result.ok
    assert {entry.file: entry.kind for entry in result.uncommitted} == {
        orphan.name: "not committed",
        ".shard-TP0-000004.safetensors.tmp": "being written",
        "notes.txt": "foreign",
    }


def test_a_torn_last_commit_line_is_reported_and_no_error(dump: Any) -> None:
    text = (dump.directory / COMMITS).read_bytes()
    (dump.directory / COMMITS).write_bytes(text[:-10])
    result = verify(dump.directory)
    assert result.ok
    assert result.dump.torn
    assert [shard.shard[-18:] for shard in result.shards] == ["000000.safetensors", "000001.safetensors"]
    assert [entry.kind for entry in result.uncommitted] == ["not committed"]


def test_a_torn_only_commit_line_is_reported(make_dump: Maker) -> None:
    writer = make_dump()
    (writer.directory / COMMITS).write_bytes(b'{"shard":"sha')
    assert verify(writer.directory).dump.torn


@pytest.mark.parametrize("line", [b"garbage", b"[" * 100_000, b'{"shard":"x"}', b"{}", b"\xff\xfe", b"null", b"7"])
def test_a_commit_line_that_cannot_be_read_is_a_problem_and_the_rest_is_checked(dump: Any, line: bytes) -> None:
    text = (dump.directory / COMMITS).read_bytes()
    (dump.directory / COMMITS).write_bytes(line + b"\n" + text)
    result = verify(dump.directory)
    assert len(result.shards) == 3
    assert "commits.jsonl: 1 of 4 lines cannot be read" in texts(result)


def test_a_commit_with_a_field_of_the_wrong_type_is_a_problem(dump: Any) -> None:
    lines = (dump.directory / COMMITS).read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"time": "noon"})
    (dump.directory / COMMITS).write_text("\n".join(lines) + "\n")
    result = verify(dump.directory)
    assert len(result.shards) == 2
    assert "1 of 3 lines cannot be read" in texts(result)


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        (None, "manifest.json: is missing"),
        (b"{", "manifest.json: the manifest is not JSON"),
        (b"[]", "manifest.json: the manifest is not a JSON object"),
        (b'{"version": 2}', "manifest.json: manifest version 2, this console reads 1. Update kimi-console"),
        (b'{"version": 1}', "manifest.json: the manifest lacks or has too much of something"),
    ],
)
def test_a_bad_manifest_is_named_and_the_shards_are_checked_still(dump: Any, manifest: bytes | None, says: str) -> None:
    if manifest is None:
        (dump.directory / MANIFEST).unlink()
    else:
        (dump.directory / MANIFEST).write_bytes(manifest)
    (dump.directory / "shard-TP0-000002.safetensors").unlink()
    result = verify(dump.directory)
    assert says in texts(result)
    assert kinds(result) == {"shard-TP0-000002.safetensors": {"missing"}}


@pytest.mark.parametrize(
    "change",
    [{"model": []}, {"dtype": []}, {"hidden_size": "16"}, {"conventions": 3}, {"argv": 3}, {"boundaries": "x"}],
)
def test_a_manifest_with_a_field_of_the_wrong_type_is_a_problem(dump: Any, change: dict[str, Any]) -> None:
    path = dump.directory / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    result = verify(dump.directory)
    assert [problem.file for problem in result.problems] == [MANIFEST]
    assert kinds(result) == {}


def test_progress_runs_from_nothing_to_all(dump: Any) -> None:
    calls: list[tuple[int, int, str]] = []
    verify(dump.directory, lambda done, total, shard: calls.append((done, total, shard)))
    sizes = [path.stat().st_size for path in sorted(dump.directory.glob("*.safetensors"))]
    assert [done for done, _, _ in calls] == [sum(sizes[:count]) for count in range(4)]
    assert {total for _, total, _ in calls} == {sum(sizes)}


def test_what_is_not_a_dump_is_a_usage_error(tmp_path: Path) -> None:
    for path, says in ((tmp_path / "no", "does not exist"), (tmp_path, "is not a dump")):
        with pytest.raises(UsageError, match=says):
            verify(path)
