"""Opening what `replay` is given: a recording as it is, anything else through a recording of it made on the way."""

from pathlib import Path
from typing import TYPE_CHECKING

from kimi_agent.errors import UsageError
from kimi_agent.record.format import is_recording
from kimi_agent.record.reader import Recording
from kimi_console.source.base import PIPE
from kimi_console.source.player import Player
from kimi_console.source.when import parse_at

if TYPE_CHECKING:
    from kimi_console.source.behind import Behind
    from kimi_console.store.file import FileLines


class Opened:
    """A player, and what goes when it is closed: a temporary recording and the process that writes it."""

    def __init__(self, path: Path | str, *, speed: float = 1.0, at: str | None = None, follow: bool = False) -> None:
        self._source = str(path)
        self._speed = speed
        self._at = at
        self._follow = follow or self._source == PIPE
        self._behind: Behind | None = None
        self.log: FileLines | None = None
        """The whole log of a file that is read behind, to look through at once."""

    async def open(self) -> Player:
        """The player.

        Raises:
            UsageError: it cannot be read, or is nothing that can be played.
        """
        if self._source != PIPE and _recorded(Path(self._source)):
            return self._player(Recording(Path(self._source)))
        from kimi_console.source.behind import Behind  # noqa: PLC0415 - reading logs costs 0.1 s

        self._behind = Behind(self._source, follow=self._follow)
        recording = await self._behind.open(wait=self._at is not None)
        player = self._player(recording, growing=self._behind.growing)
        self.log = self._behind.log
        self._behind.watch(player)
        return player

    async def close(self) -> None:
        """Let go of what was made on the way."""
        if self._behind is not None:
            await self._behind.close()

    def _player(self, recording: Recording, *, growing: bool = False) -> Player:
        if not len(recording) and not growing:
            raise UsageError(f"{self._source} holds no event", "Give a recording, a journal or a server's log.")
        at = parse_at(self._at, recording.begin) if self._at else None
        title = "standard input" if self._source == PIPE else Path(self._source).name or self._source
        return Player(recording, title, speed=self._speed, at=at, growing=growing)


def _recorded(path: Path) -> bool:
    """Whether a file is a recording; what cannot be read is told by whoever reads it next."""
    try:
        return is_recording(path)
    except OSError:
        return False
