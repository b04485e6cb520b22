"""Lock files of kernel caches and who has them: the kernel's own table, and which processes hold a file open."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kimi_agent.host.procfs import open_files, pids, read_stat, read_text

CACHES: Final[tuple[tuple[str, str], ...]] = (
    ("TORCH_EXTENSIONS_DIR", "~/.cache/torch_extensions"),
    ("TVM_FFI_CACHE_DIR", "~/.cache/tvm-ffi"),
    ("FLASHINFER_WORKSPACE_BASE", "~/.cache/flashinfer"),
    ("TRITON_CACHE_DIR", "~/.triton/cache"),
    ("SGLANG_DG_CACHE_DIR", "~/.cache/deep_gemm"),
    ("HF_HOME", "~/.cache/huggingface"),
)
"""(variable that moves it, where it is otherwise) of the caches in which kernels are compiled under a lock."""
CACHE_VARIABLES: Final = frozenset({"HOME", "XDG_CACHE_HOME", *(variable for variable, _ in CACHES)})
DEPTH: Final = 5
MOST: Final = 20_000
"""Directory entries looked at in one cache; a larger one is not worth the time."""
_BATON: Final = "lock"
"""The name that torch and tvm-ffi give; the file's being there is the lock of torch."""


@dataclass(frozen=True, slots=True)
class Held:
    """A line of /proc/locks."""

    inode: tuple[int, int, int]
    """(major, minor, inode)."""
    pid: int
    waits: bool


def kernel_locks(text: str) -> list[Held]:
    """The locks in the text of /proc/locks; a line that is not understood is left out."""
    found = []
    for line in text.splitlines():
        fields = line.split()
        waits = len(fields) > 1 and fields[1] == "->"
        fields = [fields[0], *fields[2:]] if waits else fields
        if len(fields) < 6 or fields[5].count(":") != 2:
            continue
        major, minor, inode = fields[5].split(":")
        try:
            found.append(Held((int(major, 16), int(minor, 16), int(inode)), int(fields[4]), waits))
        except ValueError:
            continue
    return found


def cache_directories(environment: Mapping[str, str]) -> list[Path]:
    """The kernel caches of a server with these variables that exist."""
    home = environment.get("HOME") or str(Path.home())
    found = []
    for variable, default in CACHES:
        place = environment.get(variable) or default.replace("~", home, 1)
        if Path(place).is_dir():
            found.append(Path(place))
    return found


def lock_files(directory: Path) -> Iterator[Path]:
    """The lock files in a cache, a few levels deep."""
    todo, seen = [(str(directory), 0)], 0
    while todo:
        place, depth = todo.pop()
        try:
            entries = list(os.scandir(place))
        except OSError:
            continue
        seen += len(entries)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if depth < DEPTH and seen < MOST:
                    todo.append((entry.path, depth + 1))
            elif entry.name == _BATON or entry.name.endswith(".lock"):
                yield Path(entry.path)


def holders(paths: Iterable[Path]) -> dict[Path, int]:
    """The process that has each file open, where one is seen; the kernel's own lock table goes first."""
    inodes: dict[tuple[int, int], Path] = {}
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        inodes[status.st_dev, status.st_ino] = path
    if not inodes:
        return {}
    found: dict[Path, int] = {}
    for held in kernel_locks(read_text("/proc/locks") or ""):
        device = os.makedev(held.inode[0], held.inode[1])
        locked = inodes.get((device, held.inode[2]))
        if not held.waits and held.pid > 0 and locked is not None:
            found.setdefault(locked, held.pid)
    names = {str(path): path for path in inodes.values()}
    for pid in sorted(pids()):
        for target in open_files(pid):
            if target in names:
                found.setdefault(names[target], pid)
    return found


def waiting(pids_of: Mapping[int, str]) -> dict[tuple[int, int, int], list[str]]:
    """The names of the processes that the kernel lists as blocked on a lock, by the lock's inode."""
    found: dict[tuple[int, int, int], list[str]] = {}
    for held in kernel_locks(read_text("/proc/locks") or ""):
        if held.waits and held.pid in pids_of:
            found.setdefault(held.inode, []).append(pids_of[held.pid])
    return found


def inode_of(path: Path) -> tuple[int, int, int] | None:
    """A file's identity as /proc/locks spells it; `None` when it is gone."""
    try:
        status = path.stat()
    except OSError:
        return None
    return os.major(status.st_dev), os.minor(status.st_dev), status.st_ino


def age(path: Path) -> float:
    """Seconds since a file was written; 0 when it is gone."""
    try:
        return max(time.time() - path.stat().st_mtime, 0.0)
    except OSError:
        return 0.0


def name_of(pid: int) -> str:
    """`pid 123 (name)`."""
    stat = read_stat(pid)
    return f"pid {pid} ({stat.name})" if stat is not None else f"pid {pid}"
