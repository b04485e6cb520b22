"""Python stacks of other processes: by py-spy, which only reads their memory, or by the capture plugin's socket."""

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from kimi_agent.wire.peer import same_user

DEADLINE: Final = 8.0
"""Seconds for one stack: py-spy first reads the symbols of some hundred libraries, on a host that may be busy."""
FRAMES: Final = 40
"""Frames kept of a stack: the innermost say where it is, the rest how it came there."""
_MAIN_THREAD: Final = "MainThread"
_FRAME: Final = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_REFUSED: Final = re.compile(r"[Pp]ermission|Operation not permitted|EPERM")


class NotSeenError(Exception):
    """A stack could not be read; the message says why, in words for an operator."""


def by_py_spy(pid: int) -> tuple[str, ...]:
    """The frames of a process's main thread, the innermost first; the process is not paused.

    Raises:
        NotSeenError: py-spy is not there, may not look, or did not answer in `DEADLINE` seconds.
    """
    program = _py_spy()
    if program is None:
        raise NotSeenError(f"py-spy is neither beside {sys.executable} nor on the PATH")
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=DEADLINE, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise NotSeenError(f"py-spy did not answer in {DEADLINE:.0f} s") from None
    except OSError as error:
        raise NotSeenError(f"py-spy cannot be run: {error.strerror}") from error
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip()
        if _REFUSED.search(words):
            raise NotSeenError("no ptrace: run the agent as root, or with CAP_SYS_PTRACE in a container")
        raise NotSeenError(f"py-spy: {words.splitlines()[0][:160] if words else done.returncode}")
    try:
        return frames_of_py_spy(json.loads(done.stdout), pid)
    except ValueError as error:
        raise NotSeenError(f"py-spy's answer is not understood: {error}") from error


def all_stacks(pid: int, plugin: Path) -> str:
    """The stacks of all threads of a process, as its plugin or py-spy writes them, or in words why there are none."""
    try:
        return str(_ask_plugin(plugin)["stacks"])
    except (OSError, ValueError, KeyError):
        pass  # no plugin there, or one that does not answer: py-spy may see it
    program = _py_spy()
    if program is None:
        return "no stacks: the plugin does not answer there, and there is no py-spy\n"
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=DEADLINE, check=False, stdin=subprocess.DEVNULL)
    except (subprocess.TimeoutExpired, OSError) as error:
        return f"no stacks: py-spy: {type(error).__name__}\n"
    return (done.stdout or done.stderr).decode("utf-8", "replace")


def _py_spy() -> str | None:
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def frames_of_py_spy(threads: list[dict[str, Any]], pid: int) -> tuple[str, ...]:
    """The main thread's frames out of `py-spy dump --json`.

    Raises:
        NotSeenError: it shows no thread with a Python frame.
    """
    shown = [thread for thread in threads if thread.get("frames")]
    mains = [one for one in shown if one.get("os_thread_id") == pid or one.get("thread_name") == _MAIN_THREAD]
    if not shown:
        raise NotSeenError("py-spy saw no Python frame")
    frames = (mains or shown)[0]["frames"]
    return tuple(
        _frame(str(frame["name"]), str(frame.get("filename") or "?"), int(frame.get("line") or 0))
        for frame in frames[:FRAMES]
    )


def by_plugin(path: Path) -> tuple[str, ...]:
    """The frames of the main thread of the process whose capture plugin listens at `path`, the innermost first.

    Raises:
        NotSeenError: it did not answer in `DEADLINE` seconds.
    """
    try:
        return frames_of_plugin(str(_ask_plugin(path)["stacks"]))
    except (OSError, ValueError, KeyError) as error:
        raise NotSeenError(f"the plugin did not answer: {error}") from error


def _ask_plugin(path: Path) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(DEADLINE)
        link.connect(str(path))
        if not same_user(link):
            raise PermissionError("its socket belongs to another user")
        link.sendall(b'{"op":"stacks"}\n')
        with link.makefile("rb") as lines:
            answer: dict[str, Any] = json.loads(lines.readline())
    return answer


def frames_of_plugin(text: str) -> tuple[str, ...]:
    """The main thread's frames out of the plugin's text, which puts the innermost last.

    Raises:
        NotSeenError: it shows no main thread.
    """
    for block in text.split("\n\n"):
        if block.startswith(f"Thread {_MAIN_THREAD} "):
            found = [_frame(match["name"], match["file"], int(match["line"])) for match in _FRAME.finditer(block)]
            return tuple(reversed(found))[:FRAMES]
    raise NotSeenError("the plugin shows no main thread")


def _frame(name: str, file: str, line: int) -> str:
    """`function (package/file.py:line)`: enough of the path to find the file, and no more."""
    parts = file.replace("\\", "/").split("/")
    inner = parts[parts.index("site-packages") + 1 :] if "site-packages" in parts else parts[-2:]
    return f"{name} ({'/'.join(inner)}:{line})"
