"""Questions on a plain terminal: the controlling one, whatever standard input and output are."""

import asyncio
import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from kimi_console.source.questions import Handler, Question

MAX_ANSWER = 4096


def terminal_handler() -> Handler | None:
    """Asks on the controlling terminal; `None` where there is none."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return None
    return ask_on_terminal


async def ask_on_terminal(question: Question) -> str | None:
    """Ask, without echo where the answer is secret; an empty line or the end of input leaves the question."""
    tty = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        with _echo(tty, on=not question.secret):
            refused = "that was refused; " if question.again else ""
            words = f"{question.words}\n" if question.words else ""
            os.write(tty, f"{words}{refused}{question.prompt}: ".encode())
            line = await _line(tty)
            if question.secret:
                os.write(tty, b"\n")
    finally:
        os.close(tty)
    return line.decode("utf-8", "replace").rstrip("\r\n") or None


@contextmanager
def _echo(tty: int, *, on: bool) -> Iterator[None]:
    before = termios.tcgetattr(tty)
    if on:
        yield
        return
    quiet = list(before)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(tty, termios.TCSAFLUSH, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(tty, termios.TCSAFLUSH, before)


async def _line(tty: int) -> bytes:
    """The next line; the event loop stays free, so that Ctrl-C ends the wait at once."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(tty, ready.set)
    try:
        await ready.wait()
        return os.read(tty, MAX_ANSWER)
    finally:
        loop.remove_reader(tty)
