"""The agent records every run: its events, from the state before its launch on, in the agent's own directory."""

import asyncio
import logging
from pathlib import Path
from typing import Final

from kimi_agent.errors import KimiError
from kimi_agent.model.events import Event, RunExited, RunStarted, Snapshot
from kimi_agent.model.state import State
from kimi_agent.paths import private_dir
from kimi_agent.record.format import SLOW_LEVEL, RecordingError
from kimi_agent.record.reader import Recording
from kimi_agent.record.shelf import Limits, Shelf
from kimi_agent.record.writer import FLUSH_PERIOD, RecordingWriter

LINGER: Final = 20.0
"""Seconds after a run's end in which what is still said of it is recorded too."""

LINES_CARRIED: Final = 5000
"""Lines of the log with which a further part of a recording begins."""

log = logging.getLogger(__name__)


class RunRecorder:
    """Takes every event of the agent and keeps those of runs; a full disk ends the recording, never the run."""

    def __init__(self, directory: Path, limits: Limits | None = None) -> None:
        self._shelf = Shelf(directory, limits)
        self._writer: RecordingWriter | None = None
        self._run = ""
        self._flushing: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None

    def take(self, event: Event, before: State) -> None:
        """Record an event, if a run is recorded or begins with it; `before` is the state before it."""
        full = self._writer is not None and self._writer.size > self._shelf.limits.part_bytes
        if full or isinstance(event.body, RunStarted):
            self._begin(event, before)
        self._append(event, before)
        if isinstance(event.body, RunExited) and self._writer is not None:
            self._ending = asyncio.get_running_loop().call_later(LINGER, self.close)

    def log(self, run: str, count: int) -> tuple[int, list[str]]:
        """The last lines of a run's log as far as they are recorded, and the number of the first."""
        if run == self._run:
            self._flush()
        for path in reversed(self._shelf.parts(run)):
            try:
                recording = Recording(path)
                try:
                    return recording.log(len(recording), count)
                finally:
                    recording.close()
            except RecordingError as error:
                log.warning("%s", error)
        return 0, []

    def close(self) -> None:
        """End the recording."""
        for timer in (self._flushing, self._ending):
            if timer is not None:
                timer.cancel()
        self._flushing = self._ending = None
        if self._writer is not None:
            self._writer.close()
        self._writer, self._run = None, ""

    def _begin(self, event: Event, before: State) -> None:
        run = event.body.run if isinstance(event.body, RunStarted) else self._run
        self.close()
        try:
            private_dir(self._shelf.directory)
            self._open(run, event, before)
        except (KimiError, OSError) as error:
            log.warning("run %s is not recorded: %s", run, error)

    def _open(self, run: str, event: Event, before: State) -> None:
        """Go on in the run's recording, or its next part, which begins with all that is known already."""
        first, lines = self.log(run, LINES_CARRIED)
        path = self._shelf.current(run)
        self._writer, self._run = RecordingWriter(path, level=SLOW_LEVEL, run=run), run
        for gone in self._shelf.prune(keep=path):
            log.info("removed the old recording %s", gone.name)
        start = Event(before.seq, before.time or event.time, Snapshot(before, first, tuple(lines)))
        self._append(start, State())

    def _append(self, event: Event, before: State) -> None:
        if self._writer is None:
            return
        try:
            self._writer.append([event], before)
        except RecordingError as error:
            self._give_up(error)
            return
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(FLUSH_PERIOD, self._flush)

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        try:
            if self._writer is not None:
                self._writer.flush()
        except RecordingError as error:
            self._give_up(error)

    def _give_up(self, error: RecordingError) -> None:
        log.warning("the recording of run %s ends: %s", self._run, error)
        self.close()
