"""Reading a log or journal into a temporary recording: a small one at once, any other by a process of its own."""

import asyncio
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import orjson

from kimi_agent.errors import UsageError
from kimi_agent.record.format import SUFFIX, RecordingError
from kimi_agent.record.reader import Recording
from kimi_agent.record.writer import RecordingWriter
from kimi_console.source.base import PIPE
from kimi_console.source.files import is_packed
from kimi_console.source.importing import batched, import_events
from kimi_console.source.kinds import readable
from kimi_console.source.player import Player
from kimi_console.source.replay import open_events
from kimi_console.store.file import FileLines

AT_ONCE: Final = 256 << 10
"""A file of so many bytes is read before anything is shown; a larger one behind."""
FIRST_WAIT: Final = 1.0
"""Seconds for the first event of what cannot be shown as it is; the screen comes then, whatever has been read."""
TIME_WAIT: Final = 10.0
"""Seconds for the first event where a time is sought from it."""
LOOK: Final = 0.02


def terminal_as_input() -> int:
    """Make the terminal this process's standard input, and give the pipe that was there.

    Raises:
        UsageError: there is no terminal.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError("there is no terminal to show the pipe on", "Add --headless, or --json.") from error
    pipe = os.dup(0)
    os.dup2(terminal, 0)
    os.close(terminal)
    return pipe


class Behind:
    """A temporary recording of a file or pipe, and the process that writes it."""

    def __init__(self, source: str, *, follow: bool) -> None:
        self._source = source
        self._follow = follow
        self._directory = tempfile.TemporaryDirectory(prefix="kimi-replay-")
        self._made = Path(self._directory.name) / f"replay{SUFFIX}"
        self._importer: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self.log: FileLines | None = None
        """The whole log of a plain file, to look through before it is read."""

    @property
    def growing(self) -> bool:
        """Whether more may still come."""
        return self._importer is not None

    async def open(self, *, wait: bool) -> Recording:
        """The recording, with its first event if that comes soon; with `wait`, also where it need not be waited for.

        Raises:
            UsageError: it cannot be read, or is nothing that can be played.
        """
        path = Path(self._source)
        kind = readable(path) if self._source != PIPE else "log"
        if not self._follow and kind != "journal" and path.stat().st_size <= AT_ONCE:
            import_events(batched(open_events(path)), self._made, scratch=True)
            return Recording(self._made)
        if kind == "journal":
            open_events(path)  # refuses a directory without one
        RecordingWriter(self._made, scratch=True).close()
        await self._start()
        if not self._follow and kind == "log" and not is_packed(path):
            self.log = FileLines(path)
        recording = Recording(self._made)
        if wait or self.log is None:
            await self._first(recording, TIME_WAIT if wait else FIRST_WAIT)
        return recording

    def watch(self, player: Player) -> None:
        """Tell a player when nothing more comes, and why if that is too early."""
        if self._importer is not None:
            self._watch = asyncio.create_task(self._finished(player, self._importer))

    async def close(self) -> None:
        """End the reading and remove what was made."""
        if self._watch is not None:
            self._watch.cancel()
        if self._importer is not None and self._importer.returncode is None:
            with suppress(ProcessLookupError):
                self._importer.terminate()
            await self._importer.wait()
        self._directory.cleanup()

    async def _start(self) -> None:
        pipe = terminal_as_input() if self._source == PIPE else None
        arguments = [self._source, str(self._made), *(["--follow"] if self._follow else [])]
        self._importer = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kimi_console.source.importing", *arguments,
            stdin=pipe if pipe is not None else asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        if pipe is not None:
            os.close(pipe)

    async def _first(self, recording: Recording, patience: float) -> None:
        assert self._importer is not None
        deadline = asyncio.get_running_loop().time() + patience
        while not len(recording) and self._importer.returncode is None:
            await asyncio.sleep(LOOK)
            if asyncio.get_running_loop().time() > deadline:
                return
        if self._importer.returncode:
            raise RecordingError(await _told(self._importer))

    async def _finished(self, player: Player, importer: asyncio.subprocess.Process) -> None:
        told = await _told(importer)
        player.finish(told if await importer.wait() else "")


async def _told(importer: asyncio.subprocess.Process) -> str:
    """What the importer says for an end that came too early."""
    assert importer.stdout is not None
    words = (await importer.stdout.read()).strip()
    return str(orjson.loads(words)["error"]) if words else "the file could not be read to its end"
