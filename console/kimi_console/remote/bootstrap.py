"""Bring the agent to a host over SSH: find SGLang's Python, upload the bundle if it is not there, attach."""

import hashlib
import secrets
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath

import asyncssh

from kimi_agent.bundle import build_id, bundle_tar
from kimi_agent.errors import UnavailableError, UsageError
from kimi_agent.text import clean
from kimi_console.source.local import OLDEST_PYTHON, PYTHON_HINT, attach_argv, last_line, require

PROBE_TIMEOUT = 60.0
UPLOAD_TIMEOUT = 120.0
RUN_HEX = "import sys;exec(bytes.fromhex(sys.argv[1]))"
"""A Python program as one hexadecimal argument: no login shell can change its quotes or line ends."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python found on the host."""

    path: str
    version: tuple[int, int]
    sglang: str | None


@dataclass(frozen=True, slots=True)
class Survey:
    """What the probe saw."""

    home: str
    system: str
    bundle: str
    """Where this build's bundle belongs."""
    present: bool
    """Whether it is there."""
    pythons: tuple[Interpreter, ...]


@dataclass(frozen=True, slots=True)
class Attachment:
    """All that is needed to attach to the agent of a host."""

    python: str
    bundle: str

    def command(self, *, read_only: bool) -> str:
        """The command line for the host's login shell."""
        argv = ("env", f"PYTHONPATH={self.bundle}", *attach_argv(self.python, None, read_only))
        return f"exec {shlex.join(argv)}"


async def bootstrap(connection: asyncssh.SSHClientConnection, host: str, python: str | None) -> Attachment:
    """Make sure that the agent can be started on the host.

    Args:
        connection: to the host.
        host: its name, for messages.
        python: the only interpreter to consider; when not given, usual places are searched.

    Raises:
        UnavailableError: the host cannot hold or run the agent.
        UsageError: no interpreter there will do.
    """
    survey = await probe(connection, host, python)
    chosen = choose(survey, host, python)
    if not survey.present:
        await upload(connection, host, chosen.path, survey.bundle)
    return Attachment(chosen.path, survey.bundle)


async def probe(connection: asyncssh.SSHClientConnection, host: str, python: str | None) -> Survey:
    """Look at the host with one command.

    Raises:
        UnavailableError: its answer is not there.
    """
    mark = f"@@kimi-{secrets.token_hex(8)}@@"
    script = files(__package__).joinpath("probe.sh").read_bytes()
    command = shlex.join(["exec", "sh", "-s", "--", mark, build_id(), python or ""])
    output, words = await _run(connection, host, command, script, PROBE_TIMEOUT)
    return parse_survey(output.decode("utf-8", "replace"), mark, host, words)


def parse_survey(output: str, mark: str, host: str, words: str = "") -> Survey:
    """The probe's answer, without what the login shell said around it.

    Raises:
        UnavailableError: the answer is not between two marks.
    """
    parts = output.split(f"{mark}\n")
    if len(parts) != 3:
        said = f": {words}" if words else ""
        raise UnavailableError(
            f"{host} did not run a command for the console{said}",
            f"Check that `ssh {host} uname` prints one word and that the account has a POSIX shell.",
        )
    rows = [line.split("\t") for line in parts[1].splitlines()]
    facts = {row[0]: row[1] for row in rows if len(row) == 2}
    pythons = tuple(_interpreter(row[1], row[2]) for row in rows if len(row) == 3 and row[0] == "python")
    return Survey(facts.get("home", ""), facts.get("system", ""), facts.get("bundle", ""), "present" in facts, pythons)


def _interpreter(found: str, path: str) -> Interpreter:
    version, sglang = found.split(" ", 1)
    major, minor = version.split(".")
    return Interpreter(path, (int(major), int(minor)), None if sglang == "-" else sglang)


