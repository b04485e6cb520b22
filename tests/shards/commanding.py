"""The agent's command line, called instead of started: what a small command does takes no time, its start does."""

import io
import subprocess
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout

from kimi_agent.cli import main


class _Output(io.TextIOWrapper):
    """A text stream in memory, with a buffer below it as standard output has."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "utf-8", write_through=True)

    @property
    def text(self) -> str:
        """What was written."""
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


def command_here(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """What `kimi-agent` with these arguments says, and its exit code."""
    with redirect_stdout(_Output()) as said, redirect_stderr(_Output()) as talk:
        code = main(argv)
    return subprocess.CompletedProcess(argv, code, said.text, talk.text)
