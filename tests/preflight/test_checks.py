"""Preflight's checks against real files, ports, processes and locks."""

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.host.procfs import read_stat
from kimi_agent.model.events import GpuSample
from kimi_agent.preflight import host, leftovers, ports, together
from kimi_agent.preflight.check import Check
from kimi_agent.preflight.model_files import header_problem, model_checks
from kimi_agent.profile import parse
from kimi_agent.runs.plan import Plan


def plan_of(
    *flags: str, model: str = "/m", port: int = 30000, tp: int = 8, dp: int = 1, python: str = "python"
) -> Plan:
    server = {"model": model, "port": port, "tp": tp, "dp": dp, "flags": list(flags)}
    profile = parse({"server": server}, "t", "t")
    argv = (python, "--tp-size", str(tp), "--dp-size", str(dp), *flags)
    return Plan(profile, argv, {}, python, None, frozenset(), tuple(f"TP{n}" for n in range(tp)), Path("/dumps"))


def named(checks: list[Check], outcome: str) -> dict[str, str]:
    return {check.check: f"{check.message}. {check.hint}" for check in checks if check.outcome == outcome}


def shard(path: Path, tensors: int, *, cut: int = 0) -> None:
    """A safetensors file whose weights are a hole: its length is true, its content is not there."""
    size = 4 << 10
    places = {f"layer.{n}": [n * size, (n + 1) * size] for n in range(tensors)}
    header = json.dumps(
        {name: {"dtype": "U8", "shape": [size], "data_offsets": place} for name, place in places.items()}
    ).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + tensors * size - cut)


def model(directory: Path, shards: int = 3) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(
        '{"text_config": {"num_attention_heads": 64, "max_position_embeddings": 4096}}'
    )
    (directory / "tokenizer.json").write_text("{}")
    names = [f"model-{n:05d}-of-{shards:05d}.safetensors" for n in range(shards)]
    for name in names:
        shard(directory / name, 4)
    weight_map = {f"w{n}": name for n, name in enumerate(names)}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def looked(directory: Path, outcome: str) -> dict[str, str]:
    return named(model_checks(directory, tokenizer=None, trusts=False), outcome)


def test_a_whole_model_passes_and_each_damage_is_named_with_its_file(tmp_path: Path) -> None:
    whole = model(tmp_path / "whole")
    assert looked(whole, "refuse") == {}
    assert "3 weight files" in looked(whole, "ok")["model-files"]

    cut = model(tmp_path / "cut")
    shard(cut / "model-00001-of-00003.safetensors", 4, cut=5)
    words = looked(cut, "refuse")["model-files"]
    assert "model-00001-of-00003.safetensors is truncated" in words
    assert "Download" in words

    gone = model(tmp_path / "gone")
    (gone / "model-00002-of-00003.safetensors").unlink()
    assert "1 of 3 weight files" in looked(gone, "refuse")["model-files"]

    silent = model(tmp_path / "silent")
    (silent / "tokenizer.json").unlink()
    assert "no tokenizer" in looked(silent, "refuse")["tokenizer"]
    assert named(model_checks(silent, tokenizer=str(whole), trusts=False), "refuse") == {}

    garbled = model(tmp_path / "garbled")
    (garbled / "config.json").write_text('{"text_config": {')
    assert "config.json cannot be read: it is not JSON" in looked(garbled, "refuse")["model-files"]

    half = model(tmp_path / "half")
    (half / "model-00007.safetensors.incomplete").write_bytes(b"x")
    assert "1 partial download" in looked(half, "warn")["partial-download"]

    code = model(tmp_path / "code")
    (code / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["t.T", null]}}')
    assert "--trust-remote-code" in looked(code, "warn")["trust"]
    assert named(model_checks(code, tokenizer=None, trusts=True), "warn") == {}

    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no weights" in looked(empty, "refuse")["model-files"]
    made_up = model_checks(empty, tokenizer=None, trusts=False, wants_tokenizer=False, wants_weights=False)
    assert named(made_up, "refuse") == {}


@given(st.binary(max_size=200), st.integers(0, 3))
def test_any_bytes_for_a_weight_file_are_judged_and_never_raise(data: bytes, tensors: int) -> None:
    path = Path("/dev/shm") / f"kimi-header-{os.getpid()}.safetensors"
    try:
        path.write_bytes(data)
        assert header_problem(path) is not None or len(data) >= 8
        shard(path, tensors)
        assert header_problem(path) is None
        size = path.stat().st_size
        os.truncate(path, max(0, size - 1))
        assert header_problem(path) is not None
    finally:
        path.unlink(missing_ok=True)


