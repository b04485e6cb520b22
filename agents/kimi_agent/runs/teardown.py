"""Stopping a run: exactly its own processes, and a check that nothing of it remains."""

import asyncio
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kimi_agent.host.procfs import port_holder, run_processes, shm_segments, starttime

POLL = 0.1
KILL_WAIT = 10.0


@dataclass(slots=True)
class Footprint:
    """All that a run has been seen to hold: processes by (pid, start time) and /dev/shm segments."""

    main: int
    processes: dict[int, int] = field(default_factory=dict)
    segments: set[str] = field(default_factory=set)

    def observe(self) -> None:
        """Add what the run holds now: its descendants, its whole session, its shared memory."""
        if starttime(self.main) not in (self.processes[self.main], None):
            return  # the pid names somebody else by now, so nothing of the run is left below it
        found = run_processes(self.main)
        self.processes |= found
        self.segments |= shm_segments(found)

    def alive(self) -> list[int]:
        """The run's processes that still exist; a reused pid is not one of them."""
        return [pid for pid, ticks in self.processes.items() if starttime(pid) == ticks]


async def stop(footprint: Footprint, grace: float) -> None:
    """Ask the server to drain and end; kill what is left after `grace` seconds."""
    footprint.observe()
    _signal([footprint.main] if footprint.main in footprint.alive() else [], signal.SIGTERM)
    await _gone(footprint, grace)
    await kill(footprint)


async def kill(footprint: Footprint) -> None:
    """Kill every process of the run, also one that was stopped."""
    deadline = time.monotonic() + KILL_WAIT
    while (left := footprint.alive()) and time.monotonic() < deadline:
        footprint.observe()
        _signal(left, signal.SIGKILL)
        await asyncio.sleep(POLL)


async def _gone(footprint: Footprint, deadline: float) -> None:
    end = time.monotonic() + deadline
    while footprint.alive() and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(POLL)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def release(footprint: Footprint, port: int, sockets: Path) -> tuple[str, ...]:
    """Remove what the run left in /dev/shm and its sockets; say in words what could not be released."""
    left = [f"process {pid}" for pid in footprint.alive()]
    for segment in sorted(footprint.segments):
        path = Path(segment)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            left.append(f"{path} ({error.strerror})")
    holder = port_holder(port)
    if holder and any(f"pid {pid} " in f"{holder} " for pid in footprint.processes):
        left.append(f"port {port}, held by {holder}")
    for path in sockets.glob("*"):
        path.unlink(missing_ok=True)
    if sockets.is_dir():
        sockets.rmdir()
    return tuple(left)
