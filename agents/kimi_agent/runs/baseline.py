"""Baselines: what the last good starts of the same launch took, kept by the agent over its restarts."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from kimi_agent.model.events import BaselineKnown
from kimi_agent.model.phases import PHASES
from kimi_agent.model.starts import phase_seconds
from kimi_agent.model.state import RunState
from kimi_agent.runs.plan import Plan

KEPT: Final = 8
"""Good starts that a baseline is made of, the last ones."""
IRRELEVANT: Final = frozenset({
    "--host", "--port", "--nccl-port", "--dist-init-addr", "--api-key", "--admin-api-key", "--served-model-name",
    "--log-level", "--log-level-http", "--log-requests", "--log-requests-level", "--decode-log-interval",
    "--enable-metrics", "--show-time-cost", "--watchdog-timeout", "--soft-watchdog-timeout", "--random-seed",
    "--uvicorn-access-log-exclude-prefixes",
})  # fmt: skip
"""Flags that do not change how long a start takes."""

Seconds = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class GoodStart:
    """One start that became ready; all values in seconds."""

    time: float
    """When it was launched, Unix seconds."""
    total: float
    phases: Seconds
    silences: Seconds


def recall(directory: Path, plan: Plan, run: str) -> BaselineKnown | None:
    """The last good starts of the same launch, as the measure for `run`; `None` when there were none."""
    starts = _read(_path(directory, plan))
    if not starts:
        return None
    return BaselineKnown(
        run,
        time=starts[-1].time,
        phases=_over(median, [start.phases for start in starts]),
        total=median(start.total for start in starts),
        starts=len(starts),
        slowest=_over(max, [start.phases for start in starts]),
        silences=_over(max, [start.silences for start in starts]),
    )


def learn(directory: Path, plan: Plan, run: RunState) -> None:
    """Keep a start that has become ready, with those before it; not one in which somebody stopped a process."""
    if run.ready_time is None or run.stopped:
        return
    start = GoodStart(run.time, run.ready_time - run.time, tuple(phase_seconds(run).items()), run.silences)
    directory.mkdir(mode=0o700, exist_ok=True)
    path = _path(directory, plan)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode([*_read(path), start][-KEPT:]))
    part.rename(path)


def _read(path: Path) -> list[GoodStart]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[GoodStart])
    except (OSError, msgspec.DecodeError):
        return []


def _over(measure: Callable[[list[float]], float], starts: Sequence[Seconds]) -> Seconds:
    """Each phase's value over all starts that went through it."""
    found = {phase: [seconds for start in starts for name, seconds in start if name == phase] for phase in PHASES}
    return tuple((phase, measure(values)) for phase, values in found.items() if values)


def _path(directory: Path, plan: Plan) -> Path:
    """One file a launch: model, layout, SGLang, flags and capture decide how long a start takes; the port does not."""
    server, capture = plan.profile.server, plan.profile.capture
    launch = [
        server.model, server.tp, server.dp, plan.version, sorted(relevant(server.flags)), capture.enabled,
        capture.layers,
    ]  # fmt: skip
    return directory / f"{hashlib.sha256(json.dumps(launch).encode()).hexdigest()[:16]}.json"


def relevant(flags: Iterable[str]) -> list[list[str]]:
    """The flags that decide how long a start takes, each with its values."""
    options: list[list[str]] = []
    for token in flags:
        name, separator, value = token.partition("=")
        if name.startswith("--"):
            options.append([name, value] if separator else [name])
        elif options:
            options[-1].append(token)
    return [option for option in options if option[0] not in IRRELEVANT]
