"""Builds the engine: a virtual environment with the real SGLang for the CPU, its shims and tiny models.

    python -m kimi_console.demo.engine [--link .engine]

An engine lives in the user's cache under the hash of its recipe, so every checkout with the same recipe shares
one, and a changed recipe builds another. It counts as built once its marker file exists; anything without the
marker is a half-built engine, which the next build removes. Only the standard library is used, since this runs
before anything is installed.
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TextIO

from kimi_agent.errors import Exit, KimiError, UnavailableError

RECIPE: Final = Path(__file__).with_name("recipe")
MODELS: Final = ("tiny-kimi25", "tiny-kimi", "tiny-llama")
NEEDS_BYTES: Final = 7 << 30
"""Free space that a build needs, in bytes."""
BEAT_S: Final = 15.0
"""Seconds between two lines of progress where no terminal can rewrite one."""
_TELLING: Final = ("Collecting ", "Downloading ", "Using cached ", "Processing ", "Installing ")
"""How the lines of pip begin that say what it does."""
_SKIP: Final = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache"})


class EngineError(KimiError):
    """The engine could not be built."""

    slug = "engine"


@dataclass(frozen=True, slots=True)
class Engine:
    """A built engine and where its parts are; `.engine` in a checkout is a link to `root`."""

    root: Path

    @property
    def python(self) -> Path:
        """The interpreter that has SGLang."""
        return self.root / "bin" / "python"

    @property
    def models(self) -> Path:
        """The directory of the tiny models, one directory each."""
        return self.root / "models"

    @property
    def shims(self) -> Path:
        """The directory that a server on a CPU needs on its PYTHONPATH."""
        return self.root / "shims"

    @property
    def complete(self) -> bool:
        """Whether the build ended and its interpreter still exists."""
        return self._marker.is_file() and self.python.is_file()

    @property
    def _marker(self) -> Path:
        return self.root / ".complete"

    def mark_complete(self) -> None:
        """Declare the engine built."""
        self._marker.touch()


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a build."""

    title: str
    argv: tuple[str, ...]


def recipe_hash(recipe: Path = RECIPE) -> str:
    """Twelve hex digits that change with any name or byte of the recipe."""
    digest = hashlib.sha256()
    files = (file for file in recipe.rglob("*") if file.is_file() and not _SKIP.intersection(file.parts))
    for name, file in sorted((file.relative_to(recipe).as_posix(), file) for file in files):
        data = file.read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:12]


def cache_directory() -> Path:
    """Where engines are kept: `kimi-console` in the user's cache directory."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(configured) if configured.startswith("/") else Path.home() / ".cache") / "kimi-console"


def wanted_engine(recipe: Path = RECIPE) -> Engine:
    """The engine that the recipe describes, built or not."""
    return Engine(cache_directory() / f"engine-{recipe_hash(recipe)}")


class Progress:
    """Says what a build does and for how long: one line rewritten on a terminal, else a line now and then."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._began = self._last = time.monotonic()
        self._open = False

    def say(self, text: str) -> None:
        """A line that stays."""
        self._end_line()
        self._out.write(f"{text}\n")
        self._out.flush()
        self._last = time.monotonic()

    def beat(self, title: str, detail: str) -> None:
        """What goes on now; called as often as the caller likes."""
        text = f"{title}: {detail}" if detail else title
        now = time.monotonic()
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._out.write(f"\r\x1b[K{self.elapsed()}  {text}"[: width + len("\r\x1b[K")])
            self._out.flush()
            self._open = True
        elif now - self._last >= BEAT_S:
            self.say(f"{self.elapsed()}  {text}")

    def elapsed(self) -> str:
        """Time since the start, as m:ss."""
        seconds = int(time.monotonic() - self._began)
        return f"{seconds // 60}:{seconds % 60:02d}"

    def _end_line(self) -> None:
        if self._open:
            self._out.write("\r\x1b[K")
            self._open = False


def build_engine(progress: Progress, recipe: Path = RECIPE) -> Engine:
    """The engine of the recipe, built if it is not there yet.

    Raises:
        UnavailableError: no room, or this Python cannot make virtual environments.
        EngineError: a step failed; the message names it and its log.
    """
    engine = wanted_engine(recipe)
    if engine.complete:
        return engine
    engine.root.parent.mkdir(parents=True, exist_ok=True)
    with _locked(engine.root.with_suffix(".lock"), progress) as lock:
        if engine.complete:
            return engine
        _remove(engine.root)
        _check_room(engine.root.parent)
        log = engine.root.with_suffix(".log")
        progress.say(f"Building the engine in {engine.root}: about 6 GB and a few minutes, once. Log: {log}")
        try:
            _build(engine, recipe, log, progress, lock)
        except BaseException:
            _remove(engine.root)
            raise
        progress.say(f"{progress.elapsed()}  The engine is ready.")
    return engine


