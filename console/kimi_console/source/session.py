"""The headless core of the console: folds a source's events into state and keeps the log."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kimi_agent.model.events import Event, LogLines, RunStarted, Snapshot
from kimi_agent.model.reduce import resume
from kimi_agent.model.state import State
from kimi_console.source.base import Control, Link, Source
from kimi_console.source.player import Player
from kimi_console.store.spool import LogSpool

if TYPE_CHECKING:
    from kimi_console.compare.comparison import Comparison
    from kimi_console.store.file import FileLines


class Session:
    """One watched host or file: its state now, its log, and the means to act on it."""

    def __init__(
        self, source: Source, control: Control | None = None, log: "LogSpool | FileLines | None" = None
    ) -> None:
        self.source = source
        self.control = control
        self.player = source if isinstance(source, Player) else None
        """What moves the source in time; only a recording can be."""
        self.comparison: Comparison | None = None
        """How this recording differs from another, when it was opened against one."""
        self.log = log if log is not None else LogSpool()
        """The log of the state's current run."""
        self.state = State()
        self.elsewhere: Callable[[], None] | None = None
        """Shows the list of all hosts, where there is one."""
        self.version = 0
        """Grows with every batch; a view that has drawn this version need not draw again."""
        self._next_line = 0
        self._listeners: list[Callable[[], None]] = []

    @property
    def link(self) -> Link:
        """How the source stands now."""
        return self.source.link

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every batch."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Fold batches until the source ends."""
        async for batch in self.source.batches():
            for event in batch:
                self._take(event)
            if self.state.run is not None:
                self.log.played(self.state.run.log_lines)
            self.version += 1
            for listener in self._listeners:
                listener()

    def _take(self, event: Event) -> None:
        if isinstance(event.body, Snapshot):
            self.log.clear()
            self._next_line = 0
            self._append(event.body.first, event.body.lines)
        elif event.seq <= self.state.seq:
            # A source never repeats an event: this is the first of another journal.
            self.log.clear()
            self._next_line = 0
        if isinstance(event.body, LogLines):
            self._keep_lines(event.body)
        elif isinstance(event.body, RunStarted) and not event.body.adopted:
            self.log.clear()
            self._next_line = 0
        self.state = resume(self.state, event)

    def _keep_lines(self, body: LogLines) -> None:
        run = self.state.run
        if run is None or run.started.run != body.run:
            return
        self._append(body.first, body.lines)

    def _append(self, first: int, lines: Sequence[str]) -> None:
        if first > self._next_line:
            what = "lines are missing here" if self._next_line else "earlier lines are not here"
            self.log.append([f"… {first - self._next_line:,} {what} …"])
        self.log.append(lines[max(0, self._next_line - first) :])
        self._next_line = max(self._next_line, first + len(lines))

    async def close(self) -> None:
        """Let go of the source and the log's spool."""
        await self.source.close()
        self.log.close()
