"""Every way in which a host can fail a console, as the operator reads it: one sentence, one next step, exit code."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kimi_agent.errors import Exit
from kimi_agent.wire.client import Client

from .conftest import Sshd, fingerprint, keygen

HINT = "Give the Python that runs SGLang with --python, or in the profile as [server] python."
ALONE = "unshare --net sh -c"
"""A network of its own, in which nothing can be reached."""
SILENT = (
    "ip link set lo up && ip link add v0 type veth peer name v1 && ip addr add 10.201.0.1/24 dev v0 && "
    "ip link set v0 up && ip link set v1 up && ip neigh add 10.201.0.9 lladdr 02:00:00:00:00:99 dev v0 && "
)
"""A network in which packets to 10.201.0.9 leave and nothing ever answers."""


def diagnose(*arguments: str, around: str = "", before: str = "") -> tuple[int, str]:
    """(exit code, what is said) of `kimi-console diagnose gpu-07`, inside another command where given."""
    argv = [sys.executable, "-m", "kimi_console", "diagnose", "gpu-07", *arguments]
    if around:
        argv = [*shlex.split(around), f"{before}exec {shlex.join(argv)}"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.stdout == ""
    assert done.stderr.startswith("kimi-console: ")
    assert done.stderr.count("\n") == 1
    return done.returncode, done.stderr.removeprefix("kimi-console: ").rstrip("\n")


def python_in(directory: Path, version: str, sglang: str | None = None) -> Path:
    """An interpreter that says it is `version`: what the probe runs of it is `-c` with a program that prints."""
    path = directory / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{version} {sglang or '-'}'\n")
    path.chmod(0o755)
    return path


def only_path(sshd: Sshd, tmp_path: Path) -> Path:
    """Give the server's sessions a PATH without any Python, and return that directory."""
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("sh", "env", "uname", "tr", "sed", "head", "readlink", "printf", "cat"):
        (bare / name).symlink_to(f"/usr/bin/{name}")
    sshd.settings.write_text(sshd.settings.read_text().replace("SetEnv ", f"SetEnv PATH={bare} "))
    sshd.restart()
    return bare


def test_an_unknown_host_key(sshd: Sshd) -> None:
    code, said = diagnose()
    assert code == Exit.UNAVAILABLE
    assert (
        f"is not a known host; it shows ssh-ed25519 {fingerprint(sshd.host_key)}. If that is its key, add it:" in said
    )


def test_a_changed_host_key(sshd: Sshd, tmp_path: Path) -> None:
    old = keygen(tmp_path / "old")
    sshd.trust(old)
    code, said = diagnose()
    assert code == Exit.UNAVAILABLE
    assert said.startswith(
        f"gpu-07 has changed its host key (was {fingerprint(old)}, now {fingerprint(sshd.host_key)}). "
        "If the machine was reinstalled: ssh-keygen -R "
    )


