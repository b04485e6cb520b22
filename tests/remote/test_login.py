"""Passwords, passphrases, codes and certificates, typed at a real OpenSSH server; and hosts that forbid much."""

import asyncio
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kimi_agent.errors import Exit, KimiError
from kimi_console.demo.profile import free_port
from kimi_console.remote.dial import ssh_dial
from kimi_console.remote.ssh import Deadlines
from kimi_console.source.live import LiveSource, Patience
from kimi_console.source.questions import LoginCancelled, Question, Questions

from .conftest import Sshd, fingerprint, keygen, login

PASSWORD = "password of operator on gpu-07"


class Typist:
    """Answers questions in turn, and keeps what was asked."""

    def __init__(self, answers: Sequence[str | None]) -> None:
        self.asked: list[Question] = []
        self.answers = list(answers)
        self.delay = 0.0

    async def type(self, question: Question) -> str | None:
        self.asked.append(question)
        await asyncio.sleep(self.delay)
        return self.answers.pop(0)

    @property
    def prompts(self) -> list[str]:
        return [question.prompt for question in self.asked]


async def refused(questions: Questions | None = None) -> KimiError:
    with pytest.raises(KimiError) as caught:
        await login(questions)
    return caught.value


@pytest.fixture
def by_password(sshd: Sshd, accounts: Path) -> Sshd:
    """A server that wants operator's password."""
    sshd.restart("PasswordAuthentication yes", accounts=accounts)
    sshd.trust()
    sshd.write_config(User="operator", IdentityFile=str(keygen(sshd.client_home / "id_other")))
    return sshd


@pytest.fixture
def by_questions(sshd: Sshd, accounts: Path) -> Sshd:
    """A server that asks questions of its own, and says something first."""
    banner = accounts / "banner"
    banner.write_text("Authorised \x1b[31museers only\x1b[0m\n")
    sshd.restart("UsePAM yes", "KbdInteractiveAuthentication yes", f"Banner {banner}", accounts=accounts)
    sshd.trust()
    sshd.write_config(User="operator", IdentityFile=str(keygen(sshd.client_home / "id_other")))
    return sshd


async def test_a_password_is_asked_for_and_kept_for_the_next_dial(by_password: Sshd) -> None:
    typist = Typist(["wrong", "open sesame"])
    questions = Questions(typist.type)
    assert await login(questions) == str(by_password.home)
    assert typist.prompts == [PASSWORD, PASSWORD]
    assert [question.again for question in typist.asked] == [False, True]
    assert await login(questions) == str(by_password.home)
    assert len(typist.asked) == 2, "a redial types the password by itself"


async def test_the_server_may_ask_questions_of_its_own(by_questions: Sshd) -> None:
    typist = Typist(["open sesame"])
    assert await login(Questions(typist.type)) == str(by_questions.home)
    assert typist.asked == [Question("gpu-07", PASSWORD)]


async def test_typing_takes_as_long_as_it_takes(by_password: Sshd) -> None:
    typist = Typist(["open sesame"])
    typist.delay = 6.0
    assert await login(Questions(typist.type), Deadlines(connect=5.0, login=5.0)) == str(by_password.home)


async def test_a_refused_password_says_what_was_tried(by_password: Sshd) -> None:
    error = await refused(Questions(Typist(["a", "b", "c"]).type))
    key = by_password.client_home / "id_other"
    assert error.message == (
        f"operator on gpu-07 is refused: tried publickey with {key} ({fingerprint(key)}), password (3 times)"
    )


async def test_without_a_terminal_nothing_is_asked(by_password: Sshd) -> None:
    assert "; the server also offers password, which needs a terminal to type in" in (await refused()).message


async def test_a_question_left_open_is_not_asked_again_until_redial(by_password: Sshd) -> None:
    typist = Typist([None, "open sesame"])
    dial = ssh_dial("gpu-07", "/nowhere/python", questions=Questions(typist.type))
    source = LiveSource("gpu-07", dial, patience=Patience(first_delay=0.01, last_delay=0.01))
    changed = asyncio.Event()
    source.on_link = lambda link: changed.set()
    watching = asyncio.create_task(anext(source.batches()))
    async with asyncio.timeout(20):
        while source.link.state != "lost":
            await changed.wait()
            changed.clear()
        assert source.link.detail == (
            "the login of operator on gpu-07 was left unanswered. Press r, or connect again, to be asked"
        )
        await asyncio.sleep(0.3)
        assert len(typist.asked) == 1
        source.redial()
        while "no working Python" not in source.link.detail:
            await changed.wait()
            changed.clear()
    assert len(typist.asked) == 2
    watching.cancel()
    await source.close()


