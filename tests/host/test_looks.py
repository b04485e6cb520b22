"""What a close look reads: locks, stacks, the kernel's log, downloads, file systems, proxies; on real processes."""

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kimi_agent
from kimi_agent.doctor.facts import Deep, Request
from kimi_agent.host import diskio, downloads, kernel, locks, machine, stacks
from kimi_agent.host.procfs import starttime
from kimi_console.demo.engine import Engine

WAITER = """
    import fcntl, sys, threading
    file = open(sys.argv[1], "a")
    print("ready", flush=True)
    fcntl.flock(file, fcntl.LOCK_EX)
"""


@contextmanager
def python(code: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A Python process that has printed its first line."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def look(request: Request, interpreter: str | Path = sys.executable) -> Deep:
    """The last word of a close look, made as the agent makes it."""
    done = subprocess.run(
        [interpreter, "-m", "kimi_agent.doctor.probe"], input=msgspec.json.encode(request), capture_output=True,
        check=True, timeout=30, env=os.environ | {"PYTHONPATH": str(Path(kimi_agent.__file__).parents[1])},
    )  # fmt: skip
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Deep)


def request(pid: int, directory: Path, **more: object) -> Request:
    return Request(pid, (("TP0", pid),), str(directory), "127.0.0.1", 1, **more)  # type: ignore[arg-type]


@pytest.mark.engine
def test_a_close_look_names_the_lock_its_holder_and_where_the_waiter_stands(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "module" / "lock"
    path.parent.mkdir()
    with path.open("a") as held, python(WAITER, str(path)) as process:
        fcntl.flock(held, fcntl.LOCK_EX)
        process.stdin and process.stdin.close()
        with python(WAITER, str(path)) as waiter:
            found = look(request(waiter.pid, tmp_path, environment={"TVM_FFI_CACHE_DIR": str(tmp_path)}),
                         engine.python)  # fmt: skip
    lock = found.locks[0]
    assert (lock.path, lock.own, lock.waiters) == (str(path), False, ("TP0",))
    assert lock.holder is not None
    assert lock.holder.startswith(f"pid {os.getpid()} (") or lock.holder.startswith(f"pid {process.pid} (")
    assert [stack.frames[0].partition(" ")[0] for stack in (*found.first, *found.second)] == ["<module>"] * 2
    assert found.second[0].time - found.first[0].time > 6
    assert found.unmoved("TP0") is True


def test_a_baton_that_nobody_holds_is_found_and_a_free_advisory_lock_is_not(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "free.lock").touch()
    deep = Request(os.getpid(), (), str(tmp_path), "h", 1, environment={"TORCH_EXTENSIONS_DIR": str(tmp_path)})
    found = look(deep)
    assert [(Path(lock.path).name, lock.holder) for lock in found.locks] == [("lock", None)]
    assert found.first == ()


def test_a_download_that_grows_is_seen_with_its_rate_and_its_end(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 50_000_000}}))
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(os.urandom(1_000_000))
    (tmp_path / "standing.incomplete").write_bytes(b"x" * 100)
    writer = """
        import os, sys, time
        print("ready", flush=True)
        with open(sys.argv[1], "wb") as file:
            while True:
                os.write(file.fileno(), os.urandom(100_000))
                time.sleep(0.05)
    """
    with python(writer, str(tmp_path / "shard.incomplete")) as process:
        found = look(Request(process.pid, (), str(tmp_path), "h", 1))
    (growing,) = found.growing
    assert Path(growing.path).name == "shard.incomplete"
    assert 50_000 < growing.rate < 3_000_000
    assert growing.total == 50_000_000
    assert growing.remaining is not None
    assert growing.remaining == pytest.approx((50_000_000 - (growing.present or 0)) / growing.rate)


@pytest.mark.engine
def test_a_stopped_process_shows_its_stack_and_one_that_is_gone_says_so(engine: Engine, tmp_path: Path) -> None:
    with python("import time\ndef waiting():\n    print('ready', flush=True); time.sleep(60)\nwaiting()") as process:
        os.kill(process.pid, signal.SIGSTOP)
        found = look(request(process.pid, tmp_path), engine.python)
        assert found.first[0].frames[0].startswith("waiting (")
        gone = process.pid
    assert starttime(gone) is None
    assert look(request(gone, tmp_path), engine.python).why_not("stack of TP0")


