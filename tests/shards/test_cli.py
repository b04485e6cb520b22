"""`kimi-agent shards` as an operator and a script meet it: text, JSON, exit codes, no traceback."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from kimi_capture.format import COMMITS

from .commanding import command_here

Maker = Callable[..., Any]
FIRST = "shard-TP0-000000.safetensors"


def process(*arguments: object, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "kimi_agent", "shards", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=60, check=False,
    )  # fmt: skip


def shards(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, which has loaded already what it needs."""
    return command_here(["shards", *map(str, arguments)])


def test_a_root_and_a_dump_are_listed(make_dump: Maker, tmp_path: Path) -> None:
    for name in ("first", "second-dump"):
        make_dump(name).add()
    root = process("ls", tmp_path / "dumps")
    lines = root.stdout.splitlines()
    assert (root.returncode, root.stderr, len(lines)) == (0, "", 3)
    assert lines[0].split() == ["dump", "samples", "rows", "shards", "size", "last", "commit", "directory"]
    assert len({line.index(str(tmp_path)) for line in lines[1:]} | {lines[0].index("directory")}) == 1
    one = shards("ls", tmp_path / "dumps" / "first")
    assert one.returncode == 0
    assert (
        "boundary 3 = input of block 3 = output of block 2 · "
        "sglang_flag 3 · sglang_internal 3 · vllm 3 · specforge 2" in one.stdout
    )
    assert one.stdout.endswith("1 shard, 11 rows\n")


def test_json_is_what_the_agent_hands_to_a_console(dump: Any, tmp_path: Path) -> None:
    listed = orjson.loads(shards("ls", tmp_path / "dumps", "--json").stdout)
    assert [set(entry) for entry in listed] == [
        {"dump", "directory", "samples", "rows", "shards", "bytes", "time", "problems", "writers"}
    ]
    listing = orjson.loads(shards("ls", dump.directory, "--json").stdout)
    assert set(listing) == {"dump", "directory", "boundaries", "conventions", "shards", "more", "problems"}
    shown = orjson.loads(shards("show", dump.directory / FIRST, "--first", 1, "--json").stdout)
    assert [sample["rid"] for sample in shown["samples"]] == ["r0-1"]
    assert set(shown) >= {"shard", "tensors", "statistics", "samples", "more", "text_source"}


def test_a_shard_is_shown_by_path_by_name_and_by_default(dump: Any) -> None:
    outputs = {
        shards("show", *arguments).stdout
        for arguments in ((dump.directory / FIRST,), (dump.directory, FIRST), (dump.directory,))
    }
    assert len(outputs) == 1
    text = outputs.pop()
    assert text.startswith(FIRST)
    assert "r0-0  5 prompt + 3 output tokens, 7 rows, finished: stop" in text
    assert "text: ids only: the model /nowhere/tiny is not on this host" in text


def test_an_orphan_is_shown_as_not_committed(dump: Any) -> None:
    orphan = dump.add(commit=False)
    assert shards("show", orphan).stdout.startswith(f"{orphan.name}  NOT COMMITTED")


def test_verify_says_ok_with_counts(dump: Any) -> None:
    done = shards("verify", dump.directory)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok: 3 of 3 shards good: 33 rows, 6 samples" in done.stdout


def test_verify_names_the_file_the_fault_and_what_to_do_and_goes_on(make_dump: Maker, tmp_path: Path) -> None:
    for name in ("good", "bad"):
        writer = make_dump(name)
        for _ in range(3):
            writer.add()
    broken = tmp_path / "dumps" / "bad" / FIRST
    broken.write_bytes(broken.read_bytes()[:-1])
    done = shards("verify", tmp_path / "dumps")
    assert (done.returncode, done.stderr) == (5, "")
    assert f"  BAD  {FIRST}: has " in done.stdout
    assert "Copy it again from the host that wrote it" in done.stdout
    assert "NOT OK: 2 of 3 shards good: 22 rows, 4 samples" in done.stdout
    assert "  ok: 3 of 3 shards good" in done.stdout
    answer = orjson.loads(shards("verify", tmp_path / "dumps", "--json").stdout)
    assert answer["ok"] is False
    assert [(entry["dump"], entry["ok"], entry["bad"]) for entry in answer["dumps"]] == [
        ("bad", False, 1), ("good", True, 0),
    ]  # fmt: skip
    assert {problem["kind"] for problem in answer["dumps"][0]["shards"][0]["problems"]} == {"size", "format"}


def test_verify_lists_what_is_not_committed(dump: Any) -> None:
    dump.add(commit=False)
    text = (dump.directory / COMMITS).read_bytes()
    (dump.directory / COMMITS).write_bytes(text + b'{"shard":"shard-TP0-0000')
    done = shards("verify", dump.directory)
    assert done.returncode == 0
    assert "  –    shard-TP0-000003.safetensors: not committed, " in done.stdout
    assert "  –    commits.jsonl: its last line was cut by a crash" in done.stdout


def test_verify_shows_its_progress_on_a_terminal_and_clears_it(dump: Any) -> None:
    master, slave = pty.openpty()
    try:
        done = process("verify", dump.directory, stderr=slave)
        shown = os.read(master, 65536).decode()
    finally:
        os.close(master)
        os.close(slave)
    assert done.returncode == 0
    assert f"  {FIRST}" in shown
    assert shown.endswith("\r\x1b[K")


def test_statistics_of_a_dump(dump: Any) -> None:
    done = shards("stats", dump.directory)
    assert done.returncode == 0
    assert "33 rows of 6 samples in 3 shards, 27 prompt + 12 output tokens" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()[-5:]] == ["boundary", "2", "3", "4", "last"]
    answer = orjson.loads(shards("stats", dump.directory, "--json").stdout)
    assert list(answer["dumps"][0]["statistics"]) == ["2", "3", "4", "last"]


@pytest.mark.parametrize("command", ["ls", "show", "verify", "stats"])
def test_a_wrong_path_is_one_sentence_and_exit_2(command: str, tmp_path: Path) -> None:
    done = process(command, tmp_path / "no-such-dump")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path / "no-such-dump") in done.stderr


@pytest.mark.parametrize("command", ["show", "verify", "stats"])
def test_a_foreign_directory_is_one_sentence_and_exit_2(command: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    done = shards(command, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["ls", "verify", "stats"])
def test_a_newer_dump_says_what_to_update(dump: Any, command: str) -> None:
    (dump.directory / "manifest.json").write_text('{"version": 2}')
    done = shards(command, dump.directory)
    assert (done.returncode, done.stderr) == (5, "")
    assert "manifest version 2, this console reads 1. Update kimi-console" in done.stdout


def test_showing_a_damaged_shard_is_one_sentence_and_exit_5(dump: Any) -> None:
    (dump.directory / FIRST).write_bytes(b"x" * 100)
    done = shards("show", dump.directory / FIRST)
    assert (done.returncode, done.stdout) == (5, "")
    assert len(done.stderr.splitlines()) == 1
    assert FIRST in done.stderr


def test_a_list_without_dumps_says_so(tmp_path: Path) -> None:
    done = shards("ls", tmp_path)
    assert (done.returncode, done.stdout) == (0, f"no dumps in {tmp_path}\n")
    assert orjson.loads(shards("ls", tmp_path, "--json").stdout) == []


def test_an_empty_dump_has_nothing_to_show(make_dump: Maker) -> None:
    done = shards("show", make_dump().directory)
    assert done.returncode == 2
    assert "has no committed shard" in done.stderr
