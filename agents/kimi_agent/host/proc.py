"""`ProcessSampler`: the state of every rank's process, once a second, for a few hundred microseconds of CPU."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kimi_agent.engine.titles import is_rank, name_of_title
from kimi_agent.host.procfs import (
    TICKS,
    Stat,
    boot_id,
    bytes_read,
    descendants,
    listening,
    pids,
    port_holder,
    process_tree,
    read_stat,
    read_text,
    shm_segments,
    starttime,
    title,
)
from kimi_agent.model.events import GpuSample, RankSample

__all__ = [
    "COMPILERS", "MAIN", "ProcessSampler", "boot_id", "listening", "place_on_gpus", "port_holder", "process_tree",
    "shm_segments", "starttime",
]  # fmt: skip

MAIN: Final = "main"
COMPILERS: Final = frozenset({
    "nvcc", "ninja", "cicc", "ptxas", "fatbinary", "cudafe++", "nvlink", "nvrtc", "cc1plus", "cc1", "c++", "g++",
    "gcc", "clang", "clang++", "collect2", "ld", "ld.gold", "ld.lld", "as", "hipcc", "cmake",
})  # fmt: skip
"""Processes whose presence below a rank means that kernels are being compiled: slow, not hung."""
SCAN: Final = 3.0
"""Seconds between two searches for new processes; on a large host that costs more than all the rest."""
REFRESH: Final = 30.0
"""Seconds after which every parent is read again: a pid may have been used twice."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """A process's counters at one time."""

    time: float
    stat: Stat
    read: int | None
    """Bytes read from storage since its start."""
    cpu: int
    """Clock ticks used since its start, for `main` with those of its children that have no title yet."""


class ProcessSampler:
    """Samples the processes of one server, found below its main process by their titles."""

    def __init__(self, main_pid: int) -> None:
        self._main = main_pid
        self._parents: dict[int, int] = {}
        self._tree: list[int] = []
        self._scanned = self._refreshed = float("-inf")
        self._known: dict[str, tuple[int, int]] = {}
        """Name to (pid, start time); kept after the process is gone."""
        self._before: dict[str, _Reading] = {}

    def sample(self) -> tuple[RankSample, ...]:
        """Every rank seen so far, with `main` and `detokenizer`, `main` first.

        One that has vanished stays, in state `X`. Rates are `None` the first time. A process that has no title yet,
        because it still imports SGLang, is not a rank yet; a new process is found within `SCAN` seconds.
        """
        now = time.monotonic()
        if now - self._scanned >= SCAN:
            self._scan(now)
        self._identify(self._tree)
        compiling = self._compilers(self._tree)
        names = sorted(self._known, key=lambda name: (name != MAIN, not is_rank(name), _numbers(name)))
        return tuple(self._one(name, now, compiling.get(self._known[name][0], ())) for name in names)

    def _scan(self, now: float) -> None:
        present = pids()
        if now - self._refreshed > REFRESH:
            self._parents, self._refreshed = {}, now
        self._parents = {pid: parent for pid, parent in self._parents.items() if pid in present}
        for pid in present - self._parents.keys():
            stat = read_stat(pid)
            if stat is not None:
                self._parents[pid] = stat.parent
        self._tree, self._scanned = descendants(self._main, self._parents), now

    def _identify(self, tree: Sequence[int]) -> None:
        named = {pid for pid, _ in self._known.values()}
        for pid in tree:
            if pid in named:
                continue
            name = MAIN if pid == self._main else name_of_title(title(pid))
            start = starttime(pid)
            # A title already seen is another process of it: a tokenizer's worker, or a copy between fork and exec.
            if name is not None and start is not None and name not in self._known:
                self._known[name] = (pid, start)

    def _compilers(self, tree: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """The compilers below each known process, by its pid."""
        owners = {pid for name, (pid, _) in self._known.items() if name != MAIN}
        found: dict[int, set[str]] = {}
        above: dict[int, int] = {}
        for pid in tree:
            parent = self._parents.get(pid, 0)
            owner = pid if pid in owners else above.get(parent)
            if owner is None:
                continue
            above[pid] = owner
            if pid != owner and (stat := read_stat(pid)) is not None and stat.name in COMPILERS and stat.state != "Z":
                found.setdefault(owner, set()).add(stat.name)
        return {owner: tuple(sorted(names)) for owner, names in found.items()}

    def _untitled_ticks(self) -> int:
        """What the ranks that still import SGLang have used: until they have a title they count as `main`."""
        named = {pid for pid, _ in self._known.values()}
        return sum(stat.cpu for pid in self._tree if pid not in named and (stat := read_stat(pid)) is not None)

    def _one(self, name: str, now: float, compiling: tuple[str, ...]) -> RankSample:
        pid, start = self._known[name]
        stat = read_stat(pid)
        if stat is None or stat.start != start:
            return RankSample(name, pid, "X", None, None, None, None, None, None)
        untitled = self._untitled_ticks() if name == MAIN else 0
        reading = _Reading(now, stat, bytes_read(pid), stat.cpu + untitled)
        before = self._before.get(name)
        self._before[name] = reading
        return RankSample(
            rank=name,
            pid=pid,
            # An idle kernel state and the tracing stop are what they are to a reader: asleep, stopped.
            state={"t": "T", "I": "S", "K": "S", "W": "S", "P": "S"}.get(stat.state, stat.state),
            cpu=_rate(100.0 * max(reading.cpu - before.cpu, 0) / TICKS, now - before.time) if before else None,
            rss=stat.rss,
            major_faults=_rate(stat.major_faults - before.stat.major_faults, now - before.time) if before else None,
            read_rate=_read_rate(before, reading),
            wchan=_wchan(pid),
            gpu=None,
            compiling=compiling,
        )


def _rate(difference: float, seconds: float) -> float | None:
    return round(difference / seconds, 2) if seconds > 0 else None


def _read_rate(before: _Reading | None, after: _Reading) -> float | None:
    if before is None or before.read is None or after.read is None:
        return None
    return _rate(after.read - before.read, after.time - before.time)


def _wchan(pid: int) -> str | None:
    text = (read_text(f"/proc/{pid}/wchan") or "").strip()
    return text if text not in ("", "0") else None


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def place_on_gpus(samples: Iterable[RankSample], gpus: Sequence[GpuSample]) -> tuple[RankSample, ...]:
    """The samples with the GPU on which NVML lists each process; none where it lists none (a container)."""
    where = {pid: gpu.index for gpu in gpus for pid, _ in gpu.processes}
    return tuple(replace(sample, gpu=where.get(sample.pid)) for sample in samples)
