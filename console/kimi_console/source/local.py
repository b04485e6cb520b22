"""The agent on this machine: a Python with SGLang, and `kimi_agent attach` as a child process."""

import asyncio
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from kimi_agent.bundle import ensure_bundle
from kimi_agent.errors import UnavailableError, UsageError
from kimi_agent.text import clean
from kimi_console.source.client import Dial, Transport

CHECK = (
    "import sys\n"
    "from importlib.metadata import PackageNotFoundError, version\n"
    "try:\n    sglang = version('sglang')\n"
    "except PackageNotFoundError:\n    sglang = '-'\n"
    "print(*sys.version_info[:2], sglang)\n"
)
OLDEST_PYTHON = (3, 10)
PYTHON_HINT = "Give the Python that runs SGLang with --python, or in the profile as [server] python."
ANSWER_WITHIN = 60.0
"""Seconds for a Python to say what it is: a cold one on a far disk takes several."""
MAX_WORDS = 4096
"""Bytes kept of the far end's standard error."""
LAST_WORDS_WITHIN = 2.0
"""Seconds that a child which closed its standard output has to end."""


class ProcessTransport:
    """The standard input and output of a child process as a byte stream."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._words = asyncio.create_task(self._hear())

    @classmethod
    async def start(cls, argv: tuple[str, ...], env: dict[str, str]) -> "ProcessTransport":
        """Start the child in its own session, so that the terminal's Ctrl-C does not reach it.

        Raises:
            UnavailableError: the program cannot be started.
        """
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True
            )
        except OSError as error:
            raise UnavailableError(f"cannot start {argv[0]}: {error.strerror}", "Give another --python.") from error
        return cls(process)

    async def read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.read(size)

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    async def drain(self) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.drain()

    async def close(self) -> None:
        if self._process.returncode is None:
            # Not Process.kill: that would reap a child that has just ended, under the hands of asyncio's own watcher.
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._words

    async def last_words(self) -> str:
        await asyncio.wait((self._words,), timeout=LAST_WORDS_WITHIN)
        await self.close()
        return last_line(self._words.result())

    async def _hear(self) -> bytes:
        assert self._process.stderr is not None
        words = b""
        while chunk := await self._process.stderr.read(MAX_WORDS):
            words = (words + chunk)[-MAX_WORDS:]
        return words


def last_line(words: bytes) -> str:
    """The last line with text in it, safe for a terminal."""
    lines = [line.strip() for line in words.decode("utf-8", "replace").splitlines() if line.strip()]
    return clean(lines[-1]) if lines else ""


async def check_python(python: str) -> str:
    """The version of the SGLang beside an interpreter.

    Raises:
        UsageError: it is not there, is not a Python, gives no answer, is too old, or has no SGLang.
    """
    found = shutil.which(os.path.expanduser(python))  # noqa: PTH111 - a bare name must stay one
    if found is None:
        raise UsageError(f"there is no program {python} on this machine", PYTHON_HINT)
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            found, "-c", CHECK, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
    except OSError as error:
        raise UsageError(f"{python} cannot be run: {error.strerror}", PYTHON_HINT) from error
    try:
        out, _ = await asyncio.wait_for(process.communicate(), ANSWER_WITHIN)
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise UsageError(f"{python} gave no answer within {ANSWER_WITHIN:.0f} s", PYTHON_HINT) from error
    fields = out.decode("utf-8", "replace").split()
    if process.returncode != 0 or len(fields) != 3:
        raise UsageError(f"{python} is not a working Python", PYTHON_HINT)
    return require(python, f"{fields[0]}.{fields[1]}", fields[2], "this machine")


def require(python: str, version: str, sglang: str, where: str) -> str:
    """The SGLang version, when the interpreter will do.

    Raises:
        UsageError: Python is too old, or there is no SGLang (`-`).
    """
    if tuple(int(part) for part in version.split(".")) < OLDEST_PYTHON:
        raise UsageError(f"{python} on {where} is Python {version}, the agent needs 3.10 or newer", PYTHON_HINT)
    if sglang == "-":
        raise UsageError(f"{python} on {where} has no SGLang", PYTHON_HINT)
    return sglang


def attach_argv(python: str, home: str | None, read_only: bool) -> tuple[str, ...]:
    """The command line that proxies standard input and output to the agent, starting it when none runs."""
    argv = [python, "-m", "kimi_agent", "attach", "--stdio", "--start"]
    if read_only:
        argv.append("--read-only")
    if home is not None:
        argv += ["--home", home]
    return tuple(argv)


def local_dial(python: str, home: Path | None = None, *, read_only: bool = False) -> Dial:
    """Dials the agent of this machine, started with `python` when none runs."""

    async def dial() -> Transport:
        bundle = str(ensure_bundle())
        path = os.pathsep.join(filter(None, (bundle, os.environ.get("PYTHONPATH"))))
        argv = attach_argv(python, str(home.expanduser().absolute()) if home else None, read_only)
        return await ProcessTransport.start(argv, {**os.environ, "PYTHONPATH": path})

    return dial


def local_python(asked: str | None) -> str:
    """The interpreter for the agent on this machine, from the command line or the profile.

    Raises:
        UsageError: neither names one.
    """
    if asked is None:
        raise UsageError("which Python runs SGLang on this machine is not known", PYTHON_HINT)
    return asked
