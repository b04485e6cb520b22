"""hosts.toml, and what is remembered of hosts."""

from pathlib import Path

import pytest

from kimi_agent.errors import UsageError
from kimi_console.hosts import HostSettings, host_settings, last_seen, remember, seen_file


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))


def test_a_host_has_the_python_that_its_table_names(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    assert host_settings("gpu-07", file) == HostSettings()
    file.write_text('[gpu-07]\npython = "/opt/sg lang/bin/python"\n')
    assert host_settings("gpu-07", file).python == "/opt/sg lang/bin/python"
    assert host_settings("gpu-08", file) == HostSettings()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gpu-07", "is not valid TOML"),
        ('[gpu-07]\npyton = "x"\n', "unknown key gpu-07.pyton. Known is python."),
        ("[gpu-07]\npython = 3\n", "gpu-07: Expected `str | null`, got `int`"),
        ("gpu-07 = 3\n", "gpu-07: Expected `object`"),
    ],
)
def test_what_is_wrong_in_it_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        host_settings("gpu-07", file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


def test_how_a_host_was_is_remembered_for_this_user_only() -> None:
    assert last_seen() == {}
    remember("gpu-07", "READY", "/models/Kimi")
    remember("gpu-08", "IDLE")
    remember("gpu-07", "HUNG", "/models/Kimi")
    assert {host: (seen.status, seen.model) for host, seen in last_seen().items()} == {
        "gpu-07": ("HUNG", "/models/Kimi"), "gpu-08": ("IDLE", ""),
    }  # fmt: skip
    assert seen_file().stat().st_mode & 0o777 == 0o600
    seen_file().write_text("{broken")
    assert last_seen() == {}
