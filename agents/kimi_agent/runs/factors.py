"""What a bisection may change in a launch, one thing at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kimi_agent.engine import options
from kimi_agent.engine.argv import ALGORITHM_FLAG, AUX_FLAG, LAYERS_FLAG
from kimi_agent.errors import UsageError
from kimi_agent.model.phases import AFTER_LOAD, GRAPHS, JOIN, LOAD, PHASES, PORT, WARM_UP
from kimi_agent.profile import Profile
from kimi_agent.runs.plan import Plan

CAPTURE_FLAGS: Final = (AUX_FLAG, ALGORITHM_FLAG, LAYERS_FLAG)
FORWARD: Final = (GRAPHS, PORT, WARM_UP)
"""The phases in which the model runs."""
EVERY: Final = PHASES[:-1]


@dataclass(frozen=True, slots=True)
class Factor:
    """One thing that can be changed."""

    name: str
    change: str
    """In words."""
    matters: tuple[str, ...]
    """The phases in which it can be what a start hangs on."""
    applies: Callable[[Plan], bool]
    apply: Callable[[Plan, Profile], Profile]
    """(launch as it was, profile as changed so far) to the profile with this change."""


def on_cpu(plan: Plan) -> bool:
    """Whether the launch uses no GPU."""
    return options.value(plan.argv, "--device") == "cpu"


def with_flags(profile: Profile, *tokens: str) -> Profile:
    """The profile with further flags, last, so that they win."""
    return replace(profile, server=replace(profile.server, flags=(*profile.server.flags, *tokens)))


def without_flags(profile: Profile, *names: str) -> Profile:
    """The profile without these flags and what follows each of them."""
    kept: list[str] = []
    dropping = False
    for token in profile.server.flags:
        if token.startswith("--"):
            dropping = token.partition("=")[0] in names
        if not dropping:
            kept.append(token)
    return replace(profile, server=replace(profile.server, flags=tuple(kept)))


def _has(plan: Plan, flag: str) -> bool:
    """Whether the installed SGLang has a flag that this launch does not use yet."""
    return not options.present(plan.argv, flag) and (not plan.known_flags or flag in plan.known_flags)


def _switch(name: str, change: str, matters: tuple[str, ...], flag: str, *, gpu: bool, ranks: int = 1) -> Factor:
    """A factor that is one flag without a value."""
    return Factor(
        name, f"{change} ({flag})", matters,
        lambda plan: _has(plan, flag) and len(plan.ranks) >= ranks and not (gpu and on_cpu(plan)),
        lambda plan, profile: with_flags(profile, flag),
    )  # fmt: skip


def _removal(name: str, change: str, matters: tuple[str, ...], flag: str) -> Factor:
    """A factor that takes one of the profile's own flags away."""
    return Factor(
        name, f"{change} (without {flag})", matters,
        lambda plan: options.present(plan.profile.server.flags, flag),
        lambda plan, profile: without_flags(profile, flag),
    )  # fmt: skip


def _plugin_off(plan: Plan, profile: Profile) -> Profile:
    """SGLang's capture flags as they were, without the plugin that they are for."""
    layers = options.values(plan.argv, LAYERS_FLAG)
    tokens = [AUX_FLAG, ALGORITHM_FLAG, options.value(plan.argv, ALGORITHM_FLAG) or "EAGLE3"]
    tokens += [LAYERS_FLAG, *layers] if layers else []
    off = replace(profile, capture=replace(profile.capture, enabled=False))
    return with_flags(without_flags(off, *CAPTURE_FLAGS), *tokens)


def _capture_off(plan: Plan, profile: Profile) -> Profile:
    off = replace(profile, capture=replace(profile.capture, enabled=False))
    return without_flags(off, *CAPTURE_FLAGS) if options.present(plan.argv, AUX_FLAG) else off