def test_the_plugins_stacks_are_read_the_innermost_first() -> None:
    text = (
        'Thread kimi-capture-control (1)\n  File "/x/control.py", line 1, in accept\n    pass\n\n'
        'Thread MainThread (2)\n  File "/a/site-packages/sglang/srt/x.py", line 5, in outer\n    inner()\n'
        '  File "/b/c/y.py", line 6, in inner\n    pass\n'
    )
    assert stacks.frames_of_plugin(text) == ("inner (c/y.py:6)", "outer (sglang/srt/x.py:5)")
    with pytest.raises(stacks.NotSeenError):
        stacks.frames_of_plugin("")


def test_the_kernels_lock_table_with_its_waiters() -> None:
    text = "1: FLOCK  ADVISORY  WRITE 12 08:01:99 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 13 08:01:99 0 EOF\nodd\n"
    assert locks.kernel_locks(text) == [
        locks.Held((8, 1, 99), 12, waits=False), locks.Held((8, 1, 99), 13, waits=True),
    ]  # fmt: skip


@given(st.text())
def test_any_text_in_the_kernels_tables_is_survived(text: str) -> None:
    locks.kernel_locks(text)
    machine.iommu_flags(text)
    kernel.xid(text)


def test_an_xid_is_read_out_of_the_drivers_line() -> None:
    assert kernel.xid("NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.") == ("0000:41:00", 79)
    assert kernel.xid("usb 1-1: new device") is None


def test_the_kernels_log_gives_what_is_new_and_telling_or_says_why_not(tmp_path: Path) -> None:
    missing = kernel.KernelLog(str(tmp_path / "none"))
    assert missing.read() == []
    assert missing.why is not None
    log = kernel.KernelLog()
    assert log.read() == []
    log.close()
    assert log.read() == []


def test_of_the_kernels_records_the_telling_ones_are_kept() -> None:
    xid = b"4,1,2,-;NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n"
    assert kernel.telling(xid) == "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus."
    assert kernel.telling(b"6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=7\n") is not None
    assert kernel.telling(b"6,1,2,-;usb 1-1: new device\n") is None


def test_the_acs_register_is_found_in_the_list_of_capabilities() -> None:
    config = bytearray(4096)
    struct.pack_into("<I", config, 0x100, 0x0001 | 1 << 16 | 0x150 << 20)
    struct.pack_into("<I", config, 0x150, 0x000D | 1 << 16)
    struct.pack_into("<H", config, 0x156, 0x001D)
    assert machine.acs_control(bytes(config)) == 0x001D
    assert machine.acs_control(b"\0" * 64) is None


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"http_proxy": "http://user:secret@proxy:3128"}, ("http_proxy", "proxy:3128")),
        ({"HTTP_PROXY": "proxy"}, ("HTTP_PROXY", "proxy")),
        ({"http_proxy": "http://proxy:1", "no_proxy": "localhost, 127.0.0.1"}, None),
        ({"ALL_PROXY": "socks5://proxy:1", "NO_PROXY": "*"}, None),
        ({"https_proxy": "http://proxy:1"}, None),
        ({}, None),
    ],
)
def test_which_proxy_a_request_to_the_server_itself_would_take(
    variables: dict[str, str], found: tuple[str, str] | None
) -> None:
    assert machine.proxy_for("127.0.0.1", variables) == found


def test_of_an_environment_only_what_is_asked_for_is_kept() -> None:
    with python("print('ready', flush=True); input()") as process:
        kept = machine.environment(process.pid, frozenset({"PATH"}))
    assert kept == {"PATH": os.environ["PATH"]}


def test_the_file_system_of_a_path_follows_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/shm")
    assert machine.file_system(str(tmp_path / "link")) == machine.file_system("/dev/shm")
    assert machine.file_system("/proc")[1] == "proc"


def test_a_sparse_partial_file_counts_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.part"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    assert downloads.sizes([path, tmp_path / "gone"])[path] < 1_000_000


def test_what_a_disk_has_given_only_grows_and_a_thread_that_sleeps_waits_for_none(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"x" * 100_000)
    before = diskio.bytes_given(str(file), [os.getpid()])
    assert before is not None
    after = diskio.bytes_given(str(file), [os.getpid()])
    assert after is not None
    assert after >= before
    assert diskio.bytes_given("/nowhere/model", [os.getpid()]) is None
    assert diskio.waiting_threads(os.getpid()) == {}


def test_the_oom_counter_counts_from_when_it_was_made() -> None:
    assert kernel.OomCounter(os.getpid()).kills() in (0, None)
