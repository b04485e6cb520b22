"""A real OpenSSH server on loopback, with keys, homes and an ssh config of its own."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from kimi_agent.paths import Home
from kimi_console.demo.profile import free_port
from kimi_console.remote.ssh import Deadlines, open_ssh
from kimi_console.source.questions import Questions

PORTS = range(12_000, 20_000)
"""Others than those of SGLang's servers, which bind theirs a minute after it was found free."""


def keygen(path: Path, passphrase: str = "", kind: str = "ed25519") -> Path:
    """A new key pair; the private key's path."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)],
        check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return path


def fingerprint(path: Path) -> str:
    """`SHA256:…` of a key, as ssh-keygen prints it."""
    words = subprocess.run(["ssh-keygen", "-lf", str(path)], check=True, capture_output=True, text=True)
    return words.stdout.split()[1]


async def login(
    questions: Questions | None = None, deadlines: Deadlines | None = None, *, host: str = "gpu-07",
    config: Path | None = None,
) -> str:  # fmt: skip
    """What a command over a connection prints."""
    connection = await open_ssh(host, config, deadlines, questions)
    try:
        done = await connection.run("echo $HOME", check=True)
    finally:
        connection.abort()
        await connection.wait_closed()
    return str(done.stdout).strip()


@dataclass
class Sshd:
    """The server, and what a client needs to reach it."""

    process: subprocess.Popen[bytes]
    port: int
    host_key: Path
    home: Path
    """$HOME of sessions on the "far" host."""
    client_home: Path
    """$HOME of the operator."""
    key: Path
    """The operator's key, which the server accepts."""
    config: Path
    known_hosts: Path
    settings: Path
    """The server's own configuration."""
    address: str = "127.0.0.1"
    network: str | None = None
    """Name of the network namespace that the server is in; its own machine's when not given."""

    @property
    def agent(self) -> Home:
        """The home of the agent that a console starts on the "far" host."""
        return Home(self.home / ".local" / "state" / "kimi-agent")

    def restart(self, *lines: str, accounts: Path | None = None) -> None:
        """End the server and start it again with settings that come before those it has.

        Args:
            lines: of sshd_config.
            accounts: a directory whose passwd, shadow and pam.d/sshd the server sees instead of the machine's.
        """
        self.stop()
        self.settings.write_text("\n".join([*lines, self.settings.read_text()]))
        self.process = _start(self.settings, self.address, self.port, accounts, self.network)

    def move(self, network: str, address: str) -> None:
        """Let the server run in a network of its own, where it has this address."""
        self.network, self.address = network, address
        self.restart(f"ListenAddress {address}")
        self.trust()
        self.write_config()

    def stop(self) -> None:
        """End the server with all its sessions, as when the host goes down."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)  # a session that it took now would outlive it
            self.cut_connections()
            self.process.kill()
        self.process.wait(10)
        deadline = time.monotonic() + 10
        with suppress(OSError):  # a child that was just forked may still have the port: what it takes is reset
            while True:
                socket.create_connection((self.address, self.port), 1).close()
                assert time.monotonic() < deadline, f"somebody still listens at {self.address}:{self.port}"
                time.sleep(0.02)

    def trust(self, key: Path | None = None) -> None:
        """Put the server's key (or another one) into known_hosts."""
        kind, data = (key or self.host_key).with_suffix(".pub").read_text().split()[:2]
        self.known_hosts.write_text(f"[{self.address}]:{self.port} {kind} {data}\n")

    def write_config(self, **settings: str) -> Path:
        """The operator's ssh config: the alias `gpu-07`, with settings added or replaced."""
        lines = {
            "HostName": self.address,
            "Port": str(self.port),
            "User": "root" if os.getuid() == 0 else psutil.Process().username(),
            "IdentityFile": str(self.key),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self.known_hosts),
        } | settings
        body = "".join(f"    {name} {value}\n" for name, value in lines.items() if value)
        self.config.write_text(f"Host gpu-07\n{body}")
        return self.config

    def cut_connections(self) -> None:
        """Kill every session of the server, as a dying network would; the listener stays."""
        if self.process.poll() is not None:
            return
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.name().startswith("sshd"):
                    child.send_signal(signal.SIGKILL)


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end_agent: Callable[[Home], None]) -> Iterator[Sshd]:
    """A running server whose sessions live in a home directory of the test; it ends with the test."""
    monkeypatch.setenv("HOME", str(tmp_path / "near"))
    for name in ("SSH_AUTH_SOCK", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "KIMI_AGENT_HOME"):
        monkeypatch.delenv(name, raising=False)
    with running_sshd(tmp_path) as server:
        yield server
    end_agent(server.agent)


