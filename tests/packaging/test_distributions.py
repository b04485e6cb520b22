"""Every way to install brings the code, its types, the themes and the engine's recipe."""

import subprocess
import sys
import tarfile
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest

from kimi_console.demo.engine import recipe_hash

PACKAGES = {"kimi_console": "console", "kimi_agent": "agents", "kimi_capture": "agents"}


@pytest.fixture(scope="module")
def distributions(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, and the wheel built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--outdir", str(out), str(checkout))
    return out


@pytest.fixture(scope="module")
def installed(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` directory of a fresh environment with the wheel in it."""
    root = tmp_path_factory.mktemp("installed")
    _run(sys.executable, "-m", "venv", "--without-pip", str(root))
    pip = (sys.executable, "-m", "pip", "--python", str(root), "install", "--quiet", "--no-compile")
    _run(*pip, str(_only(distributions, "*.whl")))
    return root / "bin"


def test_the_wheel_holds_every_file_of_the_packages(distributions: Path, checkout: Path) -> None:
    with zipfile.ZipFile(_only(distributions, "*.whl")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name or name.startswith("kimi_console/")}
    assert names == set(_package_files(checkout))


def test_the_sdist_holds_what_the_wheel_is_built_from(distributions: Path, checkout: Path) -> None:
    with tarfile.open(_only(distributions, "*.tar.gz")) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames()}
    roots = {
        PACKAGES[name.split("/", 1)[0]] + "/" + name for name in _package_files(checkout) if "/themes/" not in name
    }
    assert roots <= names
    assert {"README.md", "pyproject.toml"} <= names
    assert not {name for name in names if name.startswith((".venv", ".engine", ".git/", "tests/"))}


def test_an_installed_command_knows_its_version_and_its_help(installed: Path) -> None:
    version = _run(str(installed / "kimi-console"), "--version")
    assert _run(str(installed / "python"), "-c", "import kimi_agent; print(kimi_agent.__version__)").strip() in version
    assert "demo" in _run(str(installed / "kimi-console"), "--help")
    assert "run" in _run(str(installed / "kimi-agent"), "--help")


def test_an_installed_package_carries_recipe_and_themes(installed: Path, checkout: Path) -> None:
    code = (
        "from importlib.resources import files\n"
        "from kimi_console.demo.engine import recipe_hash\n"
        "print(recipe_hash(), *sorted(t.name for t in (files('kimi_console') / 'themes').iterdir()))"
    )
    found, *themes = _run(str(installed / "python"), "-c", code).split()
    assert found == recipe_hash(), "another recipe would build a second engine of 6 GB"
    assert themes == sorted(theme.name for theme in (checkout / "themes").iterdir())


def test_an_editable_install_reads_the_themes_of_the_checkout(checkout: Path) -> None:
    themes = Path(str(files("kimi_console") / "themes"))
    assert themes.resolve() == checkout / "themes"
    assert list(themes.glob("*.toml"))


def _package_files(checkout: Path) -> list[str]:
    """What a wheel must hold, as paths in it."""
    found = []
    for package, room in PACKAGES.items():
        root = checkout / room / package
        found += [file.relative_to(root.parent).as_posix() for file in root.rglob("*") if _ships(file)]
    themes = (checkout / "themes").iterdir()
    return sorted({*found, *(f"kimi_console/themes/{theme.name}" for theme in themes)})


def _ships(file: Path) -> bool:
    return file.is_file() and "__pycache__" not in file.parts and "themes" not in file.parts


def _only(directory: Path, pattern: str) -> Path:
    (found,) = directory.glob(pattern)
    return found


def _run(*argv: str) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
    return done.stdout
