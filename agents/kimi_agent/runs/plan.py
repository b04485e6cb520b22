"""From a profile to an exact launch: the command line, the environment, and what is known to be wrong with it."""

import getpass
import os
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kimi_agent.bundle import ensure_bundle
from kimi_agent.engine import flags, layers
from kimi_agent.engine.argv import LAYERS_FLAG, Problem, build_argv, capture_notes, capture_refusals
from kimi_agent.engine.options import values
from kimi_agent.engine.titles import expected_ranks
from kimi_agent.errors import PreflightError, UsageError
from kimi_agent.host.procfs import port_holder
from kimi_agent.paths import SOCKET_LIMIT, Home
from kimi_agent.profile import Profile
from kimi_agent.runs.record import RUN_VARIABLE

CAPTURE_SINCE = (0, 5, 23)
"""First SGLang whose model runner hands out aux hidden states (notes in DESIGN.md §10)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch, ready to be started."""

    profile: Profile
    argv: tuple[str, ...]
    env: dict[str, str]
    """Added to the agent's own environment."""
    python: str
    version: str | None
    """Version of the SGLang that `python` would run."""
    known_flags: frozenset[str]
    """The flags that this SGLang has."""
    ranks: tuple[str, ...]
    dump_root: Path


def make_plan(profile: Profile, home: Home) -> Plan:
    """The launch that a profile describes; starts nothing and checks nothing but the interpreter."""
    python = profile.server.python or sys.executable
    server = profile.server
    capture = list(profile.capture.layers) if profile.capture.enabled else None
    env = os.environ | profile.env
    version = flags.installed_version(python, env) if Path(python).is_file() else None
    known = flags.known_flags(python, env) if version else None
    argv = build_argv(
        python, server.model, server.host, server.port, server.tp, server.dp, server.flags, capture, known
    )
    return Plan(
        profile=profile,
        argv=tuple(argv),
        env=dict(profile.env),
        python=python,
        version=version,
        known_flags=known or frozenset(),
        ranks=expected_ranks(server.tp, server.dp, argv),
        dump_root=Path(profile.capture.directory) if profile.capture.directory else home.dumps,
    )


def capture_env(plan: Plan, run: str, sockets: Path) -> dict[str, str]:
    """The environment that loads the plugin and tells it where to listen."""
    path = [str(ensure_bundle())]
    path += [part for part in plan.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")).split(os.pathsep) if part]
    env = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), **_scratch_env(plan, run), RUN_VARIABLE: run}
    if not plan.profile.capture.enabled:
        return env
    env |= {
        "KIMI_CAPTURE_SOCKETS": str(sockets),
        "KIMI_CAPTURE_RUN": run,
        "KIMI_CAPTURE_ROOT": str(plan.dump_root),
        "KIMI_CAPTURE_SHARD_MIB": str(plan.profile.capture.shard_mib),
        "KIMI_CAPTURE_KEEP_FREE_GIB": str(plan.profile.capture.keep_free_gib),
    }
    whitelist = plan.env.get("SGLANG_PLUGINS", os.environ.get("SGLANG_PLUGINS"))
    if whitelist:
        env["SGLANG_PLUGINS"] = ",".join(dict.fromkeys([*whitelist.split(","), "kimi_capture"]))
    return env


def scratch(plan: Plan, run: str) -> Path:
    """Where a run keeps its temporary files, so that they can be taken away with it."""
    return _temporary(plan) / f"kimi-{os.getuid()}-{run}"


def _temporary(plan: Plan) -> Path:
    return Path(plan.env.get("TMPDIR") or tempfile.gettempdir())


def _scratch_env(plan: Plan, run: str) -> dict[str, str]:
    """Temporary files in a directory of the run; torch's cache of compiled kernels stays where it would be.

    Nothing where that directory's path is too long for the sockets that SGLang makes in it.
    """
    place = str(scratch(plan, run))
    if len(os.fsencode(place)) + len("/tmp12345678") > SOCKET_LIMIT:  # noqa: S108 - the length of a name
        return {}
    env = {"TMPDIR": place}
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ | plan.env:
        env["TORCHINDUCTOR_CACHE_DIR"] = str(_temporary(plan) / f"torchinductor_{getpass.getuser()}")
    return env


def problems(plan: Plan) -> list[Problem]:
    """Everything that can be known to be wrong before the server is started."""
    found = _interpreter_problems(plan)
    if not found:
        found += _flag_problems(plan)
    return [*found, *_model_problems(plan), *_port_problems(plan), *_dump_problems(plan)]


