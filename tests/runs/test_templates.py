"""The unit, the job script and the recipe, checked by the tools that read them."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kimi_agent.paths import Home
from kimi_agent.templates import KINDS, systemd_quoted

ODD = 'it\'s 100% $HOME "x" \\ ;'


def printed(kind: str, directory: Path, name: str = "kimi") -> str:
    """What the command prints for a profile in a directory."""
    profile = directory / "a profile.toml"
    python = sys.executable
    profile.write_text(f'name = "{name}"\n[server]\nmodel = "/m"\npython = "{python}"\ntp = 8\n')
    done = subprocess.run(
        [sys.executable, "-m", "kimi_agent", "template", kind, str(profile), "--home", str(directory / "home")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A directory whose name holds all that quoting can get wrong."""
    place = tmp_path / ODD
    place.mkdir()
    return place


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_names_the_agent_and_the_profile(tmp_path: Path, kind: str) -> None:
    text = printed(kind, tmp_path)
    assert "--restart" in text
    assert "--end-agent" in text
    assert str(tmp_path / "a profile.toml") in text
    (kept,) = (Home(tmp_path / "home").root / "lib").iterdir()
    assert (kept / "kimi_agent" / "cli.py").is_file()
    assert str(kept) in text.replace("'", "")


def test_systemd_accepts_the_unit(odd: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    unit = odd.parent / "kimi.service"
    unit.write_text(printed("systemd", odd))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert [line for line in done.stderr.splitlines() if "kimi.service" in line] == []
    assert done.returncode == 0, done.stderr


def test_a_word_of_a_unit_expands_to_itself() -> None:
    assert systemd_quoted(ODD) == '"it\'s 100%% $$HOME \\"x\\" \\\\ ;"'


def test_bash_accepts_the_job_script_and_gives_the_command_its_words(odd: Path) -> None:
    script = printed("slurm", odd)
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "#SBATCH --gpus-per-node=8\n" in script
    assert "#SBATCH --signal=B:TERM@140\n" in script, "a grace of 20 s, a minute to end, a minute that Slurm is off by"
    shown = script.replace("exec ", "printf '%s\\0' ")
    words = subprocess.run(["bash"], input=shown, text=True, capture_output=True, check=True).stdout
    argv = words.partition("\n")[2].split("\0")[:-1]
    assert argv[-1] == str(odd / "a profile.toml")
    assert argv[:5] == ["/usr/bin/env", argv[1], sys.executable, "-m", "kimi_agent"]
    assert argv[1].startswith(f"PYTHONPATH={odd}/home/lib/")


def test_the_recipe_runs_the_agent_of_the_bundle(tmp_path: Path) -> None:
    lines = [line for line in printed("container", tmp_path).splitlines() if not line.startswith("#")]
    assert lines[0].startswith("ARG SGLANG=")
    assert lines[1] == "FROM ${SGLANG}"
    entry = next(line for line in lines if line.startswith("ENTRYPOINT"))
    assert shlex.split(entry.removeprefix("ENTRYPOINT ").strip("[]").replace(",", "")) == [
        "python3", "-m", "kimi_agent", "run", "--restart", "failed", "--end-agent", "--json",
    ]  # fmt: skip


def test_a_name_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text('name = "a\\nb"\n[server]\nmodel = "/m"\n')
    done = subprocess.run(
        [sys.executable, "-m", "kimi_agent", "template", "systemd", str(profile), "--home", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "holds a control character. Rename it." in done.stderr
