"""Keys and tokens stay off the process list and out of all that is journaled."""

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.daemon import connect
from kimi_agent.host.procfs import boot_id, starttime
from kimi_agent.paths import Home, private_dir
from kimi_agent.runs.record import RunRecord, save
from kimi_agent.runs.secrets import HIDDEN, Secrets, conceal

KEY = "sk-9b1c 'odd\" $(x)"


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (("--api-key", "abc"), ("--api-key", HIDDEN)),
        (("--api-key=abc", "--tp", "2"), (f"--api-key={HIDDEN}", "--tp", "2")),
        (("--admin-api-key", KEY, "--name", f"/m/{KEY}"), ("--admin-api-key", HIDDEN, "--name", f"/m/{HIDDEN}")),
        (("--max-total-tokens", "4096", "--tokenizer-path", "/m"),) * 2,
        (("--api-key", "--tp", "2"), ("--api-key", "--tp", "2")),
    ],
)  # fmt: skip
def test_a_command_line_for_a_person_holds_no_key(argv: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert Secrets.of(argv, {}).hide_argv(argv) == shown


def test_a_secret_is_hidden_however_it_is_spelled() -> None:
    secrets = Secrets.of((), {"HF_TOKEN": KEY, "MODE": "fast and plain"})
    for text in (f"x {KEY} y", json.dumps({"token": KEY}), repr([KEY])):
        assert "9b1c" not in secrets.hide(text)
    assert secrets.hide("fast and plain") == "fast and plain"


@given(st.lists(st.text(max_size=12), max_size=8))
def test_a_text_without_secrets_stays_as_it_is(words: list[str]) -> None:
    assert Secrets([]).hide(" ".join(words)) == " ".join(words)


def test_what_is_started_carries_keys_in_a_private_file_only(tmp_path: Path) -> None:
    argv = ("python", "--api-key", KEY, "--tp", "2", f"--admin-api-key={KEY}", "--port", "1")
    started = conceal(argv, tmp_path)
    assert started == ("python", "--tp", "2", "--port", "1", "--config", str(tmp_path / "secrets.yaml"))
    assert json.loads((tmp_path / "secrets.yaml").read_text()) == {"api-key": KEY, "admin-api-key": KEY}
    assert (tmp_path / "secrets.yaml").stat().st_mode & 0o777 == 0o600
    assert conceal(argv[:1], tmp_path) == argv[:1]
    own = (*argv, "--config", "/mine.yaml")
    assert conceal(own, tmp_path) == own


def test_a_log_that_repeats_a_key_is_journaled_without_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_inherited0123456789")
    private_dir(home.root)
    directory = private_dir(home.run("run-talks"))
    (directory / "server.log").write_text(
        f"server_args=ServerArgs(api_key={KEY!r})\ntoken hf_inherited0123456789\nend\n"
    )
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    ticks = starttime(process.pid)
    assert ticks is not None
    profile: dict[str, object] = {
        "name": "x", "server": {"model": "/", "port": 1, "flags": ["--api-key", KEY]}, "capture": {"enabled": False},
    }  # fmt: skip
    save(directory, RunRecord("run-talks", process.pid, ticks, boot_id(), profile, ("x", HIDDEN), None))
    client = connect(home, start=True)
    client.request("subscribe", epoch=None, after=0)
    lines = []
    for line in islice(client.events(), 40):
        lines.append(line)
        if b'"end"' in line:
            break
    client.close()
    process.kill()
    process.wait()
    journal = b"".join(path.read_bytes() for path in home.journal.iterdir() if path.is_file())
    for text in (b"".join(lines), journal):
        assert b"9b1c" not in text
        assert b"hf_inherited" not in text
    assert b"token ***" in journal