def _other_attention(plan: Plan, profile: Profile) -> Profile:
    used = options.value(plan.argv, "--attention-backend")
    other = "flashinfer" if used == "triton" else "triton"
    return with_flags(without_flags(profile, "--attention-backend"), "--attention-backend", other)


def _p2p_off(plan: Plan, profile: Profile) -> Profile:
    return replace(profile, env={**profile.env, "NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0"})


FACTORS: Final[tuple[Factor, ...]] = (
    Factor("plugin", "the capture plugin not loaded; SGLang's own capture flags stay", EVERY,
           lambda plan: plan.profile.capture.enabled and options.present(plan.argv, AUX_FLAG), _plugin_off),
    Factor("capture", "capture off: no plugin and no capture flags", EVERY,
           lambda plan: plan.profile.capture.enabled or options.present(plan.argv, AUX_FLAG), _capture_off),
    _switch("cuda-graphs", "no CUDA graphs", FORWARD, "--disable-cuda-graph", gpu=True),
    Factor("p2p", "no peer-to-peer between GPUs (NCCL_P2P_DISABLE=1)", (JOIN, AFTER_LOAD, *FORWARD),
           lambda plan: len(plan.ranks) > 1 and not on_cpu(plan) and plan.env.get("NCCL_P2P_DISABLE") != "1", _p2p_off),
    _switch("custom-all-reduce", "no custom all-reduce", (JOIN, *FORWARD), "--disable-custom-all-reduce",
            gpu=True, ranks=2),
    Factor("attention-backend", "another attention backend (triton, or flashinfer where that is used)", FORWARD,
           lambda plan: not on_cpu(plan), _other_attention),
    _switch("autotune", "no FlashInfer autotuning", (GRAPHS,), "--disable-flashinfer-autotune", gpu=True),
    _switch("overlap-schedule", "no overlap of scheduling and compute", (PORT, WARM_UP), "--disable-overlap-schedule",
            gpu=False),
    _switch("mmap", "weights read instead of mapped", (LOAD,), "--weight-loader-disable-mmap", gpu=False),
    _removal("torch-compile", "no torch.compile", FORWARD, "--enable-torch-compile"),
    _removal("symmetric-memory", "no symmetric memory", (JOIN, *FORWARD), "--enable-symm-mem"),
    _removal("two-batch-overlap", "no two-batch overlap", FORWARD, "--enable-two-batch-overlap"),
    _removal("mixed-chunk", "no mixed chunks", (WARM_UP,), "--enable-mixed-chunk"),
)  # fmt: skip
"""In the order in which they are tried: what this tool itself adds first, then the commonest causes."""

BY_NAME: Final = {factor.name: factor for factor in FACTORS}


def applicable(plan: Plan, names: Sequence[str] | None = None) -> list[Factor]:
    """The factors that would change something in this launch; those named, where names are given.

    Raises:
        UsageError: a name is unknown, or its factor changes nothing in this launch.
    """
    found = [factor for factor in FACTORS if factor.applies(plan)]
    if names is None:
        return found
    for name in names:
        if name not in BY_NAME:
            raise UsageError(f"there is no factor {name}", f"There are {', '.join(BY_NAME)}.")
        if BY_NAME[name] not in found:
            raise UsageError(f"factor {name} changes nothing in this launch",
                             f"Those that do: {', '.join(factor.name for factor in found) or 'none'}.")  # fmt: skip
    return [factor for factor in found if factor.name in names]


def changed(plan: Plan, names: Sequence[str]) -> Profile:
    """The launch's profile with these factors changed, for a start that is watched and soon stopped again."""
    profile = plan.profile
    for factor in FACTORS:
        if factor.name in names:
            profile = factor.apply(plan, profile)
    limits = replace(profile.limits, start_timeout=None, stop_grace=min(profile.limits.stop_grace, 5.0))
    label = f"{profile.name}, {' '.join(names)} off" if names else profile.name
    return replace(profile, name=label, limits=limits)
