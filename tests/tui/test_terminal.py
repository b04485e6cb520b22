"""The console on a real pseudo-terminal: colours, and leaving when the terminal or the login goes."""

import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios

import pytest

PROGRAM = """
import asyncio, sys
from kimi_agent.model.events import AgentStarted, Event
from kimi_console.source.base import Link
from kimi_console.source.session import Session
from kimi_console.tui.app import run_app

class Quiet:
    title, link = "gpu-07", Link("live")
    def __init__(self): self.closed = asyncio.Event()
    async def batches(self):
        yield [Event(1, 1764424800.0, AgentStarted("0.1.0", "gpu-07", 9, "/p", "0.5.23", "b", 4, 1 << 30))]
        await self.closed.wait()
    async def close(self): self.closed.set()

async def main():
    return await run_app(Session(Quiet()))

sys.exit(asyncio.run(main()))
"""
COLOUR = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:[349][0-7]|[34]8;[0-9;]*)(?:;[0-9;]*)?m")


def shown_until(number: int, environ: dict[str, str]) -> tuple[int, bytes]:
    """Run the console until its header is on the screen, send a signal; the exit code and all that was sent."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM], os.environ | environ)
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    sent, told = b"", False
    while True:
        try:
            data = os.read(descriptor, 65536)
        except OSError:
            break
        if not data:
            break
        sent += data
        if b"IDLE" in sent and not told:
            told = True
            os.kill(pid, number)
    _, status = os.waitpid(pid, 0)
    os.close(descriptor)
    return os.waitstatus_to_exitcode(status), sent


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_gives_the_terminal_back(number: int) -> None:
    code, sent = shown_until(number, {"TERM": "xterm-256color", "COLORTERM": "truecolor"})
    assert code == 128 + number
    assert b"\x1b[?1049l" in sent
    assert COLOUR.search(sent)


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_no_color_is_obeyed_on_a_terminal() -> None:
    _, sent = shown_until(signal.SIGTERM, {"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "1"})
    assert b"IDLE" in sent
    assert not COLOUR.search(sent)
