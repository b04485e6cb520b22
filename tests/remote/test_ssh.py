"""Logging in over a real OpenSSH server, and what is said when it does not work."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kimi_agent.errors import Exit, KimiError, UnavailableError, UsageError
from kimi_console.demo.profile import free_port
from kimi_console.remote.config import named_hosts
from kimi_console.remote.ssh import Deadlines, parse_host

from .conftest import Sshd, fingerprint, keygen, login

Console = Callable[..., "subprocess.CompletedProcess[str]"]


async def refused(**options: object) -> KimiError:
    with pytest.raises(KimiError) as caught:
        await login(**options)  # type: ignore[arg-type]
    return caught.value


async def test_an_alias_with_a_key_file_logs_in(sshd: Sshd) -> None:
    sshd.trust()
    assert await login() == str(sshd.home)


async def test_another_config_file_is_used_instead_of_the_users(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    other = sshd.config.rename(tmp_path / "elsewhere")
    assert await login(config=other) == str(sshd.home)


async def test_the_key_may_come_from_an_ssh_agent(sshd: Sshd, ssh_agent: Callable[[Path], None]) -> None:
    sshd.trust()
    ssh_agent(sshd.key)
    sshd.key.unlink()
    sshd.write_config(IdentityFile="", IdentitiesOnly="")
    assert await login() == str(sshd.home)


async def test_a_jump_host_is_gone_through(sshd: Sshd) -> None:
    sshd.trust()
    sshd.write_config(ProxyJump="jump")
    text = sshd.config.read_text()
    jump = text.replace("Host gpu-07", "Host jump").replace("    ProxyJump jump\n", "")
    sshd.config.write_text(text + jump)
    assert await login() == str(sshd.home)
    sshd.config.write_text(text.replace(f"Port {sshd.port}", f"Port {free_port()}") + jump)
    error = await refused()
    assert error.message.startswith("the jump host jump cannot reach 127.0.0.1:")


async def test_an_unknown_host_key_is_shown_and_not_accepted(sshd: Sshd, console: Console) -> None:
    done = console("connect", "gpu-07", "--json")
    assert done.returncode == Exit.UNAVAILABLE
    assert done.stdout == ""
    assert done.stderr == (
        f"kimi-console: gpu-07 ([127.0.0.1]:{sshd.port}) is not a known host; it shows ssh-ed25519 "
        f"{fingerprint(sshd.host_key)}. If that is its key, add it: ssh gpu-07, and answer yes.\n"
    )


async def test_the_way_out_repeats_what_was_typed(sshd: Sshd, tmp_path: Path) -> None:
    other = sshd.config.rename(tmp_path / "my config")
    error = await refused(config=other, host=f"someone@gpu-07:{sshd.port}")
    assert error.hint == (
        f"If that is its key, add it: ssh -F '{tmp_path}/my config' -p {sshd.port} someone@gpu-07, and answer yes."
    )


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
async def test_a_changed_host_key_is_named_with_the_way_out(sshd: Sshd, tmp_path: Path, kind: str) -> None:
    old = keygen(tmp_path / "old_key", kind=kind)
    sshd.trust(old)
    error = await refused()
    assert error.exit == Exit.UNAVAILABLE
    assert str(error) == (
        f"gpu-07 has changed its host key (was {fingerprint(old)}, now {fingerprint(sshd.host_key)}). If the machine "
        f"was reinstalled: ssh-keygen -R '[127.0.0.1]:{sshd.port}', then connect again."
    )
    forget = ["ssh-keygen", "-R", f"[127.0.0.1]:{sshd.port}", "-f", str(sshd.known_hosts)]
    await asyncio.to_thread(lambda: subprocess.run(forget, check=True))
    assert "is not a known host" in str(await refused())


async def test_no_known_hosts_file_and_none_mean_unknown_not_trusted(sshd: Sshd) -> None:
    sshd.write_config(UserKnownHostsFile="none")
    assert "is not a known host" in str(await refused())


async def test_a_wrong_key_is_named(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    wrong = keygen(tmp_path / "id_wrong")
    sshd.write_config(IdentityFile=str(wrong), User="root")
    assert str(await refused()) == (
        f"root on gpu-07 is refused: tried publickey with {wrong} ({fingerprint(wrong)}). "
        "Add a key there with ssh-copy-id, or look with ssh -v gpu-07."
    )


async def test_a_key_with_a_passphrase_needs_an_agent(
    sshd: Sshd, tmp_path: Path, ssh_agent: Callable[[Path], None]
) -> None:
    sshd.trust()
    locked = keygen(tmp_path / "id_locked", passphrase="secret words")
    sshd.write_config(IdentityFile=str(locked), User="root")
    assert str(await refused()) == (
        f"the key {locked} for root on gpu-07 has a passphrase and no ssh-agent holds it. "
        f"Run ssh-add {locked}, then connect again."
    )
    ssh_agent(sshd.key)
    sshd.write_config(IdentityFile=str(locked), IdentitiesOnly="")
    assert await login() == str(sshd.home)


async def test_a_missing_key_file_is_the_configs_fault(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    sshd.write_config(IdentityFile=str(tmp_path / "nowhere"))
    error = await refused()
    assert error.exit == Exit.USAGE
    assert error.message == f"the key file {tmp_path / 'nowhere'} that the ssh config names for gpu-07 does not exist"


async def test_a_closed_port_is_named_after_the_configs_expansion(sshd: Sshd) -> None:
    port = free_port()
    sshd.write_config(Port=str(port))
    assert str(await refused()) == (
        f"gpu-07 at 127.0.0.1:{port} refuses connections. Check that sshd runs there, and the port."
    )


async def test_a_name_that_does_not_resolve(sshd: Sshd) -> None:
    sshd.write_config(HostName="no-such-host.invalid")
    assert (await refused()).message == "the name no-such-host.invalid cannot be resolved"


async def test_a_known_host_that_never_speaks_times_out_as_soon(sshd: Sshd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        kind, data = sshd.host_key.with_suffix(".pub").read_text().split()[:2]
        sshd.known_hosts.write_text(f"[127.0.0.1]:{port} {kind} {data}\n")
        sshd.write_config(Port=str(port))
        async with asyncio.timeout(30):
            error = await refused(deadlines=Deadlines(connect=5.0, login=1.0))
    assert error.message == f"gpu-07 (127.0.0.1:{port}) did not finish the login within 1 s"


async def test_a_server_that_never_speaks_times_out(sshd: Sshd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        sshd.write_config(Port=str(port))
        error = await refused(deadlines=Deadlines(connect=5.0, login=1.0))
    assert isinstance(error, UnavailableError)
    assert error.message == f"gpu-07 (127.0.0.1:{port}) did not finish the login within 1 s"


async def test_a_broken_config_is_a_usage_error_naming_the_line(sshd: Sshd) -> None:
    sshd.config.write_text("Host gpu-07\n    Port many\n")
    error = await refused()
    assert error.exit == Exit.USAGE
    assert "line 2" in error.message


def test_hosts_are_listed_from_the_config_and_its_includes(sshd: Sshd) -> None:
    (sshd.client_home / ".ssh" / "more").write_text("Host far-away *.example.org !bad\n")
    sshd.config.write_text(f"Include more\n{sshd.config.read_text()}Host *\n    User me\nHost=quoted\n")
    assert named_hosts() == ["far-away", "gpu-07", "quoted"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gpu-07", ("gpu-07", None, None)),
        ("me@gpu-07:2222", ("gpu-07", "me", 2222)),
        ("ssh://me@gpu-07:2222/", ("gpu-07", "me", 2222)),
        ("[::1]:22", ("::1", None, 22)),
        ("fe80::1", ("fe80::1", None, None)),
    ],
)
def test_hosts_are_taken_apart(text: str, parts: tuple[str, str | None, int | None]) -> None:
    assert parse_host(text) == parts


@pytest.mark.parametrize("text", ["", "a b", "-oProxyCommand=x", "host:0", "host:99999", "host:x", "a\nb"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a host"):
        parse_host(text)


async def test_a_proxy_command_carries_the_connection(sshd: Sshd) -> None:
    pump = (
        "import os,select,socket,sys; s=socket.create_connection((sys.argv[1],int(sys.argv[2])))\n"
        "while True:\n"
        " for f in select.select([0,s],[],[])[0]:\n"
        "  d=os.read(0,65536) if f==0 else s.recv(65536)\n"
        "  d or sys.exit()\n"
        "  s.sendall(d) if f==0 else os.write(1,d)\n"
    )
    script = sshd.client_home / "pump.py"
    script.write_text(pump)
    kind, data = sshd.host_key.with_suffix(".pub").read_text().split()[:2]
    sshd.known_hosts.write_text(f"gpu-07-key {kind} {data}\n")
    sshd.write_config(ProxyCommand=f"{sys.executable} {script} %h %p", HostKeyAlias="gpu-07-key")
    assert await login() == str(sshd.home)
