"""Processes as the kernel shows them: real children under SGLang's titles, stopped, killed and reaped."""

import mmap
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kimi_agent.host.proc import (
    ProcessSampler,
    boot_id,
    listening,
    place_on_gpus,
    port_holder,
    process_tree,
    shm_segments,
    starttime,
)
from kimi_agent.model.events import GpuSample, RankSample

Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts a child under a title, as setproctitle would show it; all are killed at the end."""
    children: list[subprocess.Popen[bytes]] = []

    def start(title: str, *argv: str, executable: str = "/bin/sleep") -> "subprocess.Popen[bytes]":
        child = subprocess.Popen([title, *(argv or ("600",))], executable=executable, start_new_session=True)
        children.append(child)
        # Popen returns in the middle of the exec, when the new program's command line is not there yet.
        while not Path(f"/proc/{child.pid}/cmdline").read_bytes():
            assert child.poll() is None
        return child

    yield start
    for child in children:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def states(sampler: ProcessSampler) -> dict[str, str]:
    return {sample.rank: sample.state for sample in sampler.sample()}


def one(sampler: ProcessSampler, rank: str) -> RankSample:
    return next(sample for sample in sampler.sample() if sample.rank == rank)


def test_ranks_are_found_by_their_titles_in_order(spawn: Spawn) -> None:
    for title in ("scheduler_TP10", "detokenizer", "scheduler_TP9"):
        spawn(f"sglang::{title}")
    spawn("something else")
    names = [sample.rank for sample in ProcessSampler(os.getpid()).sample()]
    assert names == ["main", "TP9", "TP10", "detokenizer"]


def test_a_stopped_rank_shows_at_once_and_runs_again(spawn: Spawn) -> None:
    rank = spawn("sglang::scheduler_TP1")
    sampler = ProcessSampler(os.getpid())
    while states(sampler)["TP1"] != "S":  # its command line is there before it runs
        assert rank.poll() is None
    os.kill(rank.pid, signal.SIGSTOP)
    os.waitpid(rank.pid, os.WUNTRACED)
    assert states(sampler)["TP1"] == "T"
    os.kill(rank.pid, signal.SIGCONT)
    os.waitpid(rank.pid, os.WCONTINUED)
    assert states(sampler)["TP1"] in "RS"


def test_a_killed_rank_is_a_zombie_until_reaped_and_then_stays_as_vanished(spawn: Spawn) -> None:
    rank = spawn("sglang::scheduler_DP0_TP1")
    sampler = ProcessSampler(os.getpid())
    sampler.sample()
    rank.kill()
    os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
    assert one(sampler, "DP0 TP1").state == "Z"
    rank.wait()
    gone = one(sampler, "DP0 TP1")
    assert (gone.state, gone.pid, gone.rss) == ("X", rank.pid, None)


def test_rates_are_unknown_at_first_and_then_measured(spawn: Spawn) -> None:
    spawn("sglang::scheduler_TP0", "-c", "while :; do :; done", executable="/bin/sh")
    sampler = ProcessSampler(os.getpid())
    first = one(sampler, "TP0")
    assert first.cpu is None
    process = psutil.Process(first.pid)
    before = process.cpu_times().user
    while process.cpu_times().user - before < 0.1:  # however small its share of a crowded machine is
        time.sleep(0.01)
    sample = one(sampler, "TP0")
    assert sample.cpu is not None
    assert sample.cpu > 0
    assert sample.major_faults == 0
    assert sample.rss


def test_a_compiler_counts_for_the_rank_above_it(spawn: Spawn, tmp_path: Path) -> None:
    shutil.copy("/bin/sleep", tmp_path / "nvcc")
    script = f"{tmp_path}/nvcc 600 & echo ready; wait"
    rank = subprocess.Popen(
        ["sglang::scheduler_TP0", "-c", script], executable="/bin/sh", stdout=subprocess.PIPE, start_new_session=True
    )
    spawn("sglang::scheduler_TP1")
    try:
        assert rank.stdout is not None
        rank.stdout.readline()
        child = psutil.Process(rank.pid).children()[0]
        while child.name() != "nvcc":  # between fork and exec
            pass
        found = {sample.rank: sample.compiling for sample in ProcessSampler(os.getpid()).sample()}
        assert (found["TP0"], found["TP1"]) == (("nvcc",), ())
    finally:
        os.killpg(rank.pid, signal.SIGKILL)
        rank.communicate()


def test_a_pid_used_again_is_not_the_same_process(spawn: Spawn) -> None:
    child = spawn("x")
    start = starttime(child.pid)
    assert start is not None
    assert abs(start / os.sysconf("SC_CLK_TCK") + psutil.boot_time() - psutil.Process(child.pid).create_time()) < 2
    child.kill()
    child.wait()
    assert starttime(child.pid) is None
    assert len(boot_id()) == 36


def test_the_tree_of_a_process(spawn: Spawn) -> None:
    child = spawn("a")
    tree = process_tree(os.getpid())
    assert tree[0] == os.getpid()
    assert child.pid in tree
    assert process_tree(child.pid) == [child.pid]
    child.kill()
    child.wait()
    assert process_tree(child.pid) == []


def test_only_segments_in_use_by_the_tree_are_listed() -> None:
    mine, other = (Path(f"/dev/shm/sglang_loads_{uuid.uuid4().hex}.shm") for _ in range(2))
    try:
        for path in (mine, other):
            path.write_bytes(bytes(4096))
        with mine.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            found = shm_segments([os.getpid()])
        assert str(mine) in found
        assert str(other) not in found
    finally:
        mine.unlink()
        other.unlink()


def test_the_semaphores_of_the_tree_are_listed() -> None:
    before = shm_segments([os.getpid()])
    lock = multiprocessing.get_context("spawn").Lock()
    found = shm_segments([os.getpid()]) - before
    assert len(found) == 1
    assert found.pop().startswith("/dev/shm/sem.mp-")
    del lock


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_who_holds_a_port(family: socket.AddressFamily) -> None:
    with socket.socket(family) as server:
        server.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        port = server.getsockname()[1]
        assert not listening(port)
        server.listen()
        assert listening(port)
        holder = port_holder(port)
        assert holder is not None
        assert holder.startswith(f"pid {os.getpid()} (")
    assert port_holder(port) is None


def test_a_rank_is_placed_on_the_gpu_that_lists_its_pid() -> None:
    gpu = GpuSample(3, "H200", None, None, None, None, None, None, None, None, ((42, 1),))
    ranks = [RankSample(f"TP{pid}", pid, "S", None, None, None, None, None, None) for pid in (41, 42)]
    assert [sample.gpu for sample in place_on_gpus(ranks, [gpu])] == [None, 3]