def test_a_model_of_600_gb_is_looked_at_in_seconds(tmp_path: Path) -> None:
    large = model(tmp_path / "large", shards=120)
    for path in large.glob("*.safetensors"):
        size = 5 << 30
        header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size)
    began = time.monotonic()
    words = looked(large, "ok")["model-files"]
    assert "120 weight files, 644.2 GB" in words
    assert time.monotonic() - began < 30


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_a_taken_port_is_named_with_what_it_is_for_and_who_has_it(listener: int) -> None:
    me = f"pid {os.getpid()} ("
    words = named(ports.port_checks(plan_of("--dist-init-addr", f"node0:{listener}", "--nnodes", "2")), "refuse")
    assert f"port {listener} (--dist-init-addr) is taken by {me}" in words["port-taken"]
    second = plan_of("--dist-init-addr", f"node0:{listener}", "--nnodes", "2", "--node-rank", "1")
    assert named(ports.port_checks(second), "refuse") == {}, "only the first node listens there"
    derived = plan_of("--enable-dp-attention", port=listener - ports.DELTA - 3, dp=2)
    assert f"derived from {listener - 3}" in named(ports.port_checks(derived), "refuse")["port-taken"]
    assert "--nccl-port" in named(ports.port_checks(plan_of("--nccl-port", str(listener))), "refuse")["port-taken"]


def test_a_port_or_host_among_the_flags_is_refused_because_the_console_would_ask_elsewhere() -> None:
    words = named(ports.port_checks(plan_of("--port", "30001")), "refuse")["port-flag"]
    assert "30001" in words
    assert "30000" in words
    assert "server.port" in words
    assert named(ports.port_checks(plan_of("--port", "30000")), "refuse") == {}


@given(st.integers(1, 65535), st.one_of(st.none(), st.integers(0, 99_999)), st.booleans())
def test_derived_ports_are_ports(port: int, meeting: int | None, attention: bool) -> None:
    flags = ["--dist-init-addr", f"h:{meeting}"] if meeting is not None else []
    found = ports.wanted_ports(plan_of(*flags, *(["--enable-dp-attention"] if attention else []), port=port, dp=2))
    assert all(0 < each <= ports.LAST for each in found)


