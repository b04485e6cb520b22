"""What is asked of a file or a host and answered in words: how it is, and a bundle for a bug report."""

import asyncio
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from kimi_agent.errors import KimiError, UsageError
from kimi_console.headless.bundle import bundle_from
from kimi_console.headless.diagnose import Report, is_file, report_file, report_host
from kimi_console.headless.terminal import terminal_handler
from kimi_console.hosts import host_settings
from kimi_console.source.base import PIPE
from kimi_console.source.fetch import taken_out
from kimi_console.source.questions import Questions


def diagnose_target(target: str, python: str | None, config: Path | None) -> Report:
    """A report of a file, of what is piped in (`-`), or of a host over SSH.

    Raises:
        KimiError: it cannot be read or reached.
    """
    if target == PIPE and sys.stdin.isatty():
        raise UsageError("standard input is a terminal", "Pipe a server's log into it, or give a file or a host.")
    if target == PIPE or Path(target).is_fifo():
        with TemporaryDirectory(prefix="kimi-") as place:
            return report_file(_kept(target, Path(place)))
    if is_file(target):
        return report_file(Path(target))
    from kimi_console.remote.dial import ssh_dial  # noqa: PLC0415 - asyncssh costs 0.2 s

    questions, python = Questions(terminal_handler()), python or host_settings(target).python
    return asyncio.run(report_host(ssh_dial(target, python, config, read_only=True, questions=questions)))


def _kept(source: str, place: Path) -> Path:
    """All that is piped in, in a file: it is looked at more than once."""
    file = place / ("standard-input" if source == PIPE else Path(source).name)
    try:
        with sys.stdin.buffer if source == PIPE else Path(source).open("rb") as pipe, file.open("wb") as kept:
            shutil.copyfileobj(pipe, kept)
    except OSError as error:
        what = f"cannot keep what comes from {source}: {error.strerror}"
        raise KimiError(what, f"Free space in {place.parent}, or set TMPDIR.") from error
    return file


def bundle_host(host: str, run: str | None, output: Path | None, python: str | None, config: Path | None) -> str:
    """Bring a bundle from a host over SSH; where it is and what was taken out, in words.

    Raises:
        KimiError: the host cannot be reached, or the file cannot be written.
    """
    from kimi_console.remote.dial import ssh_dial  # noqa: PLC0415 - asyncssh costs 0.2 s

    questions, python = Questions(terminal_handler()), python or host_settings(host).python
    dial = ssh_dial(host, python, config, questions=questions)
    path, removed = asyncio.run(bundle_from(dial, host, run, output))
    return f"{path}  taken out: {taken_out(removed)}"