def choose(survey: Survey, host: str, asked: str | None) -> Interpreter:
    """The interpreter that will run the agent.

    Raises:
        UnavailableError: the host is not Linux.
        UsageError: there is none, it is too old, or it has no SGLang.
    """
    if survey.system and not survey.system.startswith("Linux"):
        raise UnavailableError(f"{host} runs {clean(survey.system)}, the agent needs Linux", "Choose another host.")
    if asked is not None and not survey.pythons:
        raise UsageError(f"there is no working Python at {asked} on {host}", PYTHON_HINT)
    if not survey.pythons:
        raise UsageError(f"no Python was found on {host}", PYTHON_HINT)
    best = next((found for found in survey.pythons if found.sglang and found.version >= OLDEST_PYTHON), None)
    if best is not None:
        return best
    closest = next((found for found in survey.pythons if found.sglang), survey.pythons[0] if asked else None)
    if closest is not None:
        require(closest.path, "{}.{}".format(*closest.version), closest.sglang or "-", host)
    raise UsageError(f"no Python on {host} has SGLang (looked at {_listed(survey.pythons)})", PYTHON_HINT)


def _listed(pythons: Iterable[Interpreter]) -> str:
    return ", ".join(f"{clean(found.path)} {found.version[0]}.{found.version[1]}" for found in pythons)


async def upload(connection: asyncssh.SSHClientConnection, host: str, python: str, directory: str) -> None:
    """Put the bundle into `directory` on the host, whole or not at all.

    Raises:
        UnavailableError: it cannot be written there.
    """
    data = bundle_tar()
    program = files(__package__).joinpath("install.py").read_bytes().hex()
    argv = ["exec", python, "-c", RUN_HEX, program, directory, hashlib.sha256(data).hexdigest()]
    output, words = await _run(connection, host, shlex.join(argv), data, UPLOAD_TIMEOUT)
    fields = output.decode("utf-8", "replace").rstrip("\n").rpartition("\n")[2].split("\t")
    if fields == ["ok"]:
        return
    if len(fields) != 4 or fields[0] != "failed":
        raise UnavailableError(f"the agent could not be uploaded to {host}: {words or 'no answer'}", "Connect again.")
    raise upload_error(host, fields[1], clean(fields[2]), clean(fields[3]))


def upload_error(host: str, code: str, path: str, reason: str) -> UnavailableError:
    """The installer's failure in words."""
    if code in {"ENOSPC", "EDQUOT"}:
        why = "the disk is full" if code == "ENOSPC" else "the disk quota is used up"
        return UnavailableError(f"{why} on {host} at {path}", "Free a few MiB there, then connect again.")
    if code in {"EACCES", "EPERM", "EROFS", "ENOTDIR", "EEXIST", "ENOENT"}:
        root = PurePosixPath(path)
        return UnavailableError(
            f"{root} on {host} cannot be written ({reason})", "Make it a directory of this user, or set XDG_CACHE_HOME."
        )
    return UnavailableError(f"the agent could not be installed on {host} at {path}: {reason}", "Connect again.")


async def _run(
    connection: asyncssh.SSHClientConnection, host: str, command: str, data: bytes, timeout: float
) -> tuple[bytes, str]:
    """(standard output, last line of standard error) of a command that reads `data`.

    Raises:
        UnavailableError: the connection broke, or the command did not end in time.
    """
    try:
        process = await connection.create_process(command, encoding=None, request_pty=False)
        with suppress(BrokenPipeError):  # it ended without reading: what it said tells why
            process.stdin.write(data)
            process.stdin.write_eof()
        done = await process.wait(check=False, timeout=timeout)
    except (asyncssh.TimeoutError, TimeoutError) as error:
        what = f"{host} did not finish a command within {timeout:.0f} s"
        raise UnavailableError(what, f"Check that `ssh {host} uname` returns at once.") from error
    except (OSError, asyncssh.Error) as error:
        raise UnavailableError(f"the connection to {host} broke: {clean(str(error))}", "Connect again.") from error
    if connection.is_closed():
        raise UnavailableError(f"the connection to {host} broke while it ran a command", "Connect again.")
    return raw(done.stdout), last_line(raw(done.stderr))


def raw(output: bytes | str | None) -> bytes:
    """What a command run without an encoding wrote."""
    return output if isinstance(output, bytes) else (output or "").encode()
