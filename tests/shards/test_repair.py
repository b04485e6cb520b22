"""`kimi-agent shards repair`: what a crash or a bad disk left becomes a dump that verifies, and nothing is hidden."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from kimi_agent.shards.repair import repair
from kimi_agent.shards.verify import verify
from kimi_capture.directory import QUARANTINE, HeldError, WriterLock, hold_directory
from kimi_capture.format import COMMITS, Commit, read_commits

Maker = Callable[..., Any]


def shards(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kimi_agent", "shards", *map(str, arguments)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def check_repaired(directory: Path) -> None:
    """It verifies, nothing unknown lies in it, and another repair changes no byte."""
    result = verify(directory)
    assert result.ok, result
    assert result.uncommitted == ()
    assert not result.dump.torn
    before = contents(directory)
    again = repair(directory)
    assert (again.ok, again.removed, again.committed, again.quarantined, again.lost) == (True, (), (), (), ())
    assert contents(directory) == before


def test_a_good_dump_is_left_as_it_is(dump: Any) -> None:
    before = contents(dump.directory)
    done = shards("repair", dump.directory)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1:] == ["  ok: 3 shards, 33 rows are committed"]
    assert contents(dump.directory) == before


def test_what_a_killed_writer_left_is_cleaned_up(dump: Any) -> None:
    whole, cut = dump.add(commit=False), dump.add(commit=False)
    cut.write_bytes(cut.read_bytes()[:-1])
    (dump.directory / ".shard-TP0-000005.safetensors.tmp").write_bytes(b"half")
    (dump.directory / ".manifest.json.77.tmp").write_bytes(b"{")
    (dump.directory / ".shard-TP0.lock").write_text('{"pid": 77, "host": "gpu-1", "run": "r"}')
    with (dump.directory / COMMITS).open("ab") as file:
        file.write(b'{"shard":"shard-TP0-0000')
    done = shards("repair", dump.directory)
    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout
    assert "process 77 on gpu-1 was killed while it wrote" in text
    assert ".shard-TP0-000005.safetensors.tmp: was not finished, removed" in text
    assert f"{whole.name}: whole, committed now" in text
    assert f"{cut.name}: moved into quarantine" in text
    assert "ok: 4 shards, 44 rows are committed" in text
    assert (dump.directory / QUARANTINE / cut.name).exists()
    assert read_commits(dump.directory)[0][-1].rids == ("r3-0", "r3-1")
    check_repaired(dump.directory)


def test_committed_shards_that_are_damaged_or_gone_are_told_by_request(dump: Any) -> None:
    paths = sorted(dump.directory.glob("*.safetensors"))
    named = dump.add(commit=False)
    dump.commit(Commit(named.name, named.stat().st_size, 11, 2, "0" * 16, 1.0, ("named-a", "named-b")))
    flipped = bytearray(paths[0].read_bytes())
    flipped[-1] ^= 1
    paths[0].write_bytes(flipped)
    named.unlink()
    done = shards("repair", dump.directory, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (answer,) = orjson.loads(done.stdout)["dumps"]
    lost = {entry["shard"]: entry for entry in answer["lost"]}
    assert lost[paths[0].name]["rids"] == ["r0-0", "r0-1"]
    assert (lost[paths[0].name]["rows"], lost[paths[0].name]["samples"]) == (11, 2)
    assert "its bytes changed" in lost[paths[0].name]["problem"]
    assert lost[named.name]["rids"] == ["named-a", "named-b"]
    assert (dump.directory / QUARANTINE / paths[0].name).read_bytes() == flipped
    kept = (dump.directory / QUARANTINE / "lost.jsonl").read_bytes().splitlines()
    assert [orjson.loads(line)["shard"] for line in kept] == [paths[0].name, named.name]
    assert [commit.shard for commit in read_commits(dump.directory)[0]] == [path.name for path in paths[1:]]
    check_repaired(dump.directory)


def test_unreadable_and_double_lines_are_taken_out_but_kept(dump: Any) -> None:
    file = dump.directory / COMMITS
    _, *rest = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"\x00garbage\x00\n" + b"".join(rest) + rest[0])
    done = shards("repair", dump.directory)
    assert done.returncode == 0
    assert "shard-TP0-000000.safetensors: whole, committed now" in done.stdout  # its own line was the garbage
    assert b"\x00garbage\x00\n" in (dump.directory / QUARANTINE / "lines.jsonl").read_bytes()
    assert {commit.shard for commit in read_commits(dump.directory)[0]} == {
        f"shard-TP0-{number:06}.safetensors" for number in range(3)
    }
    check_repaired(dump.directory)


def test_a_request_that_the_dump_has_is_not_taken_in_twice(dump: Any) -> None:
    dump.count = 0
    twin = dump.directory / "shard-TP0-000009.safetensors"
    (dump.directory / "shard-TP0-000000.safetensors").rename(dump.directory / "away")
    dump.add(commit=False).rename(twin)
    (dump.directory / "away").rename(dump.directory / "shard-TP0-000000.safetensors")
    assert repair(dump.directory).quarantined == (twin.name,)
    check_repaired(dump.directory)


def test_another_dump_s_shard_is_not_taken_in(dump: Any) -> None:
    foreign = dump.add(commit=False, dump="another")
    assert repair(dump.directory).quarantined == (foreign.name,)
    check_repaired(dump.directory)


def test_a_dump_that_is_being_written_is_not_touched(dump: Any) -> None:
    hold = hold_directory(dump.directory, exclusive=False)
    lock = WriterLock(dump.directory, "shard-TP0-", "run-a")
    unfinished = dump.directory / ".shard-TP0-000003.safetensors.tmp"
    unfinished.write_bytes(b"half")
    before = contents(dump.directory)
    done = shards("repair", dump.directory)
    assert (done.returncode, done.stderr) == (5, "")
    assert f"NOT TOUCHED: {dump.directory} is held by process {os.getpid()} on " in done.stdout
    assert contents(dump.directory) == before
    lock.release()
    os.close(hold)
    assert repair(dump.directory).removed == (unfinished.name,)


def test_a_list_says_who_writes_and_who_was_killed(dump: Any) -> None:
    lock = WriterLock(dump.directory, "shard-TP0-", "run-a")
    dead = subprocess.Popen(["true"])
    dead.wait()
    holder = {"pid": dead.pid, "host": socket.gethostname(), "run": "run-a"}
    (dump.directory / ".shard-DP1-TP0.lock").write_bytes(orjson.dumps(holder))
    listed = shards("ls", dump.directory.parent)
    assert listed.returncode == 0
    assert f"– d1: process {os.getpid()} on {socket.gethostname()} writes into it" in listed.stdout
    assert f"– d1: process {dead.pid} on {socket.gethostname()} was killed while it wrote" in listed.stdout
    lock.release()


def test_two_writers_cannot_have_one_part_of_a_dump(dump: Any) -> None:
    lock = WriterLock(dump.directory, "shard-TP0-", "run-a")
    with pytest.raises(HeldError, match=f"process {os.getpid()} on "):
        WriterLock(dump.directory, "shard-TP0-", "run-b")
    WriterLock(dump.directory, "shard-DP1-TP0-", "run-a").release()
    lock.release()
    WriterLock(dump.directory, "shard-TP0-", "run-b").release()
    assert list(dump.directory.glob(".*.lock")) == []


def test_faults_of_the_capture_are_no_crash_damage(make_dump: Maker) -> None:
    """Bytes that are as they were written stay, whatever they hold; the dump is still not all right."""
    writer = make_dump()

    def zero(tensors: Any) -> None:
        tensors["aux_hidden_states"][3] = 0

    writer.add(change=zero)
    before = contents(writer.directory)
    done = shards("repair", writer.directory)
    assert done.returncode == 5
    assert "row of boundary 2 is all zero" in done.stdout
    assert contents(writer.directory) == before


def test_a_dump_without_a_manifest_cannot_be_repaired(dump: Any) -> None:
    (dump.directory / "manifest.json").unlink()
    before = contents(dump.directory)
    done = shards("repair", dump.directory)
    assert (done.returncode, done.stderr) == (5, "")
    assert "manifest.json: is missing" in done.stdout
    assert contents(dump.directory) == before
