"""The host: disks, proxies, and what compiling kernels needs."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kimi_agent.engine import flags
from kimi_agent.host.machine import proxy_for
from kimi_agent.host.procfs import read_text
from kimi_agent.preflight.check import Check, ok, refuse, unchecked, warn
from kimi_agent.runs.plan import Plan

GIB: Final = 1 << 30
PROBE_DEADLINE: Final = 3.0
LEAST_DRIVER: Final = {"13": 580, "12": 525, "11": 450}
"""CUDA's major version to the oldest driver that runs it."""
_RELEASE = re.compile(r"release (\d+)\.(\d+)")
_DRIVER = re.compile(r"Kernel Module[^\d]*(\d+)\.[\d.]+")
_TORCH_CUDA = re.compile(r"^cuda\b[^=]*= ['\"](\d+)\.(\d+)['\"]", re.MULTILINE)


def existing(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def disk_checks(plan: Plan, work: Path, cache: Path) -> list[Check]:
    """Room for dumps, for the agent's own files and for compiled kernels."""
    keep = plan.profile.capture.keep_free_gib
    places = [("work-disk", work, 1.0, "the agent's logs and journal")]
    if plan.profile.capture.enabled:
        places.append(("dump-disk", plan.dump_root, keep, "dumps, which pause before less than that is free"))
    places.append(("cache-disk", cache, 2.0, "compiled kernels"))
    return [_room(name, path, need, what) for name, path, need, what in places]


def _room(name: str, path: Path, need: float, what: str) -> Check:
    place = existing(path)
    try:
        status = os.statvfs(place)
    except OSError as error:
        return unchecked(name, f"{place} cannot be looked at: {error.strerror}")
    free = status.f_bavail * status.f_frsize
    if status.f_files and not status.f_favail:
        return refuse(name, f"the file system of {place} takes no more files", "Remove files there.")
    if free < need * GIB:
        hint = f"Free space, or choose another place; {need:g} GiB are wanted for {what}."
        words = f"{place} has {free / GIB:.2f} GiB free"
        return refuse(name, words, hint) if free < 64 << 20 and name == "work-disk" else warn(name, words, hint)
    return ok(name, f"{place} has {free / GIB:.1f} GiB free")


def proxy_checks(host: str, environment: Mapping[str, str]) -> list[Check]:
    """Variables that send SGLang's own warm-up request to a proxy."""
    own = "127.0.0.1" if host in ("0.0.0.0", "", "::") else host  # noqa: S104 - what the server listens on
    found = proxy_for(own, environment)
    if found is None:
        return [ok("proxy", f"no proxy stands between the server and itself ({own})")]
    return [warn("proxy", f"{found[0]} sends the server's own warm-up request through {found[1]}",
                 f"Set no_proxy = \"localhost,127.0.0.1,{own}\" in the profile's [env].")]  # fmt: skip


def toolkit_checks(plan: Plan, environment: Mapping[str, str], *, on_cpu: bool) -> list[Check]:
    """The compiler, ninja and driver that kernels compiled at start need."""
    if on_cpu:
        return [unchecked("toolkit", "this launch uses no GPU, so no GPU kernel is compiled")]
    return [_nvcc(environment), _ninja(plan.python, environment), _driver(plan, environment)]


def _nvcc(environment: Mapping[str, str]) -> Check:
    homes = [environment.get("CUDA_HOME"), environment.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [Path(home) / "bin" / "nvcc" for home in homes if home]
    on_path = shutil.which("nvcc", path=environment.get("PATH"))
    found = next((path for path in [*places, *([Path(on_path)] if on_path else [])] if os.access(path, os.X_OK)), None)
    if found is None:
        return warn("toolkit", "there is no nvcc: kernels that SGLang compiles at start fail or fall back",
                    "Install the CUDA toolkit and set CUDA_HOME in the profile's [env].")  # fmt: skip
    try:
        done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=PROBE_DEADLINE,
                              stdin=subprocess.DEVNULL, check=False)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return unchecked("toolkit", f"{found} did not say its version: {type(error).__name__}")
    release = _RELEASE.search(done.stdout)
    return ok("toolkit", f"nvcc {release[1]}.{release[2]} at {found}" if release else f"nvcc at {found}")


def _ninja(python: str, environment: Mapping[str, str]) -> Check:
    beside = Path(python).parent / "ninja"
    if os.access(beside, os.X_OK) or shutil.which("ninja", path=environment.get("PATH")):
        return ok("ninja", "ninja is there")
    return warn("ninja", f"there is no ninja on the path or beside {python}: kernels cannot be compiled at start",
                f"Install it: {python} -m pip install ninja")  # fmt: skip


def _driver(plan: Plan, environment: Mapping[str, str]) -> Check:
    text = read_text("/proc/driver/nvidia/version")
    driver = _DRIVER.search(text or "")
    if driver is None and Path("/dev/nvidiactl").exists():
        return unchecked("driver", "an NVIDIA driver is there, but /proc/driver/nvidia does not tell its version")
    if driver is None:
        return warn("driver", "this host has no NVIDIA driver", "Install it, or add --device cpu to [server] flags.")
    package = flags.package(plan.python, environment) if plan.version else None
    version = read_text(str(package.parent / "torch" / "version.py")) if package is not None else None
    cuda = _TORCH_CUDA.search(version or "")
    if cuda is None:
        return unchecked("driver", f"driver {driver[1]}; which CUDA torch was built for could not be read")
    least = LEAST_DRIVER.get(cuda[1])
    if least is not None and int(driver[1]) < least:
        return refuse("driver", f"driver {driver[1]} is too old for torch's CUDA {cuda[1]}.{cuda[2]}",
                      f"Update the driver to {least} or newer.")  # fmt: skip
    return ok("driver", f"driver {driver[1]} runs torch's CUDA {cuda[1]}.{cuda[2]}")
