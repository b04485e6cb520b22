"""The builder of the engine, on a recipe that is as small as can be: real environments, locks and kills."""

import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kimi_agent.errors import UnavailableError
from kimi_console.demo import engine as builder
from kimi_console.demo.engine import Engine, EngineError, Progress, build_engine, link, recipe_hash, wanted_engine

MAKE_MODELS = "import pathlib, sys; pathlib.Path(sys.argv[1]).mkdir(); open(sys.argv[1] + '/made', 'w').close()"
BUILD = (
    "import sys; from pathlib import Path; from kimi_console.demo.engine import Progress, build_engine;"
    "sys.executable = sys.argv[2]; build_engine(Progress(sys.stderr), Path(sys.argv[1]))"
)
QUICK_PYTHON = """\
#!/bin/sh
{python} -m venv --without-pip "$3" && echo {packages} > "$(echo "$3"/lib/python*/site-packages)/pip.pth"
"""
"""Runs `-m venv DIRECTORY`; the new environment has the pip of this one, which need not be unpacked and compiled."""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe without packages, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "recipe"
    (root / "shims" / "stand_in").mkdir(parents=True)
    (root / "shims" / "stand_in" / "__init__.py").touch()
    (root / "requirements-torch.txt").touch()
    (root / "requirements.txt").touch()
    (root / "make_models.py").write_text(MAKE_MODELS)
    (root / "check.py").write_text("import stand_in")
    return root


@pytest.fixture
def quick_python(tmp_path: Path) -> Path:
    """A Python whose virtual environments are made in no time."""
    path = tmp_path / "quick-python"
    path.write_text(QUICK_PYTHON.format(python=sys.executable, packages=sysconfig.get_path("purelib")))
    path.chmod(0o755)
    return path


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A pipe at which a build's command waits until the test has opened and closed it."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def test_any_change_of_the_recipe_is_another_engine(recipe: Path) -> None:
    seen = {recipe_hash(recipe)}
    (recipe / "requirements.txt").write_text("xxhash==4.1.0\n")
    seen.add(recipe_hash(recipe))
    (recipe / "shims" / "stand_in" / "__init__.py").rename(recipe / "shims" / "stand_in" / "other.py")
    seen.add(recipe_hash(recipe))
    assert len(seen) == 3


def test_byte_code_beside_the_recipe_does_not_change_the_engine(recipe: Path) -> None:
    before = recipe_hash(recipe)
    cache = recipe / "shims" / "stand_in" / "__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_bytes(b"x")
    assert recipe_hash(recipe) == before


def test_a_built_engine_is_used_again_and_linked(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = build_engine(Progress(sys.stderr), recipe)
    assert "The engine is ready." in capsys.readouterr().err
    assert build_engine(Progress(sys.stderr), recipe) == first
    assert capsys.readouterr().err == "", "a second build says nothing, because it does nothing"
    at = tmp_path / ".engine"
    at.symlink_to(tmp_path / "an-older-engine")
    link(first, at)
    linked = Engine(at)
    assert linked.complete
    assert (linked.models / "made").exists()
    assert (linked.shims / "stand_in").is_dir()


def test_a_directory_in_the_way_of_the_link_is_not_touched(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / ".engine").mkdir()
    with pytest.raises(UnavailableError, match="is not a link"):
        link(wanted_engine(recipe), tmp_path / ".engine")
    assert (tmp_path / ".engine").is_dir()


def test_a_failed_step_is_named_with_its_log_and_leaves_nothing(
    recipe: Path, quick_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(quick_python))
    (recipe / "make_models.py").write_text("raise SystemExit('no room for weights')")
    with pytest.raises(EngineError, match="making the tiny models") as failure:
        build_engine(Progress(sys.stderr), recipe)
    wanted = wanted_engine(recipe)
    assert not wanted.root.exists()
    log = wanted.root.with_suffix(".log")
    assert str(log) in failure.value.hint
    assert "no room for weights" in log.read_text()


def test_a_full_disk_is_said_before_anything_is_built(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "NEEDS_BYTES", 1 << 60)
    with pytest.raises(UnavailableError, match="GiB free"):
        build_engine(Progress(sys.stderr), recipe)
    assert not wanted_engine(recipe).root.exists()


def test_two_builders_make_one_engine_and_the_second_says_that_it_waits(
    recipe: Path, quick_python: Path, gate: Path
) -> None:
    (recipe / "make_models.py").write_text(f"open({str(gate)!r}).read(); {MAKE_MODELS}")
    with _builder(recipe, quick_python) as first:
        opened = os.open(gate, os.O_WRONLY)  # returns once the first build has come to its models
        with _builder(recipe, quick_python) as second:
            assert second.stderr is not None
            assert f"pid {first.pid}" in second.stderr.readline()
            os.close(opened)
            assert first.wait(60) == 0
            assert second.wait(60) == 0
    assert wanted_engine(recipe).complete


def test_an_interrupted_build_leaves_nothing(recipe: Path, quick_python: Path, gate: Path) -> None:
    (recipe / "check.py").write_text(f"open({str(gate)!r}).read()")
    with _builder(recipe, quick_python) as build:
        opened = os.open(gate, os.O_WRONLY)
        build.send_signal(signal.SIGINT)
        assert build.wait(60) != 0
        os.close(opened)
    assert not wanted_engine(recipe).root.exists()


def test_a_build_that_was_killed_is_thrown_away_once_its_last_command_has_ended(
    recipe: Path, quick_python: Path, gate: Path
) -> None:
    (recipe / "check.py").write_text(f"import os; os.path.exists({str(gate)!r}) and open({str(gate)!r}).read()")
    with _builder(recipe, quick_python) as killed:
        opened = os.open(gate, os.O_WRONLY)
        killed.kill()
    wanted = wanted_engine(recipe)
    (wanted.root / "leftover").touch()
    assert not wanted.complete
    with _builder(recipe, quick_python) as second:
        assert second.stderr is not None
        assert "waiting for it" in second.stderr.readline()
        gate.unlink()
        os.close(opened)
        assert second.wait(60) == 0
    assert wanted.complete
    assert not (wanted.root / "leftover").exists()


def _builder(recipe: Path, python: Path) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-c", BUILD, str(recipe), str(python)]
    return subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
