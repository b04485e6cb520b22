"""Starting the server process and recording it; finding it again after the agent was restarted."""

import logging
import os
import shutil
import subprocess
import time
import uuid
from dataclasses import replace
from pathlib import Path

from kimi_agent.errors import KimiError, LaunchError
from kimi_agent.host.procfs import boot_id, starttime
from kimi_agent.model.events import RunStarted
from kimi_agent.paths import Home, private_dir
from kimi_agent.profile import Profile
from kimi_agent.runs import teardown
from kimi_agent.runs.plan import Plan, capture_env, scratch
from kimi_agent.runs.record import RunRecord, load, save
from kimi_agent.runs.secrets import Secrets, conceal
from kimi_agent.runs.teardown import Footprint

log = logging.getLogger(__name__)


def new_run_id() -> str:
    """A run's name: sortable by time, unique."""
    return f"run-{time.strftime('%m%d%H%M%S')}-{uuid.uuid4().hex[:6]}"


def spawn(plan: Plan, home: Home) -> tuple[RunRecord, subprocess.Popen[bytes]]:
    """Start the server in a session of its own, its output in a file of its own.

    Raises:
        LaunchError: the process cannot be created, or the run's files cannot be written; then nothing is left of it.
    """
    run = new_run_id()
    directory = private_dir(home.run(run))
    process: subprocess.Popen[bytes] | None = None
    try:
        process = _start(plan, run, home)
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
    except KimiError:
        give_up(run, process, plan, home)
        raise
    except OSError as error:
        give_up(run, process, plan, home)
        what = f"cannot write {error.filename or directory}: {error.strerror}"
        raise LaunchError(what, "Free space there, or choose another --home.") from error
    return record, process


def _start(plan: Plan, run: str, home: Home) -> subprocess.Popen[bytes]:
    directory, sockets = home.run(run), private_dir(home.run_sockets(run))
    if plan.profile.capture.enabled:
        plan.dump_root.mkdir(mode=0o700, parents=True, exist_ok=True)
    ours = capture_env(plan, run, sockets)
    if "TMPDIR" in ours:
        private_dir(Path(ours["TMPDIR"]))
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **plan.env, **ours}
    argv = conceal(plan.argv, directory)
    log = os.open(directory / "server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory, env=env, start_new_session=True
        )
    except OSError as error:
        raise LaunchError(f"cannot start {plan.argv[0]}: {error.strerror}", "Look at server.python.") from error
    finally:
        os.close(log)


def give_up(run: str, process: subprocess.Popen[bytes] | None, plan: Plan, home: Home) -> None:
    """Leave nothing of a run that was only just begun: its session has no other process yet."""
    if process is not None:
        process.kill()
        process.wait()
    teardown.release(Footprint(run, process.pid if process else 0), home.run_sockets(run), scratch(plan, run))
    shutil.rmtree(home.run(run), ignore_errors=True)


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
    """Note in the record that the run has ended and was cleaned up; where the disk is full, the next agent does."""
    try:
        save(directory, replace(record, ended=True))
    except OSError as error:
        log.warning("the end of %s could not be written down: %s", record.run, error)
