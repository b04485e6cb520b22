"""Following the server's log file by offset: nothing is lost when the agent restarts."""

import json
from contextlib import suppress
from pathlib import Path

from kimi_agent.engine.loglines import split_lines
from kimi_agent.runs.secrets import Secrets

READ_BYTES = 1 << 20
MARK_EVERY = 5000
"""Lines between two noted places."""
MARKS = 4
"""Places that are kept; the oldest is at least `MARK_EVERY * (MARKS - 2)` lines behind."""


class LogFollower:
    """Reads a growing file; a line is handed out once it is whole, and without what must not leave the file."""

    def __init__(self, path: Path, secrets: Secrets) -> None:
        self._path = path
        self._hide = secrets.hide
        self._offset = 0
        self._carry = b""
        self.count = 0
        """Lines handed out so far."""
        self._notes = path.with_name("follow.json")
        self._marks: list[tuple[int, int]] = []

    def read(self) -> list[str]:
        """The next whole lines, none when the file has not grown; at most about 1 MiB of text."""
        try:
            if self._path.stat().st_size <= self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read(READ_BYTES)
        except FileNotFoundError:
            return []
        self._offset += len(chunk)
        lines, self._carry = split_lines(chunk, self._carry)
        self.count += len(lines)
        return list(map(self._hide, lines))

    def note(self) -> None:
        """Note from time to time where a line begins, so that another follower need not read all before it."""
        if self.count - (self._marks[-1][0] if self._marks else 0) < MARK_EVERY:
            return
        self._marks = [*self._marks[1 - MARKS :], (self.count, self._offset - len(self._carry))]
        part = self._notes.with_suffix(".part")
        with suppress(OSError):
            part.write_text(json.dumps(self._marks))
            part.replace(self._notes)

    def skip(self, line: int) -> None:
        """Go on at the last noted place before a line, if that is further than here."""
        try:
            noted = [(int(count), int(offset)) for count, offset in json.loads(self._notes.read_bytes())]
        except (OSError, ValueError, TypeError):
            return
        before = [mark for mark in noted if self.count < mark[0] <= line]
        if before:
            self._marks = before
            self.count, self._offset = before[-1]
            self._carry = b""

    def rest(self) -> list[str]:
        """The last line of a file that will not grow any more, if it has no end."""
        lines, self._carry = split_lines(b"\n", self._carry) if self._carry else ([], b"")
        self.count += len(lines)
        return list(map(self._hide, lines))
