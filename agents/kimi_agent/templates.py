"""What runs `kimi-agent run` elsewhere: a systemd unit, a Slurm job script, a container's recipe, filled in."""

import shlex
import shutil
import sys
from pathlib import Path

from kimi_agent.bundle import build_id, ensure_bundle
from kimi_agent.errors import UsageError
from kimi_agent.paths import Home, private_dir
from kimi_agent.profile import Profile

SYSTEMD = """\
# {name}: an SGLang server, launched and watched by kimi-agent. As a user: put this file into ~/.config/systemd/user/,
# run `loginctl enable-linger` once, then `systemctl --user enable --now {unit}`.
[Unit]
Description=SGLang server of the profile {name}, watched by kimi-agent
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
ExecStart={command}
# The agent starts the server again by itself; systemd is there for the agent. 2 is a wrong profile: no use to repeat.
Restart=on-failure
RestartSec=15
RestartPreventExitStatus=2
# SIGTERM lets the dump and the server end in order; what is left after that is killed.
KillMode=mixed
TimeoutStopSec={stop}
LimitMEMLOCK=infinity
LimitNOFILE=1048576
UMask=0077

[Install]
WantedBy=default.target
"""

SLURM = """\
#!/bin/bash
# {name}: an SGLang server as a Slurm job: sbatch {unit}.sh
#SBATCH --job-name={unit}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
#SBATCH --output=%x-%j.log
#SBATCH --time=24:00:00
# So many seconds before the time is up the dump and the server are ended in order, as they are by
#   scancel --batch --signal=TERM JOB
# A plain scancel does the same, but kills what is left after Slurm's KillWait, 30 s unless the site set it: the dump
# is committed by then; a server with requests in flight may still be draining.
#SBATCH --signal=B:TERM@{warning}
set -euo pipefail
echo "on $(hostname): kimi-console connect $(hostname)"
# exec: Slurm's signals go to the agent's own command.
exec {command}
"""

CONTAINER = """\
# {name}: SGLang with kimi-agent in one container. The agent is beside this file as the directory kimi:
#   cp -r {bundle} kimi
#   docker build -t kimi-{unit} -f Containerfile .
#   docker run --rm --init --gpus all --ipc=host --ulimit memlock=-1 --stop-timeout {stop} \\
#     -v {profile}:/profile.toml:ro -v MODELS:MODELS:ro -v DUMPS:DUMPS -v kimi-state:/state kimi-{unit}
# --init ends what is left to pid 1; paths in the profile are those inside the container. podman takes the same words.
# With -v DIR:/state, DIR short, the same user attaches from outside: kimi-agent status --home DIR.
ARG SGLANG=lmsysorg/sglang:v0.5.23
FROM ${{SGLANG}}
COPY kimi /opt/kimi
ENV PYTHONPATH=/opt/kimi KIMI_AGENT_HOME=/state PYTHONDONTWRITEBYTECODE=1
VOLUME /state
STOPSIGNAL SIGTERM
ENTRYPOINT ["python3", "-m", "kimi_agent", "run", "--restart", "failed", "--end-agent", "--json"]
CMD ["/profile.toml"]
"""

KINDS = {"systemd": SYSTEMD, "slurm": SLURM, "container": CONTAINER}
STOP_MARGIN = 60
"""Seconds that a stop takes beside the profile's own grace: a dump is committed, leftovers are looked for."""
SLURM_EARLY = 60
"""Seconds by which Slurm may be off when it sends a job its warning."""


def fill(kind: str, profile: Profile, file: Path, home: Home) -> str:
    """One of KINDS for a profile; the agent is kept in its home, where no newer build takes it away.

    Raises:
        UsageError: a name or path cannot be written into such a file.
    """
    bundle = str(keep_bundle(home))
    command = [
        "/usr/bin/env", f"PYTHONPATH={bundle}", profile.server.python or sys.executable, "-m", "kimi_agent", "run",
        "--restart", "failed", "--end-agent", "--home", str(home.root), str(file.absolute()),
    ]  # fmt: skip
    words = [profile.name, *command]
    if any(not word.isprintable() for word in words):
        raise UsageError("the profile's name or a path holds a control character", "Rename it.")
    unit = "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "-" for char in profile.name)
    stop = int(profile.limits.stop_grace) + STOP_MARGIN
    quoted = systemd_quoted if kind == "systemd" else shlex.quote
    return KINDS[kind].format(
        name=profile.name,
        unit=f"kimi-{unit}" if kind != "container" else unit,
        bundle=shlex.quote(bundle),
        profile=shlex.quote(str(file.absolute())),
        command=" ".join(map(quoted, command)),
        gpus=max(profile.server.tp, 1),
        stop=stop,
        warning=stop + SLURM_EARLY,
    )


def systemd_quoted(word: str) -> str:
    """One word of a unit file, in which systemd expands nothing."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def keep_bundle(home: Home) -> Path:
    """A copy of the bundle in the agent's home."""
    place = private_dir(private_dir(home.root) / "lib") / build_id()
    if not place.is_dir():
        part = place.with_name(f".{place.name}")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(ensure_bundle(), part, ignore=shutil.ignore_patterns("__pycache__"))
        part.rename(place)
    return place
