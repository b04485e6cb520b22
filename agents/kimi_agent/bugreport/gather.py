"""What goes into a bundle, as it is found: log, events, verdict, stacks, versions and facts of the host."""

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec

from kimi_agent import __version__
from kimi_agent.bundle import build_id
from kimi_agent.engine import flags
from kimi_agent.errors import KimiError, UsageError
from kimi_agent.host.machine import file_system, iommu_flags, iommu_groups
from kimi_agent.host.memory import memory
from kimi_agent.host.procfs import read_text, run_processes, starttime
from kimi_agent.host.stacks import all_stacks
from kimi_agent.model.events import (
    AgentStarted,
    BaselineKnown,
    CaptureReported,
    Event,
    HostSampled,
    LogLines,
    RanksSampled,
    ThroughputSampled,
    VerdictChanged,
)
from kimi_agent.paths import Home
from kimi_agent.runs.plugin import socket_of
from kimi_agent.runs.record import RunRecord, load
from kimi_agent.wire.codec import WireError, decode_event, encode_event

LOG_HEAD: Final = 256 << 10
LOG_TAIL: Final = 4 << 20
EVENTS_READ: Final = 16 << 20
"""Bytes of the journal, from its end, in which a run's events are looked for."""
EVENTS_KEPT: Final = 3000
LATEST: Final = (
    AgentStarted,
    BaselineKnown,
    CaptureReported,
    HostSampled,
    RanksSampled,
    ThroughputSampled,
    VerdictChanged,
)
"""Of these the last one is shown by itself: what the doctor rested on."""
FAST: Final = ("ranks", "host", "throughput")
"""Kinds that come every second; of these only the last hundreds are kept."""
FAST_KEPT: Final = 300


def find_run(home: Home, run: str | None) -> RunRecord | None:
    """The record of a run, or of the newest; `None` when there has been none.

    Raises:
        UsageError: there is no such run.
    """
    runs = home.root / "runs"
    if run is not None:
        if Path(run).name != run or not (runs / run / "run.json").is_file():
            raise UsageError(f"there is no run {run} below {runs}", "List them: ls that directory.")
        return load(runs / run)
    records = sorted(runs.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
    return load(records[-1].parent) if records else None


def log_pieces(path: Path, head: int = LOG_HEAD, tail: int = LOG_TAIL) -> Iterator[str]:
    """A log's beginning and end as whole lines, in pieces; what lies between is counted."""
    try:
        file = path.open("rb")
    except OSError as error:
        yield f"the log cannot be read: {error.strerror}\n"
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        if size <= head + tail:
            yield from _text(file.read(size).split(b"\n"))
            return
        first = file.read(head)
        first = first[: first.rfind(b"\n") + 1]
        yield from _text(first.split(b"\n"))
        file.seek(size - tail)
        file.readline()
        start = file.tell()
        yield f"[{start - len(first)} bytes are left out here]\n"
        yield from _text(file.read(size - start).split(b"\n"))


def _text(lines: list[bytes]) -> Iterator[str]:
    for place, line in enumerate(lines):
        end = "\n" if place + 1 < len(lines) else ""
        yield line.decode("utf-8", "replace").replace("\r", "\n") + end


def events_of(home: Home, run: str | None) -> list[Event]:
    """The end of the journal, without log lines and without most of what comes every second."""
    raw: list[bytes] = []
    room = EVENTS_READ
    for path in sorted(home.journal.glob("*.ndjson"), reverse=True):
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > room:
                file.seek(size - room)
                file.readline()
            raw = file.read(room).split(b"\n") + raw
        room -= min(size, room)
        if room <= 0:
            break
    found = [event for line in raw if line and (event := _event(line)) is not None]
    return [event for event in found if run is None or getattr(event.body, "run", run) in (run, None)]


def _event(line: bytes) -> Event | None:
    try:
        event = decode_event(line)
    except WireError:
        return None  # the last line of a journal that is being written may be half
    return None if isinstance(event.body, LogLines) else event


def thinned(events: list[Event]) -> list[dict[str, Any]]:
    """The last events as plain objects; those that come every second only from the end."""
    plain: list[dict[str, Any]] = [msgspec.json.decode(encode_event(event)) for event in events]
    fast = [one for one in plain if one["k"] in FAST][-FAST_KEPT:]
    slow = [one for one in plain if one["k"] not in FAST][-EVENTS_KEPT:]
    return sorted([*fast, *slow], key=lambda one: one["seq"])


def latest(events: list[Event]) -> dict[str, Any]:
    """The last event of each kind that the doctor rests on, by kind."""
    found: dict[str, Any] = {}
    for event in events:
        if isinstance(event.body, LATEST):
            one = msgspec.json.decode(encode_event(event))
            found[one["k"]] = {"time": one["t"], **one["d"]}
    return found


def versions(record: RunRecord | None) -> dict[str, Any]:
    """Versions of everything that has a part in it."""
    python = record.argv[0] if record is not None and record.argv else sys.executable
    found: dict[str, Any] = {
        "kimi-console": __version__, "build": build_id(), "agent python": platform.python_version(),
        "sglang": record.version if record is not None else None, "kernel": platform.release(),
        "system": _system(), "libc": " ".join(platform.libc_ver()), "driver": read_text("/proc/driver/nvidia/version"),
    }  # fmt: skip
    try:
        place = flags.package(python)
    except KimiError as error:
        return found | {"packages": f"not checked: {error.message}"}
    wanted = (
        "torch",
        "sgl_kernel",
        "flashinfer_python",
        "triton",
        "transformers",
        "nvidia_nccl_cu12",
        "nvidia_nccl_cu13",
    )
    if place is not None:
        installed = [path.name.removesuffix(".dist-info") for path in place.parent.glob("*.dist-info")]
        found["packages"] = sorted(name for name in installed if name.partition("-")[0].lower() in wanted)
    return found


def _system() -> str:
    for line in (read_text("/etc/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return platform.system()


def host_facts(home: Home, record: RunRecord | None) -> dict[str, Any]:
    """Facts of the host that a diagnosis needs."""
    total, used = memory()
    server = record.profile.get("server") if record is not None else None
    model = str(server.get("model")) if isinstance(server, dict) else None
    return {
        "cpus": os.cpu_count(), "memory": {"total": total, "used": used}, "load": read_text("/proc/loadavg"),
        "iommu": {"flags": iommu_flags(read_text("/proc/cmdline") or ""), "groups": iommu_groups()},
        "cgroup": {name: read_text(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current", "events")},
        "disks": {place: _disk(Path(place)) for place in ("/dev/shm", str(home.root))},  # noqa: S108 - looked at only
        "model storage": file_system(model) if model else None,
    }  # fmt: skip


def _disk(path: Path) -> dict[str, int] | str:
    try:
        status = os.statvfs(path)
    except OSError as error:
        return f"not checked: {error.strerror}"
    return {"free": status.f_bavail * status.f_frsize, "total": status.f_blocks * status.f_frsize}


def stacks_of(home: Home, record: RunRecord | None) -> dict[str, str]:
    """The stacks of every process of a run that is alive, by pid; in words where they cannot be had."""
    if record is None or starttime(record.pid) != record.starttime:
        return {"none": "the run has ended: there are no stacks\n"}
    sockets = home.run_sockets(record.run)
    return {str(pid): all_stacks(pid, socket_of(sockets, pid)) for pid in sorted(run_processes(record.pid))}


def about_run(record: RunRecord) -> dict[str, Any]:
    """The run's record: command line, profile, process."""
    return asdict(record)