def test_a_refused_login(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    wrong = keygen(tmp_path / "wrong")
    sshd.write_config(IdentityFile=str(wrong), User="root")
    assert diagnose() == (
        Exit.UNAVAILABLE,
        f"root on gpu-07 is refused: tried publickey with {wrong} ({fingerprint(wrong)}). Add a key there with "
        "ssh-copy-id, or look with ssh -v gpu-07.",
    )


def test_no_route(sshd: Sshd) -> None:
    sshd.write_config(HostName="10.201.0.9", Port="22")
    assert diagnose(around=ALONE) == (
        Exit.UNAVAILABLE,
        "there is no route to gpu-07 at 10.201.0.9:22. Check the network and the VPN.",
    )


def test_packets_that_nobody_answers(sshd: Sshd) -> None:
    sshd.write_config(HostName="10.201.0.9", Port="22", ConnectTimeout="1")
    assert diagnose(around=ALONE, before=SILENT) == (
        Exit.UNAVAILABLE,
        "gpu-07 at 10.201.0.9:22 does not answer (waited 1 s). Check that the host is up and that no firewall is "
        "between.",
    )


def test_a_closed_port(sshd: Sshd) -> None:
    sshd.trust()
    sshd.stop()
    assert diagnose() == (
        Exit.UNAVAILABLE,
        f"gpu-07 at 127.0.0.1:{sshd.port} refuses connections. Check that sshd runs there, and the port.",
    )


def test_no_python(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    only_path(sshd, tmp_path)
    code, said = diagnose("--python", "python3")
    assert (code, said) == (Exit.USAGE, f"there is no working Python at python3 on gpu-07. {HINT}")


def test_python_too_old(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    old = python_in(tmp_path / "old", "3.8", "0.4.1")
    code, said = diagnose("--python", str(old))
    assert (code, said) == (Exit.USAGE, f"{old} on gpu-07 is Python 3.8, the agent needs 3.10 or newer. {HINT}")


def test_no_sglang(sshd: Sshd) -> None:
    sshd.trust()
    code, said = diagnose("--python", sys.executable)
    assert (code, said) == (Exit.USAGE, f"{sys.executable} on gpu-07 has no SGLang. {HINT}")


@pytest.fixture
def tiny_home(sshd: Sshd) -> Iterator[Sshd]:
    """The far home on a file system of its own, of 256 KiB."""
    if os.geteuid() != 0:
        pytest.fail("This test mounts a tiny tmpfs: run it as root, in a container for example.", pytrace=False)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(sshd.home)], check=True)
    yield sshd
    subprocess.run(["umount", "-l", str(sshd.home)], check=True)


@pytest.fixture
def with_sglang(tmp_path: Path) -> Path:
    """This Python, in an environment where SGLang is known by its metadata: enough to be chosen."""
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", str(place)], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "sglang-0.5.23.dist-info").mkdir()
    (site / "sglang-0.5.23.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
    (site / "these.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return place / "bin" / "python"


def test_a_full_disk(tiny_home: Sshd, with_sglang: Path) -> None:
    tiny_home.trust()
    code, said = diagnose("--python", str(with_sglang))
    assert code == Exit.UNAVAILABLE
    assert said.startswith(f"the disk is full on gpu-07 at {tiny_home.home}/.cache/kimi-console/agent/")
    assert said.endswith("Free a few MiB there, then connect again.")


def test_a_home_that_cannot_be_written(tiny_home: Sshd, with_sglang: Path) -> None:
    tiny_home.trust()
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_home.home)], check=True)
    assert diagnose("--python", str(with_sglang)) == (
        Exit.UNAVAILABLE,
        f"{tiny_home.home}/.cache on gpu-07 cannot be written (Read-only file system). Make it a directory of this "
        "user, or set XDG_CACHE_HOME.",
    )


def test_a_state_directory_that_cannot_be_written(sshd: Sshd, with_sglang: Path) -> None:
    sshd.trust()
    (sshd.home / ".local").write_text("a file where the directory should be")
    code, said = diagnose("--python", str(with_sglang))
    assert code == Exit.UNAVAILABLE
    assert f"cannot make {sshd.home}/.local/state/kimi-agent: Not a directory" in said


def test_a_host_where_all_is_well(sshd: Sshd, with_sglang: Path) -> None:
    sshd.trust()
    (sshd.home / ".bashrc").write_text("echo 'Welcome!'; echo oops >&2\n")
    done = subprocess.run(
        [sys.executable, "-m", "kimi_console", "diagnose", "gpu-07", "--json", "--python", str(with_sglang)],
        check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    assert done.stdout.startswith('{"status":"idle",')


def found_python(sshd: Sshd) -> str:
    """The Python of the agent that answers when nobody says which Python."""
    done = subprocess.run(
        [sys.executable, "-m", "kimi_console", "diagnose", "gpu-07", "--json"],
        check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    client = Client(sshd.agent.socket)
    agent = psutil.Process(client.hello["pid"]).cmdline()
    client.close()
    return str(agent[0])


def test_a_virtual_environment_in_its_usual_place_is_found(sshd: Sshd, with_sglang: Path) -> None:
    sshd.trust()
    (sshd.home / "sglang-env").symlink_to(with_sglang.parents[1])
    assert found_python(sshd) == str(sshd.home / "sglang-env" / "bin" / "python")


def servers() -> set[str]:
    """The Pythons of the SGLang servers that run now; other tests have some."""
    lines: list[list[str]] = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return {argv[0] for argv in lines if "sglang.launch_server" in argv}


def test_the_python_of_a_running_server_is_found(sshd: Sshd, with_sglang: Path) -> None:
    sshd.trust()
    running = subprocess.Popen([str(with_sglang), "-c", "import time; time.sleep(60)", "sglang.launch_server"])
    try:
        before, found, after = servers(), found_python(sshd), servers()
        assert found in {str(with_sglang), *before, *after}
    finally:
        running.kill()
        running.wait()


def test_the_python_that_the_operator_wrote_down_for_the_host_is_used(sshd: Sshd, with_sglang: Path) -> None:
    sshd.trust()
    hosts = sshd.client_home / ".config" / "kimi-console" / "hosts.toml"
    hosts.parent.mkdir(parents=True)
    hosts.write_text(f'[gpu-07]\npython = "{with_sglang}"\n')
    assert found_python(sshd) == str(with_sglang)
