"""What earlier servers left on the host: processes, GPU memory, shared memory, locks of kernel caches."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kimi_agent.counts import many
from kimi_agent.engine.titles import name_of_title
from kimi_agent.host import locks
from kimi_agent.host.procfs import pids, read_stat, shm_segments, title
from kimi_agent.model.events import GpuSample
from kimi_agent.preflight.check import Check, ok, refuse, unchecked, warn

SHM: Final = Path("/dev/shm")  # noqa: S108 - looked at only
SHM_ROOM: Final = 1 << 30
GPU_LEFT: Final = 1 << 30
STALE: Final = 60.0
"""Seconds for which a lock that nobody holds must have lain there to be a dead process's."""
SHOWN: Final = 4


def sglang_processes() -> dict[int, str]:
    """Every process of any SGLang server on this host, by pid, with its title's beginning."""
    found = {}
    for pid in sorted(pids()):
        words = title(pid)
        if name_of_title(words) is not None or "sglang.launch_server" in words:
            stat = read_stat(pid)
            if stat is not None and stat.state not in "ZX":
                found[pid] = words.split(" ")[0].rpartition("/")[2] if "launch_server" not in words else "launch_server"
    return found


def process_checks(own: Iterable[int] = ()) -> list[Check]:
    """Servers that run, and ranks that outlived theirs; `own` are the processes of the agent's own run."""
    known = set(own)
    found = {pid: name for pid, name in sglang_processes().items() if pid not in known}
    orphans = [pid for pid, name in found.items() if name != "launch_server" and not _has_server(pid)]
    checks = []
    if orphans:
        left = many(len(orphans), "process is", "processes are")
        checks.append(warn("orphans", f"{left} left of an SGLang server that is gone: "
                           f"{_listed([f'pid {pid} ({found[pid]})' for pid in orphans])}",
                           f"End them: kill -9 {' '.join(map(str, orphans[:8]))}"))  # fmt: skip
    servers = [pid for pid, name in found.items() if name == "launch_server" and _is_main(pid)]
    if servers:
        who = _listed([f"pid {pid}" for pid in servers])
        checks.append(warn("other-server", f"another SGLang server runs here: {who}",
                           "It shares GPUs and memory with this one: stop it unless that is meant."))  # fmt: skip
    return checks or [ok("orphans", "no process of an earlier server is left")]


def _has_server(pid: int) -> bool:
    """Whether a server's main process is above a rank."""
    seen = 0
    while pid > 1 and seen < 64:
        if "sglang.launch_server" in title(pid):
            return True
        stat = read_stat(pid)
        pid, seen = (stat.parent if stat is not None else 0), seen + 1
    return False


def _is_main(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and "sglang.launch_server" not in title(stat.parent)


def gpu_checks(gpus: Sequence[GpuSample], no_gpu: str | None, *, on_cpu: bool) -> list[Check]:
    """Memory of the GPUs that something holds."""
    if on_cpu:
        return [unchecked("gpu-memory", "this launch uses no GPU")]
    if not gpus:
        return [unchecked("gpu-memory", no_gpu or "no GPU was seen")]
    checks = []
    for gpu in gpus:
        if gpu.memory_used is None or gpu.memory_used < GPU_LEFT:
            continue
        held = [f"pid {pid}" for pid, _ in gpu.processes]
        size = f"GPU {gpu.index} has {gpu.memory_used / 2**30:.1f} GiB in use"
        if held:
            hint = "Stop those processes, or leave that GPU out."
            checks.append(warn("gpu-memory", f"{size}, by {_listed(held)}", hint))
        else:
            hint = "Look outside this container; with no process at all, reset the GPU or reboot."
            checks.append(warn("gpu-memory", f"{size} by no process that is seen from here", hint))
    return checks or [ok("gpu-memory", f"{many(len(gpus), 'GPU')}, none of them in use")]


def shm_checks(ranks: int) -> list[Check]:
    """Room in /dev/shm, and segments of servers that are gone."""
    try:
        status = os.statvfs(SHM)
    except OSError as error:
        return [unchecked("shm", f"{SHM} cannot be looked at: {error.strerror}")]
    free = status.f_bavail * status.f_frsize
    checks = []
    if free < SHM_ROOM and ranks > 1:
        checks.append(warn("shm", f"{SHM} has {free / 2**20:.0f} MiB free, and ranks exchange data through it",
                           "In a container start it with --shm-size=16g or --ipc=host; else empty it."))  # fmt: skip
    used = shm_segments(pids())
    left = sorted(str(path) for path in SHM.glob("sgl*") if str(path) not in used)
    if left:
        checks.append(warn("shm-leftovers", f"{many(len(left), 'segment')} of servers that are gone in {SHM}: "
                           f"{_listed([Path(path).name for path in left])}",
                           f"Remove them if no other container uses them: rm {' '.join(left[:SHOWN])}"))  # fmt: skip
    return checks or [ok("shm", f"{SHM} has {free / 2**30:.1f} GiB free and no leftovers")]


def lock_checks(environment: Mapping[str, str]) -> list[Check]:
    """Locks in the kernel caches: held ones make a start wait, and torch's wait for ever for a file that lies there."""
    caches = locks.cache_directories(environment)
    files = [path for cache in caches for path in locks.lock_files(cache)]
    held = locks.holders(files)
    checks = [
        warn(
            "jit-lock", f"{path} is held by {locks.name_of(pid)}", "It compiles, or hangs: wait for it or end it first."
        )
        for path, pid in sorted(held.items())[:SHOWN]
    ]
    stale = [path for path in files if path not in held and _blocks(path)]
    checks += [
        refuse("stale-lock", f"{path} was left by a process that is gone: a start would wait for it for ever",
               f"Remove it: rm {path}")
        for path in stale[:SHOWN]
    ]  # fmt: skip
    return checks or [ok("jit-lock", f"no lock is held in {len(caches)} kernel caches")]


def _blocks(path: Path) -> bool:
    """Whether the file's mere presence is the lock: torch's own way; others lock the open file."""
    return path.name == "lock" and "torch_extensions" in path.parts and locks.age(path) > STALE


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
