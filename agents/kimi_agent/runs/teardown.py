"""Stopping a run: exactly its own processes, and a check that nothing of it remains."""

import asyncio
import os
import shutil
import signal
import stat
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kimi_agent.host.procfs import (
    listening_ports,
    port_holder,
    read_stat,
    run_processes,
    shm_segments,
    starttime,
    with_variable,
)
from kimi_agent.model.events import GpuSample
from kimi_agent.runs.record import RUN_VARIABLE

POLL = 0.1
LOOK = 0.02
"""Seconds between two looks whether processes have stopped or ended."""
KILL_WAIT = 10.0
LEAK = 1 << 30
"""Bytes of a GPU that nobody is shown to hold: what a driver keeps for itself is less."""


@dataclass(slots=True)
class Footprint:
    """All that a run has been seen to hold: processes by (pid, start time), ports and /dev/shm segments."""

    run: str
    main: int
    processes: dict[int, int] = field(default_factory=dict)
    segments: set[str] = field(default_factory=set)
    ports: set[int] = field(default_factory=set)

    def observe(self) -> None:
        """Add what the run holds now: its descendants, its whole session, their ports and shared memory."""
        if starttime(self.main) != self.processes.get(self.main):
            return  # it is gone, or the pid names somebody else by now, so nothing of the run is left below it
        self._add(run_processes(self.main))

    def gather(self) -> None:
        """Add every process that was started for this run, also one that has left its session."""
        self._add(with_variable(RUN_VARIABLE, self.run))

    def _add(self, found: dict[int, int]) -> None:
        self.processes |= found
        self.segments |= shm_segments(found)
        self.ports |= listening_ports(found)

    def alive(self) -> list[int]:
        """The run's processes that still exist; a reused pid is not one of them."""
        return [pid for pid, ticks in self.processes.items() if starttime(pid) == ticks]


async def stop(footprint: Footprint, grace: float) -> None:
    """Ask the server to drain and end; kill what is left after `grace` seconds."""
    await _freeze(footprint)
    main = [footprint.main] if footprint.main in footprint.alive() else []
    _signal(main, signal.SIGTERM)
    _signal(main, signal.SIGCONT)
    # One that drains nothing ends at once and its ranks with it: those go on only if there is something to drain.
    await _gone(footprint, main, POLL)
    _signal(footprint.alive(), signal.SIGCONT)
    await _gone(footprint, footprint.processes, grace)
    await kill(footprint)


async def kill(footprint: Footprint) -> None:
    """Kill every process of the run, also one that was stopped."""
    footprint.gather()
    deadline = time.monotonic() + KILL_WAIT
    while footprint.alive() and time.monotonic() < deadline:
        await _freeze(footprint)
        left = footprint.alive()
        _signal(left, signal.SIGKILL)
        await _gone(footprint, left, POLL)


async def _freeze(footprint: Footprint) -> None:
    """Hold every process of the run where it is, so that none takes anything between the last look and its end."""
    footprint.gather()
    held: list[int] = []
    while held != (alive := footprint.alive()):
        held = alive
        _signal(held, signal.SIGSTOP)
        deadline = time.monotonic() + POLL
        while any(map(_runs, held)) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(LOOK)
        footprint.observe()
        footprint.gather()


def _runs(pid: int) -> bool:
    process = read_stat(pid)
    return process is not None and process.state in "RSD"


async def _gone(footprint: Footprint, pids: Container[int], seconds: float) -> None:
    """Wait until none of these processes is alive, or so long."""
    end = time.monotonic() + seconds
    while any(pid in pids for pid in footprint.alive()) and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(LOOK)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def release(footprint: Footprint, sockets: Path, scratch: Path) -> tuple[str, ...]:
    """Remove the run's shared memory, sockets and temporary files; say in words what could not be released."""
    left = [f"process {pid}" for pid in footprint.alive()]
    for segment in sorted(footprint.segments):
        path = Path(segment)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            left.append(f"{path} ({error.strerror})")
    for port in sorted(footprint.ports):
        holder = port_holder(port)
        if holder and any(f"pid {pid} " in f"{holder} " for pid in footprint.alive()):
            left.append(f"port {port}, held by {holder}")
    for directory in (sockets, scratch):
        left += _remove(directory)
    return tuple(left)


def _remove(directory: Path) -> list[str]:
    """Take a directory of this user away with all that is in it; what is in the way, in words."""
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return []
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return [f"{directory} (it is not a directory of this user)"]
    try:
        shutil.rmtree(directory)
    except OSError as error:
        return [f"{error.filename or directory} ({error.strerror})"]
    return []


def gpu_memory(gpus: Sequence[GpuSample], footprint: Footprint, used: Iterable[int]) -> tuple[str, ...]:
    """What of the GPUs' memory is still held after the run's end, in words.

    Args:
        gpus: a sample from after the end.
        footprint: of the run.
        used: the GPUs that its ranks were on.
    """
    left, ranks_on = [], set(used)
    for gpu in gpus:
        held = gpu.memory_used or 0
        for pid, size in gpu.processes:
            if pid in footprint.processes:
                left.append(f"{size / 2**30:.1f} GiB of GPU {gpu.index}, held by process {pid}")
        if gpu.index in ranks_on and not gpu.processes and held > LEAK:
            left.append(f"{held / 2**30:.1f} GiB of GPU {gpu.index}, held by no process that is shown")
    return tuple(left)
