"""Following the server's log file by offset: nothing is lost when the agent restarts."""

from pathlib import Path

from kimi_agent.engine.loglines import split_lines
from kimi_agent.runs.secrets import Secrets

READ_BYTES = 1 << 20


class LogFollower:
    """Reads a growing file; a line is handed out once it is whole, and without what must not leave the file."""

    def __init__(self, path: Path, secrets: Secrets) -> None:
        self._path = path
        self._hide = secrets.hide
        self._offset = 0
        self._carry = b""
        self.count = 0
        """Lines handed out so far."""

    def read(self) -> list[str]:
        """The next whole lines, none when the file has not grown; at most about 1 MiB of text."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read(READ_BYTES)
        except FileNotFoundError:
            return []
        self._offset += len(chunk)
        lines, self._carry = split_lines(chunk, self._carry)
        self.count += len(lines)
        return list(map(self._hide, lines))

    def rest(self) -> list[str]:
        """The last line of a file that will not grow any more, if it has no end."""
        lines, self._carry = split_lines(b"\n", self._carry) if self._carry else ([], b"")
        self.count += len(lines)
        return list(map(self._hide, lines))