async def test_a_passphrase_opens_the_key(sshd: Sshd) -> None:
    sshd.trust()
    lock = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret words", "-f", str(sshd.key)]
    await asyncio.to_thread(lambda: subprocess.run(lock, check=True, stdout=subprocess.DEVNULL))
    typist = Typist(["no", "secret words"])
    assert await login(Questions(typist.type)) == str(sshd.home)
    assert typist.prompts == [f"passphrase of the key {sshd.key}"] * 2
    with pytest.raises(LoginCancelled):
        await login(Questions(Typist([None]).type))


async def test_a_certificate_logs_in(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    authority = keygen(tmp_path / "ca")
    sshd.restart(f"TrustedUserCAKeys {authority}.pub")
    key = keygen(sshd.client_home / "id_cert")
    sshd.write_config(IdentityFile=str(key), User="root")
    assert "is refused" in (await refused()).message
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", "root", f"{key}.pub"]
    await asyncio.to_thread(lambda: subprocess.run(sign, check=True))
    assert await login() == str(sshd.home)
    moved = Path(f"{key}-cert.pub").rename(tmp_path / "elsewhere-cert.pub")
    sshd.write_config(IdentityFile=str(key), User="root", CertificateFile=str(moved))
    assert await login() == str(sshd.home)


async def test_a_host_certificate_is_trusted_through_its_authority(sshd: Sshd, tmp_path: Path) -> None:
    authority = keygen(tmp_path / "ca")
    sign = ["ssh-keygen", "-q", "-h", "-s", str(authority), "-I", "h", "-n", "127.0.0.1", f"{sshd.host_key}.pub"]
    await asyncio.to_thread(lambda: subprocess.run(sign, check=True))
    sshd.restart(f"HostCertificate {sshd.host_key}-cert.pub")
    kind, data = authority.with_suffix(".pub").read_text().split()[:2]
    sshd.known_hosts.write_text(f"@cert-authority [127.0.0.1]:{sshd.port} {kind} {data}\n")
    assert await login() == str(sshd.home)


async def test_a_chain_of_jump_hosts_each_with_its_own_port(sshd: Sshd) -> None:
    sshd.trust()
    sshd.write_config(ProxyJump="one,two")
    text = sshd.config.read_text()
    for name, jump in (("one", ""), ("two", "")):
        text += sshd.config.read_text().replace("gpu-07", name).replace("ProxyJump one,two", jump)
    sshd.config.write_text(text)
    assert await login() == str(sshd.home)
    sshd.config.write_text(text.replace("Host one", f"Host one\n    Port {free_port()}"))
    assert (await refused()).message.startswith("one at 127.0.0.1:")


async def test_too_many_keys_are_told_with_the_way_out(
    sshd: Sshd, tmp_path: Path, ssh_agent: Callable[[Path], None]
) -> None:
    sshd.trust()
    for number in range(7):
        ssh_agent(keygen(tmp_path / f"key{number}"))
    sshd.write_config(IdentityFile="", IdentitiesOnly="", User="root")
    error = await refused()
    assert error.message.startswith("root on gpu-07 is refused after too many tries: tried publickey with key0 of the")
    assert error.hint.startswith("Name the one key with IdentityFile and set IdentitiesOnly yes")


async def test_a_host_that_forbids_all_forwarding_still_carries_the_agent(sshd: Sshd) -> None:
    sshd.restart("DisableForwarding yes", "AllowTcpForwarding no", "AllowStreamLocalForwarding no", "PermitTTY no")
    sshd.trust()
    assert await login() == str(sshd.home)


def test_diagnose_asks_on_the_terminal_whatever_its_output_is(by_password: Sshd) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "kimi_console", "diagnose", "gpu-07", "--json", "--python", "/nowhere/python"]
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command], stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        shown = b""
        for answer in (b"wrong", b"open sesame"):
            while not shown.endswith(f"{PASSWORD}: ".encode()):
                shown += os.read(master, 4096)
            os.write(master, answer + b"\n")
            shown += os.read(master, 4096)
        out, errors = process.communicate(timeout=60)
    os.close(slave)
    os.close(master)
    assert b"wrong" not in shown, "what is typed is not echoed"
    assert b"sesame" not in shown
    assert f"that was refused; {PASSWORD}: ".encode() in shown
    assert (process.returncode, out) == (Exit.USAGE, b"")
    assert errors.startswith(b"kimi-console: there is no working Python at /nowhere/python on gpu-07.")
