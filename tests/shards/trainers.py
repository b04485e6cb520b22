"""The trainers' own published packages, beside the engine's torch, in a cache that checkouts share."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from kimi_console.demo.engine import Engine, cache_directory

PACKAGES: Final = (
    "specforge==0.2.0", "speculators==0.9.0", "hs-connectors==0.9.0", "nvidia-modelopt==0.47.0",
    # What their loaders import and the engine does not have.
    "datasets==5.1.0", "pyarrow==26.0.1", "dill==0.4.1", "multiprocess==0.70.19", "pandas==3.1.1", "pytz==2026.6",
    "python-dateutil==2.9.0.post0", "six==1.17.0", "openai==3.57.0", "distro==1.9.0", "jiter==0.19.0",
    "sniffio==1.3.1", "omegaconf==2.4.0", "antlr4-python3-runtime==4.9.3", "pyyaml==6.0.4", "pulp==3.3.2",
)  # fmt: skip


def install(engine: Engine) -> Path:
    """The directory to put on the engine's PYTHONPATH; installs the packages into it once.

    Raises:
        RuntimeError: they cannot be installed, with pip's last words.
    """
    name = hashlib.sha256("\n".join((*PACKAGES, str(engine.root.resolve()))).encode()).hexdigest()[:12]
    target = cache_directory() / f"trainers-{name}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            part = target.with_suffix(f".{os.getpid()}")
            options = ("--quiet", "--no-deps", "--no-compile", "--target", str(part))
            pip = [str(engine.python), "-m", "pip", "install", *options, *PACKAGES]
            done = subprocess.run(pip, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode:
                shutil.rmtree(part, ignore_errors=True)
                words = done.stderr.strip().rpartition("\n")[2]
                raise RuntimeError(f"The trainers' packages cannot be installed from the package index: {words}")
            part.rename(target)
    return target
