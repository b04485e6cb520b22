"""Starting the server process and recording it; finding it again after the agent was restarted."""

import os
import subprocess
import time
import uuid
from pathlib import Path

from kimi_agent.errors import LaunchError
from kimi_agent.host.procfs import boot_id, starttime
from kimi_agent.model.events import RunStarted
from kimi_agent.paths import Home, private_dir
from kimi_agent.profile import Profile
from kimi_agent.runs.plan import Plan, capture_env
from kimi_agent.runs.record import RunRecord, load, save
from kimi_agent.runs.secrets import Secrets, conceal


def new_run_id() -> str:
    """A run's name: sortable by time, unique."""
    return f"run-{time.strftime('%m%d%H%M%S')}-{uuid.uuid4().hex[:6]}"


def spawn(plan: Plan, home: Home) -> tuple[RunRecord, subprocess.Popen[bytes]]:
    """Start the server in a session of its own, its output in a file of its own.

    Raises:
        LaunchError: the process cannot be created.
    """
    run = new_run_id()
    directory = private_dir(home.run(run))
    sockets = private_dir(home.run_sockets(run))
    if plan.profile.capture.enabled:
        plan.dump_root.mkdir(mode=0o700, parents=True, exist_ok=True)
    ours = capture_env(plan, run, sockets)
    if "TMPDIR" in ours:
        private_dir(Path(ours["TMPDIR"]))
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **plan.env, **ours}
    log = os.open(directory / "server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            conceal(plan.argv, directory),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchError(f"cannot start {plan.argv[0]}: {error.strerror}", "Look at server.python.") from error
    finally:
        os.close(log)
    record = RunRecord(
        run=run,
        pid=process.pid,
        starttime=starttime(process.pid) or 0,
        boot_id=boot_id(),
        profile=plan.profile.to_dict(),
        argv=Secrets.of(plan.argv, plan.env).hide_argv(plan.argv),
        version=plan.version,
    )
    save(directory, record)
    return record, process


def give_up(record: RunRecord, process: subprocess.Popen[bytes], home: Home) -> None:
    """End a server that was only just started: its session has no other process yet."""
    process.kill()
    process.wait()
    mark_ended(record, home.run(record.run))


def started(record: RunRecord, plan: Plan, home: Home, *, adopted: bool) -> RunStarted:
    """The event that opens a run."""
    profile: Profile = plan.profile
    return RunStarted(
        run=record.run,
        name=profile.name,
        model=profile.server.model,
        argv=record.argv,
        pid=record.pid,
        tp=profile.server.tp,
        ranks=plan.ranks,
        host=profile.server.host,
        port=profile.server.port,
        log=str(home.run(record.run) / "server.log"),
        python=plan.python,
        sglang=record.version,
        capture=profile.capture.enabled,
        layers=profile.capture.layers,
        adopted=adopted,
    )


def unfinished(home: Home) -> list[RunRecord]:
    """The records of runs that no agent has seen the end of, oldest first."""
    found = []
    for path in sorted((home.root / "runs").glob("*/run.json"), key=lambda path: path.stat().st_mtime):
        record = load(path.parent)
        if not record.ended:
            found.append(record)
    return found


def same_process(record: RunRecord) -> bool:
    """Whether the run's main process still exists: same boot, same pid, same start time."""
    return record.boot_id == boot_id() and starttime(record.pid) == record.starttime


def mark_ended(record: RunRecord, directory: Path) -> None:
    """Note in the record that the run has ended and was cleaned up."""
    save(
        directory,
        RunRecord(
            record.run, record.pid, record.starttime, record.boot_id, record.profile, record.argv, record.version, True
        ),
    )
