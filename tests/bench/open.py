"""How long a person waits for a screen: from starting `kimi-console` in a terminal to the first thing worth reading.

    python tests/bench/open.py [BYTES] [--keep DIRECTORY]

A log of BYTES (2 GB without) is made of the lines of the real logs in tests/logs: a start, then the batch lines of a
server under load. Each command runs in a pseudo-terminal of 120 x 40 that answers what a terminal is asked; times are
wall times from before the program is started, memory is the largest of the console's and its importer's.
"""

import argparse
import fcntl
import gzip
import os
import platform
import pty
import random
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import psutil
import zstandard

CONSOLE: Final = (sys.executable, "-m", "kimi_console")
LOG: Final = Path(__file__).parent.parent / "logs" / "h200-kimi-width-graph-capture-ready.log"
PATIENCE: Final = 120.0
COLUMNS, ROWS = 120, 40
PACKED: Final = 200_000_000
"""Bytes of the log that is packed: what gzip unpacks is not to be waited for either."""
TRIES: Final = 3
KEYS: Final = 10
SETTLED: Final = 20.0
"""Seconds after which the keys are tried again."""
FIRST_LINES: Final = "RLIMIT_NOFILE"
"""Words of the sixth line."""
SCROLLS: Final = (("\x1b[6~", "Init parallel begin"), ("\x1b[H", FIRST_LINES))
"""A page down from the first lines, and back to them."""
_ESCAPES: Final = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
SECOND: Final = 600
"""Lines of the log in a second of the server's life."""


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *arguments: str | Path, home: Path, stdin: int | None = None) -> None:
        self.began = time.perf_counter()
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", HOME=str(home))
            for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "KIMI_AGENT_HOME"):
                os.environ.pop(name, None)
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            if stdin is not None:
                os.dup2(stdin, 0)
            os.execv(CONSOLE[0], [*CONSOLE, *map(str, arguments)])
        self.bytes = b""

    def until(self, wanted: str, patience: float = PATIENCE) -> float:
        """Seconds from the start until the screen has been sent a text since the last key.

        Raises:
            TimeoutError: it was not.
        """
        pattern = re.compile(wanted.encode())
        deadline = time.perf_counter() + patience
        while time.perf_counter() < deadline:
            if select.select([self._file], [], [], 0.01)[0]:
                try:
                    self.bytes += os.read(self._file, 1 << 16)
                except OSError:
                    break
            if pattern.search(_ESCAPES.sub(b"", self.bytes)):
                return time.perf_counter() - self.began
        raise TimeoutError(f"{wanted} was not shown: {_ESCAPES.sub(b'', self.bytes)[-300:]!r}")

    def key(self, keys: str, wanted: str) -> float:
        """Press keys; seconds until a text is shown."""
        self.bytes = b""
        before = time.perf_counter()
        os.write(self._file, keys.encode())
        return self.until(wanted) - (before - self.began)

    def memory(self) -> tuple[float, float]:
        """MB in memory now: of the console, and of what it started."""
        process = psutil.Process(self.pid)
        children = [child.memory_info().rss for child in process.children(recursive=True)]
        return process.memory_info().rss / 1e6, sum(children) / 1e6

    def close(self) -> None:
        """Leave as an operator does."""
        os.write(self._file, b"q")
        deadline = time.perf_counter() + 10
        while time.perf_counter() < deadline:
            with_output = select.select([self._file], [], [], 0.05)[0]
            try:
                if with_output and not os.read(self._file, 1 << 16):
                    break
            except OSError:
                break
        else:
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._file)


@contextmanager
def running(*arguments: str | Path, home: Path, stdin: int | None = None) -> Iterator[Terminal]:
    """The console on a terminal; it is left afterwards."""
    terminal = Terminal(*arguments, home=home, stdin=stdin)
    try:
        yield terminal
    finally:
        terminal.close()


def write_log(path: Path, size: int) -> None:
    """A server's log of so many bytes: a real start, then its batch lines over and over, second by second."""
    start = LOG.read_bytes()
    words = [line for line in start.splitlines(keepends=True) if b"batch, #" in line or b'"POST /' in line]
    stamps = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
    numbers, source = re.compile(rb"\d+\.\d\d$"), random.Random(5)
    seconds = [
        b"".join(
            stamps.sub(b"[@", numbers.sub(b"%.2f" % source.uniform(1e3, 2e4), source.choice(words).rstrip())) + b"\n"
            for _ in range(SECOND)
        )
        for _ in range(64)
    ]
    when = datetime(2026, 11, 29, 13, 57, tzinfo=UTC)
    with path.open("wb") as file:
        file.write(start)
        while file.tell() < size:
            when += timedelta(seconds=1)
            file.write(source.choice(seconds).replace(b"@", when.strftime("%Y-%m-%d %H:%M:%S").encode()))


