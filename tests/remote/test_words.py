"""Whatever an operator, a profile or a host writes stays one word: no shell and no terminal takes it for more."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_agent.errors import UsageError
from kimi_agent.paths import Home
from kimi_agent.profile import parse
from kimi_agent.runs import launch
from kimi_agent.runs.plan import Plan
from kimi_console.remote.bootstrap import Attachment
from kimi_console.remote.config import HostConfig
from kimi_console.remote.dial import ssh_dial
from kimi_console.remote.hostkeys import HostKeys
from kimi_console.remote.login import Deadline, Witness
from kimi_console.remote.ssh import open_ssh
from kimi_console.source.questions import Question, Questions

from .conftest import Sshd

ODD = [
    "a b", "it's", 'say "x"', "$(touch evil)", "`touch evil`", "; touch evil", "$HOME", "*", "~", "\\", "ä€", "-rf",
    "a\nb",
]  # fmt: skip
SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('ODD')]), flush=True)"
WORDS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)


def test_every_word_of_a_launch_arrives_as_it_was_written(tmp_path: Path) -> None:
    home = Home(tmp_path / "home $(touch evil) 'x'")
    tables = {"server": {"model": "/", "flags": ODD}, "env": {"ODD": "\n".join(ODD)}, "capture": {"enabled": False}}
    profile = parse(tables, "test")
    argv = (sys.executable, "-c", SHOW, *profile.server.flags)
    plan = Plan(profile, argv, dict(profile.env), sys.executable, None, frozenset(), (), home.dumps)
    record, process = launch.spawn(plan, home)
    process.wait(30)
    told = json.loads((home.run(record.run) / "server.log").read_text())
    launch.give_up(record.run, process, plan, home)
    assert told == [ODD, "\n".join(ODD)]
    assert not list(tmp_path.rglob("evil"))
    assert not Path("evil").exists()


@given(st.lists(WORDS, max_size=5))
@settings(max_examples=60)
def test_a_command_line_that_is_shown_can_be_pasted(words: list[str]) -> None:
    done = subprocess.run(["sh", "-c", f"printf '%s\\0' {shlex.join(words)}"], capture_output=True, check=True)
    assert done.stdout.split(b"\0")[: len(words)] == [word.encode() for word in words]


async def test_a_hosts_shell_gets_each_path_as_one_word(sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust()
    odd = tmp_path / "".join(word for word in ODD if "\n" not in word and "~" not in word)
    odd.mkdir()
    program = odd / "python"
    program.write_text('#!/bin/sh\nprintf \'%s|\' "$PYTHONPATH" "$@"\n')
    program.chmod(0o755)
    connection = await open_ssh("gpu-07")
    done = await connection.run(Attachment(str(program), f"{odd}/bundle").command(read_only=True), check=True)
    connection.abort()
    await connection.wait_closed()
    words = str(done.stdout).split("|")
    assert words[:4] == [f"{odd}/bundle", "-m", "kimi_agent", "attach"]
    assert not list(sshd.home.rglob("evil"))


def test_a_python_with_a_line_end_in_its_name_is_refused() -> None:
    with pytest.raises(UsageError, match="is not a path\\. Give a path without control characters"):
        ssh_dial("gpu-07", "/opt/a\nb/python")


async def test_what_a_server_asks_cannot_move_the_cursor(sshd: Sshd) -> None:
    asked: list[Question] = []

    async def answer(question: Question) -> str:
        asked.append(question)
        return "x"

    target = HostConfig("gpu-07", "h", 22, "me", None, (), False, (), (), None, ())
    witness = Witness(target, HostKeys(()), Questions(answer), Deadline(1.0))
    assert witness.kbdint_auth_requested() == ""
    told = await witness.kbdint_challenge_received(
        "\x1b]0;owned\x07", "line\r\none\x1b[2J", "", [("Code\x1b[31m:\n", False), ("\x9b2J", True)]
    )
    assert told == ["x", "x"]
    for question in asked:
        assert question.prompt.isprintable()
        assert question.words.isprintable()
    assert [question.secret for question in asked] == [True, False]


def test_a_host_that_prints_escapes_at_login_reaches_the_screen_without_them(sshd: Sshd) -> None:
    sshd.trust()
    (sshd.home / ".bashrc").write_text("printf '\\033]0;owned\\007\\033[2Jgone\\n' >&2; exit 3\n")
    done = subprocess.run(
        [sys.executable, "-m", "kimi_console", "diagnose", "gpu-07", "--python", "/x"],
        capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert done.returncode == 6
    assert b"gone" in done.stderr
    assert b"\x1b" not in done.stderr
    assert b"\x07" not in done.stderr
