"""The launch profile: one TOML file that says what to launch and how."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from kimi_agent.errors import UsageError

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What is launched."""

    model: str
    """Path of the model on the GPU host."""
    python: str | None = None
    """SGLang's interpreter; the agent's own when not given."""
    host: str = "127.0.0.1"
    port: int = 30000
    tp: int = 1
    dp: int = 1
    flags: tuple[str, ...] = ()
    """Further flags for `sglang.launch_server`, verbatim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The hidden-state capture."""

    enabled: bool = True
    layers: tuple[int, ...] = ()
    """Layer ids in SGLang's flag spelling; empty for SGLang's default for the model."""
    directory: str | None = None
    """Root of the dumps on the GPU host."""
    shard_mib: int = 256
    drafter: str | None = None
    """Directory or config.json of the drafter that is to be trained: what is captured must be what it wants."""
    keep_free_gib: float = 5.0
    """A dump pauses before less than this is free on its disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Deadlines in seconds."""

    start_timeout: float | None = None
    """Stop the run when it is not ready by then; `None` waits for ever."""
    stop_grace: float = 20.0
    """What a stop waits before it kills."""
    canary: float | None = None
    """Deadline of the one token asked for when a ready server's scheduler falls silent; `None` asks for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One launch, whole."""

    name: str
    server: Server
    env: dict[str, str] = field(default_factory=dict)
    capture: Capture = field(default_factory=Capture)
    limits: Limits = field(default_factory=Limits)

    def to_dict(self) -> dict[str, Any]:
        """The profile as it crosses the wire."""
        return asdict(self)


_SECTIONS: dict[str, type] = {"server": Server, "capture": Capture, "limits": Limits}
_TYPE_WORDS = {
    "str": "a string", "int": "an integer", "float": "a number", "bool": "true or false", "array": "a list",
    "object": "a table", "null": "nothing",
}  # fmt: skip


def load(path: Path) -> Profile:
    """Read a profile.

    Raises:
        UsageError: the file cannot be read, is not TOML, or holds an unknown key or a value of the wrong type.
    """
    return parse(read_toml(path), str(path), path.stem)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        UsageError: the file cannot be read or is not TOML.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read profile {path}: {error.strerror}", "Give the path of a TOML profile.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"profile {path} is not UTF-8 text", "Give the path of a TOML profile.") from error
    toml = _toml_module()
    try:
        return dict(toml.loads(text))
    except toml.TOMLDecodeError as error:
        raise UsageError(f"profile {path} is not valid TOML: {error}", "Correct that line.") from error


def _toml_module() -> Any:
    for name in ("tomllib", "tomli"):
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise UsageError("this Python cannot read TOML", "Use Python 3.11 or newer, or install tomli beside SGLang.")


def parse(tables: Mapping[str, Any], where: str, default_name: str = "profile") -> Profile:
    """A profile from its tables.

    Raises:
        UsageError: an unknown key or a value of the wrong type, naming `where`, the key and what was expected.
    """
    known = {"name", "env", *_SECTIONS}
    for key in tables:
        if key not in known:
            raise UsageError(f"{where}: unknown key {key}", f"Known at the top are {_listed(known)}.")
    if "server" not in tables:
        raise UsageError(f"{where}: the table [server] is missing", 'It needs at least model = "/path/to/model".')
    sections = {key: _section(kind, tables[key], where, key) for key, kind in _SECTIONS.items() if key in tables}
    name = _convert(tables.get("name", default_name), str, where, "name")
    env_table = _convert(tables.get("env", {}), dict[str, Any], where, "env")
    env = {key: _convert(value, str, where, f"env.{key}") for key, value in env_table.items()}
    profile = Profile(name=name, env=env, **sections)
    _check(profile, where)
    return profile


def _section(kind: type, value: Any, where: str, key: str) -> Any:
    if isinstance(value, Mapping):
        known = {entry.name for entry in fields(kind)}
        for name in value:
            if name not in known:
                raise UsageError(f"{where}: unknown key {key}.{name}", f"Known in [{key}] are {_listed(known)}.")
        if kind is Server and "model" not in value:
            raise UsageError(f"{where}: server.model is missing", "Give the path of the model on the GPU host.")
    return _convert(value, kind, where, key)


def _convert(value: Any, kind: Any, where: str, key: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        words = str(error)
        at = re.search(r" - at `\$(.*)`$", words)
        path = f"{key}{at.group(1)}" if at else key
        expected = re.match(r"Expected `(.+?)`, got `(.+?)`", words)
        if expected:
            wanted, got = (" or ".join(_TYPE_WORDS.get(w, w) for w in g.split(" | ")) for g in expected.groups())
            raise UsageError(f"{where}: {path} must be {wanted}, not {got}", "Correct that key.") from error
        raise UsageError(f"{where}: {path}: {words.split(' - at', maxsplit=1)[0]}", "Correct that key.") from error


def _check(profile: Profile, where: str) -> None:
    server = profile.server
    bounds: tuple[tuple[str, float, float, float], ...] = (
        ("server.port", server.port, 1, MAX_PORT),
        ("server.tp", server.tp, 1, 1024),
        ("server.dp", server.dp, 1, 1024),
        ("capture.shard_mib", profile.capture.shard_mib, 1, 1 << 20),
        ("capture.keep_free_gib", profile.capture.keep_free_gib, 0, 1 << 20),
        ("limits.start_timeout", profile.limits.start_timeout or 1, 1, float("inf")),
        ("limits.stop_grace", profile.limits.stop_grace, 0, 3600),
    )
    for key, number, low, high in bounds:
        if not low <= number <= high:
            raise UsageError(f"{where}: {key} is {number}", f"It must be between {low} and {high}.")
    for name, value in profile.env.items():
        if not ENV_NAME.fullmatch(name) or "\0" in value:
            raise UsageError(f"{where}: env.{name} is not a valid environment variable", "Correct its name or value.")
    for text in (server.model, server.python or "", server.host, *server.flags, *_paths(profile.capture)):
        if "\0" in text:
            raise UsageError(f"{where}: a value holds a NUL character", "Remove it.")
    if min(profile.capture.layers, default=0) < 0 or len(set(profile.capture.layers)) < len(profile.capture.layers):
        raise UsageError(f"{where}: capture.layers must be different, non-negative layer ids", "Correct the list.")


def _paths(capture: Capture) -> tuple[str, str]:
    return capture.directory or "", capture.drafter or ""


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
