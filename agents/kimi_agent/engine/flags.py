"""The flags that an installed SGLang accepts, read from its source so that torch need not be imported."""

import ast
import difflib
import json
import re
import subprocess
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from kimi_agent.engine.argv import Problem
from kimi_agent.errors import UnavailableError

PROBE_DEADLINE: Final = 20.0
PARSER_DEADLINE: Final = 120.0
"""Seconds; a cold import of torch from a network file system takes long."""
FEWEST: Final = 60
"""Every SGLang has more flags than this; fewer found means that the source is laid out in an unknown way."""

_FLAG = re.compile(r"--[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_WHERE = """
import importlib.metadata, importlib.util, json
spec = importlib.util.find_spec("sglang")
places = list(spec.submodule_search_locations or []) if spec else []
try:
    version = importlib.metadata.version("sglang")
except importlib.metadata.PackageNotFoundError:
    version = None
print(json.dumps([version, places]))
"""
_PARSER = """
import argparse, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print("\\n" + json.dumps(sorted(parser._option_string_actions)))
"""


def installed_version(python: str, env: Mapping[str, str] | None = None) -> str | None:
    """The version of SGLang beside an interpreter, or `None` when it has none.

    Raises UnavailableError when the interpreter cannot be run.
    """
    return _where(python, env)[0]


def package(python: str, env: Mapping[str, str] | None = None) -> Path | None:
    """The directory of the SGLang package beside an interpreter, or `None` when it has none.

    Raises UnavailableError when the interpreter cannot be run.
    """
    places = _where(python, env)[1]
    return Path(places[0]) if places else None


def known_flags(python: str, env: Mapping[str, str] | None = None) -> frozenset[str]:
    """Every option of the installed server's own parser, aliases and deprecated ones too.

    Read from the source in well under a second; a layout that gives too few is asked of the parser itself, which
    imports torch. Raises UnavailableError when there is no SGLang or it does not answer.
    """
    version, places = _where(python, env)
    if version is None and not places:
        raise UnavailableError(f"{python} has no SGLang", "Set [server] python to the interpreter that has it.")
    found = {flag for place in places for flag in _read(Path(place) / "srt")}
    if len(found) < FEWEST:
        found = set(_asked(python, env))
    return frozenset(found | {"--help"})


def unknown_flags(argv: Sequence[str], known: frozenset[str]) -> list[Problem]:
    """The options that the installed SGLang would refuse, each with the nearest ones it has."""
    problems = []
    for token in argv:
        flag = token.partition("=")[0]
        if not flag.startswith("--") or flag == "--" or flag in known:
            continue
        # argparse takes a prefix that only one option has.
        if sum(1 for option in known if option.startswith(flag)) == 1:
            continue
        near = difflib.get_close_matches(flag, known, n=2, cutoff=0.6)
        hint = f"Did you mean {' or '.join(near)}?" if near else "See python -m sglang.launch_server --help."
        problems.append(Problem("unknown-flag", f"the installed SGLang has no flag {flag}", hint))
    return problems


def _run(python: str, code: str, env: Mapping[str, str] | None, deadline: float) -> str:
    try:
        done = subprocess.run(
            [python, "-c", code], env=env, capture_output=True, text=True, timeout=deadline, check=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        hint = "Set [server] python to SGLang's interpreter."
        raise UnavailableError(f"there is no interpreter {python}", hint) from None
    except PermissionError:
        raise UnavailableError(f"{python} may not be executed", "Check its permissions.") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{python} did not answer in {deadline:.0f} s", "Check its file system.") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
        raise UnavailableError(f"{python} failed: {last}", "Run it by hand to see why.") from None
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "null"


def _where(python: str, env: Mapping[str, str] | None) -> tuple[str | None, list[str]]:
    version, places = json.loads(_run(python, _WHERE, env, PROBE_DEADLINE))
    return version, places


def _asked(python: str, env: Mapping[str, str] | None) -> list[str]:
    options: list[str] = json.loads(_run(python, _PARSER, env, PARSER_DEADLINE))
    return [option for option in options if option.startswith("--")]


def _read(srt: Path) -> Iterator[str]:
    fields = srt / "arg_groups" / "fields"
    for path in (srt / "server_args.py", *sorted(fields.glob("*.py"))):
        try:
            source = path.read_text("utf-8")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source)
        except (OSError, SyntaxError, UnicodeDecodeError):
            # Not there, or written for a newer Python: the parser itself is asked instead.
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _FLAG.fullmatch(node.value):
                yield node.value
            elif isinstance(node, ast.AnnAssign):
                yield from _field_flags(node)


def _field_flags(node: ast.AnnAssign) -> Iterator[str]:
    """The flags that SGLang derives from an annotated field `name: A[type, …]`."""
    annotation = node.annotation
    if not (isinstance(node.target, ast.Name) and isinstance(annotation, ast.Subscript)):
        return
    if not (isinstance(annotation.value, ast.Name) and annotation.value.id == "A"):
        return
    settings = [keyword for call in ast.walk(annotation) if isinstance(call, ast.Call) for keyword in call.keywords]
    if any(keyword.arg == "no_cli" for keyword in settings):
        return
    names = [keyword.value for keyword in settings if keyword.arg == "cli_name"]
    named = [name.value for name in names if isinstance(name, ast.Constant)]
    flag = str(named[0]) if named else f"--{node.target.id.replace('_', '-')}"
    yield flag
    if any(isinstance(part, ast.Attribute) and part.attr == "BooleanOptionalAction" for part in ast.walk(annotation)):
        yield f"--no-{flag.removeprefix('--')}"