def opened(what: str, *arguments: str | Path, home: Path, shown: str, stdin: Path | None = None) -> None:
    """Print how long a screen takes, the median and the worst of some tries."""
    taken, spent, memory = [], [], (0.0, 0.0)
    for _ in range(TRIES):
        pipe = subprocess.Popen(["cat", stdin], stdout=subprocess.PIPE) if stdin is not None else None
        with running(*arguments, home=home, stdin=pipe.stdout.fileno() if pipe and pipe.stdout else None) as terminal:
            taken.append(terminal.until(shown))
            spent.append(sum(psutil.Process(terminal.pid).cpu_times()[:2]))
            memory = terminal.memory()
        if pipe is not None:
            pipe.kill()
            pipe.wait()
            assert pipe.stdout is not None
            pipe.stdout.close()
    print(
        f"| {what} | {statistics.median(taken):.2f} s | {max(taken):.2f} s | {statistics.median(spent):.2f} s "
        f"| {memory[0]:.0f} + {memory[1]:.0f} MB |",
        flush=True,
    )


def scrolled(log: Path, home: Path) -> None:
    """Print how soon keys are answered while the log is still read, and the memory that this comes to."""
    with running("replay", log, home=home) as terminal:
        terminal.until(FIRST_LINES)
        taken = [terminal.key(key, wanted) for _ in range(KEYS) for key, wanted in SCROLLS]
        time.sleep(SETTLED)
        taken += [terminal.key(key, wanted) for _ in range(KEYS) for key, wanted in SCROLLS]
        memory = terminal.memory()
    print(f"| page down and back to the first line, {4 * KEYS} times while it is read | "
          f"{1e3 * statistics.median(taken):.0f} ms | {1e3 * max(taken):.0f} ms | | "
          f"{memory[0]:.0f} + {memory[1]:.0f} MB after {SETTLED:.0f} s |")  # fmt: skip


def finished(what: str, *arguments: str, home: Path) -> None:
    """Print how long a command takes to say its say."""
    environment = {**os.environ, "HOME": str(home)}
    taken = []
    for _ in range(TRIES):
        before = time.perf_counter()
        subprocess.run([*CONSOLE, *arguments], env=environment, check=True, capture_output=True, timeout=PATIENCE)
        taken.append(time.perf_counter() - before)
    print(f"| {what} | {statistics.median(taken):.2f} s | {max(taken):.2f} s | | |", flush=True)


def main() -> None:
    """Make the log, open it in every way, print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bytes", type=int, nargs="?", default=2_000_000_000)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        home, place = Path(directory), given.keep or Path(directory)
        log, part = place / "server.log", place / "part.log"
        if not log.exists():
            write_log(log, given.bytes)
            write_log(part, PACKED)
            (place / "part.log.gz").write_bytes(gzip.compress(part.read_bytes(), 1))
            (place / "part.log.zst").write_bytes(zstandard.compress(part.read_bytes(), 1))
        load = os.getloadavg()[0]
        print(f"\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
              f"load average {load:.1f}; {TRIES} tries each\n")  # fmt: skip
        print("| from the start of the program | median | worst | CPU of it | memory of console + importer |")
        print("|---|---:|---:|---:|---:|")
        finished("`--version`", "--version", home=home)
        finished("`connect` without a host", "connect", home=home)
        opened("`demo --replay`: the board drawn", "demo", "--replay", home=home, shown="HUNG|STARTING")
        size = f"{log.stat().st_size / 1e9:.1f} GB"
        opened(f"`replay`, a log of {size}: its first lines drawn", "replay", log, home=home, shown=FIRST_LINES)
        for kind in ("gz", "zst"):
            packed = place / f"part.log.{kind}"
            opened(f"{PACKED / 1e6:.0f} MB as {kind}", "replay", packed, home=home, shown=FIRST_LINES)
        opened(f"{size} through a pipe", "replay", "-", home=home, shown=FIRST_LINES, stdin=log)
        opened(f"{size}, `--follow`", "replay", "--follow", log, home=home, shown=FIRST_LINES)
        scrolled(log, home)


if __name__ == "__main__":
    main()