@contextmanager
def running_sshd(place: Path) -> Iterator[Sshd]:
    """A server with keys, homes and settings below `place`: `far` is the host's home, `near` the operator's."""
    home, client_home = place / "far", place / "near"
    for directory in (home, client_home / ".ssh"):
        directory.mkdir(parents=True, mode=0o700)
    key = keygen(client_home / ".ssh" / "id_work")
    (place / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    host_key = keygen(place / "host_key")
    port = free_port(PORTS)
    settings = place / "sshd_config"
    settings.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {host_key}\nPidFile none\nStrictModes no\nUsePAM no\n"
        f"AuthorizedKeysFile {place / 'authorized_keys'}\nPasswordAuthentication no\nPrintMotd no\n"
        f"KbdInteractiveAuthentication no\nPermitRootLogin yes\nMaxStartups 100\nUseDNS no\nSetEnv HOME={home}\n"
    )
    server = Sshd(
        _start(settings, "127.0.0.1", port), port, host_key, home, client_home, key, client_home / ".ssh" / "config",
        client_home / ".ssh" / "known_hosts", settings,
    )  # fmt: skip
    server.write_config()
    try:
        yield server
    finally:
        server.stop()


def _start(
    settings: Path, address: str, port: int, accounts: Path | None = None, network: str | None = None
) -> "subprocess.Popen[bytes]":
    """Start sshd and wait until it listens."""
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.fail("There is no sshd: apt-get install openssh-server", pytrace=False)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    argv = [program, "-f", str(settings), "-D", "-e"]
    if accounts is not None:
        binds = [f"mount --bind {accounts}/{name} /etc/{name}" for name in ("passwd", "shadow", "pam.d")]
        argv = ["unshare", "--mount", "sh", "-c", " && ".join([*binds, shlex.join(["exec", *argv])])]
    if network is not None:
        argv = ["nsenter", f"--net=/run/netns/{network}", *argv]
    log = settings.with_suffix(".log")
    with log.open("wb") as file:
        process = subprocess.Popen(argv, stderr=file)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((address, port), 1):
            return process
        if process.poll() is not None:
            break
        time.sleep(0.02)
    process.kill()
    process.wait()
    pytest.fail(f"sshd did not start: {log.read_text()}", pytrace=False)


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    """Accounts of a machine of its own: `operator`, whose password is `open sesame`, beside those that are here."""
    if os.geteuid() != 0:
        pytest.fail("This test gives sshd accounts of its own: run it as root, in a container.", pytrace=False)
    place = tmp_path / "etc"
    (place / "pam.d").mkdir(parents=True)
    hashed = subprocess.run(
        ["openssl", "passwd", "-6", "-stdin"], input="open sesame\n", check=True, capture_output=True, text=True
    ).stdout.strip()
    (place / "passwd").write_text(f"{Path('/etc/passwd').read_text()}operator:x:0:0::{tmp_path / 'far'}:/bin/sh\n")
    (place / "shadow").write_text(f"{Path('/etc/shadow').read_text()}operator:{hashed}:19000:0:99999:7:::\n")
    (place / "pam.d" / "sshd").write_text(
        "auth required pam_unix.so\naccount required pam_permit.so\nsession required pam_permit.so\n"
    )
    return place


@pytest.fixture
def ssh_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """A running ssh-agent; call it with a key file to load that key."""
    path = tmp_path / "agent.sock"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline, "ssh-agent did not start"
        time.sleep(0.02)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))

    def load(key: Path) -> None:
        subprocess.run(["ssh-add", "-q", str(key)], check=True, stdin=subprocess.DEVNULL)

    yield load
    process.terminate()
    process.wait(10)


@pytest.fixture
def console() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs the `kimi-console` command of this environment to its end."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kimi_console", *arguments],
            check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run
