"""Opening what `replay` is given: a recording as it is, anything else through a recording of it made on the way."""

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
from kimi_console.source.files import is_packed
from kimi_console.source.importing import PIPE, batched, import_events
from kimi_console.source.player import Player
from kimi_console.source.replay import open_events, parse_at, readable
from kimi_console.store.file import FileLines

AT_ONCE: Final = 2 << 20
"""A file of so many bytes is read before anything is shown; a larger one behind."""
FIRST_WAIT: Final = 10.0
"""Seconds for the first event of a file that is read behind."""
LOOK: Final = 0.02


def _terminal_as_input() -> int:
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


class Opened:
    """A player, and what goes when it is closed: a temporary recording and the process that writes it."""

    def __init__(self, path: Path | str, *, speed: float = 1.0, at: str | None = None, follow: bool = False) -> None:
        self._source = str(path)
        self._speed = speed
        self._at = at
        self._follow = follow or self._source == PIPE
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._importer: asyncio.subprocess.Process | None = None
        self._error = ""
        self.log: FileLines | None = None
        """The whole log of a file that is read behind, to look through at once."""
        self._watch: asyncio.Task[None] | None = None

    async def open(self) -> Player:
        """The player.

        Raises:
            UsageError: it cannot be read, or is nothing that can be played.
        """
        path = Path(self._source)
        if self._source != PIPE and readable(path) == "recording":
            return self._player(Recording(path))
        self._directory = tempfile.TemporaryDirectory(prefix="kimi-replay-")
        made = Path(self._directory.name) / f"replay{SUFFIX}"
        if not self._follow and not path.is_dir() and path.stat().st_size <= AT_ONCE:
            import_events(batched(open_events(path)), made)
            return self._player(Recording(made))
        await self._behind(made)
        player = self._player(Recording(made))
        player.growing = True
        if not self._follow and readable(path) == "log" and not is_packed(path):
            self.log = FileLines(path)
        self._watch = asyncio.create_task(self._finished(player))
        return player

    async def close(self) -> None:
        """Let go of what was made on the way."""
        if self._watch is not None:
            self._watch.cancel()
        if self._importer is not None and self._importer.returncode is None:
            with suppress(ProcessLookupError):
                self._importer.terminate()
            await self._importer.wait()
        if self._directory is not None:
            self._directory.cleanup()

    def _player(self, recording: Recording) -> Player:
        if not len(recording) and not self._follow:
            raise UsageError(f"{self._source} holds no event", "Give a recording, a journal or a server's log.")
        at = parse_at(self._at, recording.begin) if self._at else None
        title = "standard input" if self._source == PIPE else Path(self._source).name or self._source
        return Player(recording, title, speed=self._speed, at=at, growing=self._follow)

    async def _behind(self, made: Path) -> None:
        RecordingWriter(made).close()
        pipe = _terminal_as_input() if self._source == PIPE else None
        arguments = [self._source, str(made), *(["--follow"] if self._follow else [])]
        self._importer = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kimi_console.source.importing", *arguments,
            stdin=pipe if pipe is not None else asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        if pipe is not None:
            os.close(pipe)
        recording = Recording(made)
        deadline = asyncio.get_running_loop().time() + FIRST_WAIT
        while not len(recording) and self._importer.returncode is None:
            await asyncio.sleep(LOOK)
            if asyncio.get_running_loop().time() > deadline:
                break
        recording.close()
        if self._importer.returncode:
            await self._told()
            raise RecordingError(self._error)

    async def _finished(self, player: Player) -> None:
        """Wait for the importer's end: then nothing more comes."""
        assert self._importer is not None
        await self._told()
        await self._importer.wait()
        player.growing = False

    async def _told(self) -> None:
        assert self._importer is not None
        assert self._importer.stdout is not None
        words = (await self._importer.stdout.read()).strip()
        self._error = str(orjson.loads(words)["error"]) if words else "the file could not be read"