def test_ranks_that_outlived_their_server_and_another_server_are_told_apart() -> None:
    sleep = "import time, sys; print(flush=True); time.sleep(60)"
    start = (
        "import os, subprocess, sys\n"
        f"one = subprocess.Popen(['sglang::scheduler_TP1', '-c', {sleep!r}], executable=sys.executable,\n"
        "                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(one.pid, flush=True)\n"
    )
    starter = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=True)
    orphan = int(starter.stdout.split()[0])
    server = subprocess.Popen([sys.executable, "-c", sleep, "sglang.launch_server"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        words = named(leftovers.process_checks(), "warn")
        assert f"pid {orphan} (sglang::scheduler_TP1)" in words["orphans"]
        assert f"kill -9 {orphan}" in words["orphans"]
        assert f"pid {server.pid}" in words["other-server"]
        mine = leftovers.process_checks([orphan, server.pid, *leftovers.sglang_processes()])
        assert named(mine, "warn") == {}
    finally:
        os.kill(orphan, 9)
        server.kill()
        server.communicate()
    assert read_stat(server.pid) is None


def test_a_lock_that_is_held_and_one_left_behind_are_told_apart(tmp_path: Path) -> None:
    left = tmp_path / "torch_extensions" / "py311" / "k" / "lock"
    held = tmp_path / "tvm" / "k" / "lock"
    for path in (left, held):
        path.parent.mkdir(parents=True)
        path.touch()
    os.utime(left, (1, 1))
    environment = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "torch_extensions"), "HOME": str(tmp_path)}
    environment["TVM_FFI_CACHE_DIR"] = str(tmp_path / "tvm")
    hold = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, 2); print(flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", hold, str(held)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        checks = leftovers.lock_checks(environment)
        assert f"rm {left}" in named(checks, "refuse")["stale-lock"]
        assert f"{held} is held by pid {holder.pid}" in named(checks, "warn")["jit-lock"]
    finally:
        holder.kill()
        holder.communicate()
    left.unlink()
    assert named(leftovers.lock_checks(environment), "ok")


def test_a_segment_that_no_process_has_is_a_leftover() -> None:
    path = Path("/dev/shm") / f"sgl_shm_kimi_test_{os.getpid()}"
    path.write_bytes(b"x")
    try:
        assert path.name in named(leftovers.shm_checks(1), "warn")["shm-leftovers"]
    finally:
        path.unlink()


def test_gpu_memory_without_a_process_is_leaked_and_with_one_is_named() -> None:
    def gpu(index: int, used: int, *held: tuple[int, int]) -> GpuSample:
        return GpuSample(index, "H200", used, 140 << 30, 0, 80.0, 700.0, 40, 1200, 0, held)

    checks = leftovers.gpu_checks(
        [gpu(0, 70 << 30), gpu(1, 60 << 30, (4411, 60 << 30)), gpu(2, 1 << 20)], None, on_cpu=False
    )
    words = [check.message for check in checks if check.outcome == "warn"]
    assert words == [
        "GPU 0 has 70.0 GiB in use by no process that is seen from here",
        "GPU 1 has 60.0 GiB in use, by pid 4411",
    ]
    assert named(leftovers.gpu_checks([], "no NVIDIA driver on this host", on_cpu=False), "not checked") == {
        "gpu-memory": "no NVIDIA driver on this host. "
    }


@pytest.mark.parametrize(("plan", "outcome", "words"), [
    (plan_of("--nnodes", "2"), "refuse", "without --dist-init-addr"),
    (plan_of("--nnodes", "2", "--node-rank", "2", "--dist-init-addr", "h:1"), "refuse", "nodes count from 0"),
    (plan_of("--nnodes", "3", "--dist-init-addr", "h:1"), "refuse", "over 3 nodes evenly"),
    (plan_of("--enable-dp-attention", dp=3), "refuse", "does not divide 8 ranks"),
    (plan_of("--enable-dp-attention"), "warn", "does nothing with --dp-size 1"),
    (plan_of("--ep-size", "3"), "refuse", "expert parallelism of 3"),
    (plan_of("--disable-cuda-graph", "--cuda-graph-max-bs", "8"), "warn", "without effect"),
])  # fmt: skip
def test_flags_that_contradict_each_other_are_named(plan: Plan, outcome: str, words: str) -> None:
    assert words in named(together.flag_checks(plan, {}, ()), outcome)["flags"]


def test_the_model_and_the_gpus_must_fit_the_ranks(tmp_path: Path) -> None:
    made = model(tmp_path / "m")
    assert (
        "64 attention heads" in named(together.flag_checks(plan_of(model=str(made), tp=7), {}, ()), "refuse")["flags"]
    )
    longer = plan_of("--context-length", "9999", model=str(made))
    assert "4096" in named(together.flag_checks(longer, {}, ()), "warn")["flags"]
    one = GpuSample(0, "H200", 0, 1, 0, None, None, None, None, None)
    assert "need 8 GPUs, this host has 1" in named(together.flag_checks(plan_of(), {}, [one]), "refuse")["gpus"]
    chosen = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert "CUDA_VISIBLE_DEVICES names 2" in named(together.flag_checks(plan_of(), chosen, [one] * 8), "refuse")["gpus"]
    assert named(together.flag_checks(plan_of(), {}, [one] * 8), "refuse") == {}


def test_a_proxy_before_the_servers_own_address_is_named_and_no_proxy_clears_it() -> None:
    through = {"http_proxy": "http://user:pw@proxy.example:3128"}
    (check,) = host.proxy_checks("0.0.0.0", through)
    assert (check.outcome, "proxy.example:3128" in check.message, "pw" in check.message) == ("warn", True, False)
    assert "no_proxy" in check.hint
    (check,) = host.proxy_checks("127.0.0.1", through | {"no_proxy": "localhost,127.0.0.1"})
    assert check.outcome == "ok"


def test_a_compiler_is_found_and_its_version_read_and_its_absence_told(tmp_path: Path) -> None:
    checks = host.toolkit_checks(plan_of(python=str(tmp_path / "python")), {"PATH": "/nowhere"}, on_cpu=False)
    told = named(checks, "warn") | named(checks, "ok")
    assert "ninja" in told["ninja"]
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.9, V12.9.86'\n")
    nvcc.chmod(0o755)
    checks = host.toolkit_checks(plan_of(), {"CUDA_HOME": str(tmp_path), "PATH": "/nowhere"}, on_cpu=False)
    assert "nvcc 12.9" in named(checks, "ok")["toolkit"]
    assert named(host.toolkit_checks(plan_of(), {}, on_cpu=True), "not checked")


def test_too_little_room_is_told_with_the_place(tmp_path: Path) -> None:
    assert host.existing(tmp_path / "a" / "b") == tmp_path
    made = plan_of()
    checks = host.disk_checks(made, tmp_path, tmp_path / "cache")
    assert {check.check for check in checks} == {"work-disk", "dump-disk", "cache-disk"}
