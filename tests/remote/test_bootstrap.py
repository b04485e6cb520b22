"""Finding SGLang's Python on a host and bringing the agent there, over real SSH."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncssh
import pytest

from kimi_agent.bundle import build_id
from kimi_agent.errors import Exit, KimiError, UnavailableError, UsageError
from kimi_console.demo.engine import Engine
from kimi_console.remote.bootstrap import (
    Interpreter,
    Survey,
    bootstrap,
    choose,
    parse_survey,
    probe,
    upload,
    upload_error,
)
from kimi_console.remote.dial import ssh_dial
from kimi_console.remote.ssh import open_ssh
from kimi_console.source.client import AgentClient

from .conftest import Sshd

Console = Callable[..., "subprocess.CompletedProcess[str]"]


@asynccontextmanager
async def connected() -> AsyncIterator[asyncssh.SSHClientConnection]:
    connection = await open_ssh("gpu-07")
    try:
        yield connection
    finally:
        connection.abort()
        await connection.wait_closed()


def bundle_on(sshd: Sshd) -> Path:
    return sshd.home / ".cache" / "kimi-console" / "agent" / build_id()


async def test_the_bundle_is_uploaded_once_whole_and_private(sshd: Sshd) -> None:
    sshd.trust()
    async with connected() as connection:
        before = await probe(connection, "gpu-07", sys.executable)
        assert (before.home, before.present, Path(before.bundle)) == (str(sshd.home), False, bundle_on(sshd))
        await upload(connection, "gpu-07", sys.executable, before.bundle)
        assert (await probe(connection, "gpu-07", sys.executable)).present
    assert (bundle_on(sshd) / "kimi_agent" / "cli.py").is_file()
    assert (bundle_on(sshd) / "kimi_capture" / "hook.py").is_file()
    assert [path.name for path in bundle_on(sshd).parent.iterdir()] == [build_id()]
    assert bundle_on(sshd).parent.stat().st_mode & 0o077 == 0


async def test_two_consoles_that_upload_at_once_do_not_disturb_each_other(sshd: Sshd) -> None:
    sshd.trust()
    async with connected() as one, connected() as two:
        await asyncio.gather(
            *(upload(connection, "gpu-07", sys.executable, str(bundle_on(sshd))) for connection in (one, two))
        )
    assert [path.name for path in bundle_on(sshd).parent.iterdir()] == [build_id()]


async def test_a_noisy_profile_does_not_confuse_the_probe(sshd: Sshd) -> None:
    sshd.trust()
    (sshd.home / ".bashrc").write_text(
        "echo 'Welcome to gpu-07'; printf 'python\\t3.12 9.9\\t/evil\\n'; echo oops >&2\n"
    )
    async with connected() as connection:
        assert "Welcome" in str((await connection.run("true")).stdout)
        survey = await probe(connection, "gpu-07", sys.executable)
    assert [found.path for found in survey.pythons] == [sys.executable]


async def busy() -> None:
    """Keep the event loop from reading for a tenth of a second at a time, as a loaded machine does."""
    while True:
        time.sleep(0.1)  # noqa: ASYNC251 - the loop is to be blocked
        await asyncio.sleep(0)


async def test_a_shell_that_ends_before_its_input_is_sent_is_still_quoted(sshd: Sshd) -> None:
    sshd.trust()
    (sshd.home / ".bashrc").write_text("echo this account is closed >&2; exit 3\n")
    async with connected() as connection:
        blocking = asyncio.create_task(busy())
        try:
            for _ in range(5):
                with pytest.raises(UnavailableError, match="run a command for the console: this account is closed"):
                    await probe(connection, "gpu-07", sys.executable)
        finally:
            blocking.cancel()


async def test_a_connection_that_breaks_while_the_host_is_looked_at_is_told_as_that(sshd: Sshd) -> None:
    sshd.trust()
    gate = sshd.home / "gate"
    os.mkfifo(gate)
    (sshd.home / ".bashrc").write_text(f"cat {gate}\n")
    async with connected() as connection:
        probing = asyncio.create_task(probe(connection, "gpu-07", sys.executable))
        with await asyncio.to_thread(gate.open, "w"):  # opens when the far shell reads it, ends the shell when closed
            sshd.cut_connections()
            with pytest.raises(UnavailableError, match="the connection to gpu-07 broke"):
                await probing


async def test_paths_with_blanks_quotes_and_dollars_stay_one_word(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    odd = tmp_path / "it's $HOME; `touch evil`" / "python 3"
    odd.parent.mkdir()
    odd.symlink_to(sys.executable)
    async with connected() as connection:
        survey = await probe(connection, "gpu-07", str(odd))
        await upload(connection, "gpu-07", str(odd), str(tmp_path / "a 'dir' $x" / "b"))
    assert [found.path for found in survey.pythons] == [str(odd)]
    assert (tmp_path / "a 'dir' $x" / "b" / "kimi_agent").is_dir()
    assert not list(tmp_path.rglob("evil"))


async def test_a_python_that_is_not_there_and_one_without_sglang(sshd: Sshd, console: Console) -> None:
    sshd.trust()
    hint = "Give the Python that runs SGLang with --python, or in the profile as [server] python."
    done = await asyncio.to_thread(console, "connect", "gpu-07", "--json", "--python", "/nowhere/python")
    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert done.stderr == f"kimi-console: there is no working Python at /nowhere/python on gpu-07. {hint}\n"
    async with connected() as connection:
        with pytest.raises(UsageError) as caught:
            await bootstrap(connection, "gpu-07", sys.executable)
    assert str(caught.value) == f"{sys.executable} on gpu-07 has no SGLang. {hint}"
    assert not bundle_on(sshd).exists()


async def test_a_home_that_cannot_be_written_is_named(sshd: Sshd) -> None:
    sshd.trust()
    (sshd.home / ".cache").write_text("a file where the directory should be")
    async with connected() as connection:
        with pytest.raises(UnavailableError) as caught:
            await upload(connection, "gpu-07", sys.executable, str(bundle_on(sshd)))
    assert "on gpu-07 cannot be written (Not a directory)" in caught.value.message


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    if os.geteuid() != 0:
        pytest.fail("This test mounts a tiny tmpfs: run it as root, in a container for example.", pytrace=False)
    place = tmp_path / "full"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_a_full_disk_is_named_and_leaves_nothing_behind(sshd: Sshd, full_disk: Path) -> None:
    sshd.trust()
    async with connected() as connection:
        with pytest.raises(UnavailableError, match="the disk is full on gpu-07"):
            await upload(connection, "gpu-07", sys.executable, str(full_disk / "agent" / "abc"))
    assert list((full_disk / "agent").iterdir()) == []


@pytest.mark.engine
async def test_the_console_attaches_to_a_host_that_has_never_seen_it(sshd: Sshd, engine: Engine) -> None:
    sshd.trust()
    dial = ssh_dial("gpu-07", str(engine.python), read_only=True)
    for _ in range(2):
        client = await AgentClient.greet(await dial())
        assert client.hello.build == build_id()
        reading = asyncio.create_task(_read(client))
        assert (await client.request("status"))["status"] == "IDLE"
        with pytest.raises(KimiError, match="read-only"):
            await client.request("stop")
        await client.close()
        await reading
    assert sshd.agent.journal.is_dir()


@pytest.mark.engine
async def test_diagnose_and_connect_work_from_the_command_line(sshd: Sshd, engine: Engine, console: Console) -> None:
    sshd.trust()
    done = await asyncio.to_thread(console, "diagnose", "gpu-07", "--json", "--python", str(engine.python))
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    assert done.stdout.startswith('{"status":"idle",')
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kimi_console", "connect", "gpu-07", "--headless", "--python", str(engine.python),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    first = await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = await process.communicate()
    assert b"info    agent " in first
    assert (process.returncode, errors.strip()) == (Exit.INTERRUPTED, b"")


@pytest.mark.engine
def test_a_bundle_comes_over_ssh_without_the_name_of_the_host(
    sshd: Sshd, engine: Engine, console: Console, tmp_path: Path
) -> None:
    sshd.trust()
    path = tmp_path / "b.zip"
    done = console("bundle", "gpu-07", "--python", str(engine.python), "-o", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{path}  taken out: ")
    assert path.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        for name in archive.namelist():
            assert b"gpu-07" not in archive.read(name), name
    again = console("bundle", "gpu-07", "--python", str(engine.python), "-o", str(path))
    assert "exists already" in again.stderr


async def _read(client: AgentClient) -> None:
    async for _ in client.batches():
        continue


OLD = Interpreter("/usr/bin/python3", (3, 8), "0.5.23")
BARE = Interpreter("/usr/bin/python3", (3, 11), None)
GOOD = Interpreter("/venv/bin/python", (3, 12), "0.5.23")


def survey(*pythons: Interpreter, system: str = "Linux x86_64") -> Survey:
    return Survey("/root", system, "/root/.cache/x", False, pythons)


def test_the_first_python_with_sglang_is_chosen() -> None:
    assert choose(survey(OLD, BARE, GOOD), "h", None) == GOOD


@pytest.mark.parametrize(
    ("found", "asked", "message"),
    [
        (survey(), None, "no Python was found on h"),
        (survey(BARE), None, "no Python on h has SGLang (looked at /usr/bin/python3 3.11)"),
        (survey(BARE, OLD), None, "/usr/bin/python3 on h is Python 3.8, the agent needs 3.10 or newer"),
        (survey(OLD), OLD.path, "/usr/bin/python3 on h is Python 3.8, the agent needs 3.10 or newer"),
        (survey(GOOD, system="Darwin arm64"), None, "h runs Darwin arm64, the agent needs Linux"),
    ],
)
def test_a_host_that_will_not_do_is_refused_with_the_reason(found: Survey, asked: str | None, message: str) -> None:
    with pytest.raises(KimiError) as caught:
        choose(found, "h", asked)
    assert caught.value.message == message


def test_an_answer_without_marks_says_what_the_shell_said() -> None:
    with pytest.raises(UnavailableError, match="did not run a command for the console: This account is closed"):
        parse_survey("hello\n", "@@mark@@", "h", "This account is closed")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("ENOSPC", "the disk is full on h at /x"),
        ("EDQUOT", "the disk quota is used up on h at /x"),
        ("EROFS", "/x on h cannot be written (why)"),
        ("EIO", "the agent could not be installed on h at /x: why"),
    ],
)
def test_upload_failures_are_told_apart(code: str, words: str) -> None:
    assert upload_error("h", code, "/x", "why").message == words
