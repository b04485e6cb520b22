"""Baselines: what the last good start of the same launch took, kept by the agent over its restarts."""

import hashlib
import json
from pathlib import Path

import msgspec

from kimi_agent.model.events import BaselineKnown
from kimi_agent.model.starts import phase_seconds
from kimi_agent.model.state import RunState
from kimi_agent.runs.plan import Plan


def recall(directory: Path, plan: Plan, run: str) -> BaselineKnown | None:
    """The last good start of the same launch, as the measure for `run`; `None` when there was none."""
    try:
        kept = msgspec.json.decode(_path(directory, plan).read_bytes(), type=BaselineKnown)
    except (OSError, msgspec.DecodeError):
        return None
    return BaselineKnown(run, kept.time, kept.phases, kept.total)


def learn(directory: Path, plan: Plan, run: RunState) -> None:
    """Keep a start that has become ready."""
    if run.ready_time is None:
        return
    kept = BaselineKnown(run.started.run, run.time, tuple(phase_seconds(run).items()), run.ready_time - run.time)
    directory.mkdir(mode=0o700, exist_ok=True)
    path = _path(directory, plan)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(kept))
    part.rename(path)


def _path(directory: Path, plan: Plan) -> Path:
    """One file a launch: model, layout, SGLang, flags and capture decide how long a start takes; the port does not."""
    server, capture = plan.profile.server, plan.profile.capture
    launch = [server.model, server.tp, server.dp, plan.version, sorted(server.flags), capture.enabled, capture.layers]
    return directory / f"{hashlib.sha256(json.dumps(launch).encode()).hexdigest()[:16]}.json"