def refuse(found: list[Problem]) -> None:
    """Stop at the first problem.

    Raises:
        PreflightError: there is one.
    """
    if found:
        raise PreflightError(found[0].message, found[0].hint, slug=found[0].slug)


def _interpreter_problems(plan: Plan) -> list[Problem]:
    python = Path(plan.python)
    if not python.is_file() or not os.access(python, os.X_OK):
        hint = "Set server.python in the profile to the Python that SGLang is installed in."
        return [Problem("no_python", f"there is no Python at {python}", hint)]
    if plan.version is None:
        hint = f"Install it there ({python} -m pip install sglang), or set server.python to the Python that has it."
        return [Problem("no_sglang", f"{python} has no SGLang", hint)]
    if plan.profile.capture.enabled and _numbers(plan.version) < CAPTURE_SINCE:
        hint = "Update SGLang, or set enabled = false in [capture] to launch without it."
        return [Problem("old_sglang", f"capture needs SGLang 0.5.23 or newer, this host has {plan.version}", hint)]
    return []


def _numbers(version: str) -> tuple[int, ...]:
    parts = []
    for part in version.split(".")[:3]:
        digits = "".join(char for char in part if char.isdigit())
        parts.append(int(digits or 0))
    return tuple(parts)


def _flag_problems(plan: Plan) -> list[Problem]:
    found = list(flags.unknown_flags(plan.argv, plan.known_flags))
    if plan.profile.capture.enabled:
        found += [*capture_refusals(plan.argv), *_layer_problems(plan)]
    return found


def notes(plan: Plan) -> list[str]:
    """What is good to know about a launch that nothing is wrong with: lines for a person."""
    if not plan.profile.capture.enabled:
        return []
    found = capture_notes(plan.argv)
    wanted = drafter_of(plan)
    return found if wanted is None else [*found, layers.drafter_match(wanted[0], captured_ids(plan), wanted[1])]


def captured_ids(plan: Plan) -> list[int]:
    """The layer ids of the launch's flag; empty for SGLang's default."""
    return [int(word) for word in values(plan.argv, LAYERS_FLAG) or () if word.isdecimal()]


def drafter_of(plan: Plan) -> tuple[layers.Target, layers.Drafter] | None:
    """The profile's drafter and the model that it is for; `None` without one.

    Raises:
        UsageError: the drafter's config cannot be read or names no layers.
    """
    target = layers.read_target(Path(plan.profile.server.model))
    path = plan.profile.capture.drafter
    return None if path is None or target is None else (target, layers.read_drafter(Path(path), target))


def _layer_problems(plan: Plan) -> list[Problem]:
    target = layers.read_target(Path(plan.profile.server.model))
    if target is None:
        return []
    ids = captured_ids(plan)
    found = layers.layer_problems(target, ids)
    place = flags.package(plan.python, os.environ | plan.env)
    if place is not None:
        found += layers.support_problems(target, place)
    try:
        wanted = drafter_of(plan)
    except UsageError as error:
        return [*found, Problem("capture-drafter", error.message, error.hint)]
    return found if wanted is None else [*found, *layers.drafter_problems(wanted[0], ids, wanted[1])]


def _model_problems(plan: Plan) -> list[Problem]:
    model = Path(plan.profile.server.model)
    hint = "Set server.model in the profile to a directory on this host that holds the model's config.json and weights."
    if not model.is_dir():
        return [Problem("no_model", f"there is no model at {model}", hint)]
    if not (model / "config.json").is_file():
        return [Problem("no_model", f"{model} holds no config.json", hint)]
    return []


def _port_problems(plan: Plan) -> list[Problem]:
    server = plan.profile.server
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server.host, server.port))
        except OSError as error:
            holder = port_holder(server.port)
            who = f" by {holder}" if holder else f" ({error.strerror})"
            hint = "Stop what holds it, or set another server.port in the profile."
            return [Problem("port_taken", f"port {server.port} on {server.host} is taken{who}", hint)]
    return []


def _dump_problems(plan: Plan) -> list[Problem]:
    if not plan.profile.capture.enabled:
        return []
    above = plan.dump_root
    if not above.is_absolute():
        return [Problem("dump_root", f"capture.directory {above} is not an absolute path", "Give an absolute path.")]
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK):
        hint = "Set capture.directory to a directory that this user can write."
        return [Problem("dump_root", f"dumps cannot be written below {above}", hint)]
    return []