def link(engine: Engine, at: Path) -> None:
    """Make `at` a symbolic link to the engine; it never is absent or points to a half-made place meanwhile.

    Raises:
        UnavailableError: something that is not a link is in the way.
    """
    if at.exists() and not at.is_symlink():
        raise UnavailableError(f"{at} is not a link", "Move it away, then try again.", slug="engine")
    fresh = at.with_name(f"{at.name}.{os.getpid()}")
    fresh.symlink_to(engine.root, target_is_directory=True)
    fresh.replace(at)


def _build(engine: Engine, recipe: Path, log: Path, progress: Progress, lock: int) -> None:
    shutil.copytree(recipe / "shims", engine.shims, ignore=shutil.ignore_patterns(*_SKIP))
    steps = _steps(engine, recipe)
    log.write_bytes(b"")
    for number, step in enumerate(steps, start=1):
        title = f"{number}/{len(steps)} {step.title}"
        progress.say(f"{progress.elapsed()}  {title}")
        code = _run(step, engine, log, partial(progress.beat, title), lock)
        if code:
            raise EngineError(
                f"Building the engine failed while {step.title} (exit {code})", f"The reason is at the end of {log}."
            )
    engine.mark_complete()


def _steps(engine: Engine, recipe: Path) -> list[Step]:
    pip = (str(engine.python), "-m", "pip", "install", "--progress-bar=off", "--no-input", "--no-cache-dir")
    torch, rest = recipe / "requirements-torch.txt", recipe / "requirements.txt"
    return [
        Step("making a virtual environment", (sys.executable, "-m", "venv", str(engine.root))),
        Step("installing torch", (*pip, "-r", str(torch))),
        Step("installing SGLang", (*pip, "--no-deps", "-r", str(rest))),
        Step("making the tiny models", (str(engine.python), str(recipe / "make_models.py"), str(engine.models))),
        Step("checking it", (str(engine.python), str(recipe / "check.py"))),
    ]


def _run(step: Step, engine: Engine, log: Path, beat: Callable[[str], None], lock: int) -> int:
    """Run one command with its output at the end of `log`; its exit code. It shares the build's `lock`."""
    environment = os.environ | {"PYTHONPATH": str(engine.shims), "PYTHONDONTWRITEBYTECODE": "1"}
    start = log.stat().st_size
    environment |= {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with (
        log.open("ab") as out,
        subprocess.Popen(
            step.argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=(lock,),
        ) as process,
    ):
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(timeout=0.5)
                beat(_detail(log, start))
        except BaseException:
            process.terminate()
            raise


def _detail(log: Path, start: int) -> str:
    """What pip does now, from its log beyond byte `start`; empty when that says nothing of interest."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - 8192))
        lines = file.read().decode(errors="replace").splitlines()
    telling = [line.split(" (", 1)[0].strip() for line in lines if line.lstrip().startswith(_TELLING)]
    return telling[-1][:100] if telling else ""


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[int]:
    """Hold the build lock at `path`; says so when another build holds it.

    Yields its file descriptor. The lock ends with the last process that has it: given to a build's commands, it
    keeps the next build waiting for a command that outlived a killed build and may still write.
    """
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            progress.say(f"Another build of the same engine is running (pid {file.read().strip()}); waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield file.fileno()


def _check_room(directory: Path) -> None:
    if importlib.util.find_spec("ensurepip") is None:
        raise UnavailableError(
            f"{sys.executable} cannot make virtual environments",
            "On Debian: apt-get install python3-venv, then try again.",
            slug="engine",
        )
    free = shutil.disk_usage(directory).free
    if free < NEEDS_BYTES:
        raise UnavailableError(
            f"The engine needs {NEEDS_BYTES / 2**30:.0f} GiB in {directory}, which has {free / 2**30:.1f} GiB free",
            "Make room, or set XDG_CACHE_HOME to a directory on a larger disk.",
            slug="engine",
        )


def _remove(root: Path) -> None:
    if root.exists():
        shutil.rmtree(root)


def main(argv: list[str] | None = None) -> int:
    """Command line of this module; progress on stderr, the engine's directory on stdout."""
    parser = argparse.ArgumentParser(prog="python -m kimi_console.demo.engine", description="Build the demo's engine.")
    parser.add_argument("--link", type=Path, metavar="PATH", help="make PATH a symbolic link to the engine")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        engine = build_engine(Progress(sys.stderr))
        if options.link is not None:
            link(engine, options.link)
    except KimiError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted; the half-built engine is removed.\n")
        return Exit.INTERRUPTED
    sys.stdout.write(f"{engine.root}\n")
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
