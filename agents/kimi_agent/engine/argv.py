"""SGLang's command line: how a profile becomes one, and what capture cannot work with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kimi_agent.engine.options import number, present, value

POLLED: Final = ("/v1/loads", "/health", "/model_info")
"""Paths that the agent asks for; SGLang keeps them out of its own log."""
SOFT_WATCHDOG: Final = "600"
"""Seconds without progress after which SGLang itself writes stacks into its log; it kills nothing."""
ACCESS_FLAG: Final = "--uvicorn-access-log-exclude-prefixes"
WATCHDOG_FLAG: Final = "--soft-watchdog-timeout"
LAYERS_FLAG: Final = "--return-aux-hidden-state-layer-ids"
AUX_FLAG: Final = "--enable-return-aux-hidden-states"
ALGORITHM_FLAG: Final = "--speculative-algorithm"


ALONE: Final = (
    ("--enable-two-batch-overlap", "capture-two-batch-overlap", "two-batch overlap",
     "SGLang splits the rows of a batch there"),
    ("--enable-pdmux", "capture-pdmux", "prefill-decode multiplexing", "two streams share the model"),
    ("--enable-encoder-swa-bounded-replay", "capture-encoder-replay", "encoder sliding-window replay",
     "replayed rows are mixed with real ones"),
    ("--enable-lora", "capture-lora", "LoRA", "a row would not say which adapter made it"),
    ("--lora-paths", "capture-lora", "LoRA", "a row would not say which adapter made it"),
    ("--enable-layernorm-sp", "capture-sequence-parallel", "sequence-parallel norms",
     "each rank has some of a step's rows only"),
    ("--enable-mis", "capture-multi-item", "multi-item scoring", "its steps return no hidden states"),
    ("--dllm-algorithm", "capture-diffusion", "diffusion language models", "a token is computed many times"),
)  # fmt: skip
"""Flags that make captured rows wrong or incomplete by themselves: flag, slug, what it turns on, why."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a launch cannot do what is asked."""

    slug: str
    message: str
    hint: str


def build_argv(  # noqa: PLR0917 - one argument a line of the profile
    python: str,
    model: str,
    host: str,
    port: int,
    tp: int,
    dp: int,
    flags: Sequence[str],
    capture_layers: Sequence[int] | None,
    known: frozenset[str] | None = None,
) -> list[str]:
    """The whole command line of a server.

    `flags` are the user's own, verbatim and last, so that they win. With `known`, the installed SGLang's flags, the
    additions that this version does not have are left out.
    """
    argv = [python, "-m", "sglang.launch_server", "--model-path", model, "--host", host, "--port", str(port)]
    argv += ["--tp-size", str(tp), "--dp-size", str(dp)]
    additions = {WATCHDOG_FLAG: [SOFT_WATCHDOG], ACCESS_FLAG: list(POLLED)}
    if capture_layers is not None:
        additions |= {AUX_FLAG: [], ALGORITHM_FLAG: ["EAGLE3"]}
        if capture_layers:
            additions[LAYERS_FLAG] = [str(layer) for layer in capture_layers]
    for flag, given in additions.items():
        if not present(flags, flag) and (known is None or flag in known):
            argv += [flag, *given]
    return [*argv, *flags]


def capture_refusals(argv: Sequence[str]) -> list[Problem]:
    """Why capture would give wrong or incomplete rows with this command line; empty when it can work."""
    rules = (_prefix_cache, _flags, _parallel, _speculative, _disaggregation)
    return [problem for rule in rules for problem in rule(argv)]


def capture_notes(argv: Sequence[str]) -> list[str]:
    """What is good to know about a launch with capture, though nothing is wrong with it."""
    ranks = number(argv, "--attn-dp-size", default=0)
    if not ranks and present(argv, "--enable-dp-attention"):
        ranks = number(argv, "--dp-size", "--data-parallel-size", "--dp", default=1)
    chunk = number(argv, "--chunked-prefill-size", default=0)
    if ranks < 2:
        return []
    size = f" {chunk} to {chunk // ranks}" if chunk else ""
    return [f"attention data parallelism: SGLang divides the chunk size of prefill{size} by the {ranks} ranks"]


def _prefix_cache(argv: Sequence[str]) -> list[Problem]:
    if present(argv, "--disable-radix-cache"):
        return []
    text = "capture needs the prefix cache off: tokens it serves from the cache have no hidden states"
    return [Problem("capture-prefix-cache", text, "Add --disable-radix-cache to [server] flags.")]


def _parallel(argv: Sequence[str]) -> list[Problem]:
    problems = []
    if (pp := number(argv, "--pp-size", "--pipeline-parallel-size", "--pp", default=1)) > 1:
        text = f"capture does not work with pipeline parallelism (--pp-size {pp}): no rank sees all layers"
        problems.append(Problem("capture-pipeline", text, "Use --tp-size instead of --pp-size."))
    if (cp := number(argv, "--attn-cp-size", "--attention-context-parallel-size", default=1)) > 1:
        text = f"capture does not work with attention context parallelism (--attn-cp-size {cp}): rows are split"
        problems.append(Problem("capture-context-parallel", text, "Remove --attn-cp-size from [server] flags."))
    return problems


def _speculative(argv: Sequence[str]) -> list[Problem]:
    algorithm = value(argv, ALGORITHM_FLAG)
    draft = value(argv, "--speculative-draft-model-path", "--speculative-draft-model")
    if draft is not None:
        text = f"capture does not work with speculative decoding (draft model {draft}): rejected drafts leave rows too"
        return [Problem("capture-speculative", text, "Remove the speculative flags; capture runs the model alone.")]
    if algorithm is not None and (algorithm.upper() != "EAGLE3" or not present(argv, AUX_FLAG)):
        text = f"capture does not work with speculative decoding ({ALGORITHM_FLAG} {algorithm})"
        return [Problem("capture-speculative", text, f"Remove {ALGORITHM_FLAG}; capture sets it to EAGLE3 itself.")]
    return []


def _disaggregation(argv: Sequence[str]) -> list[Problem]:
    problems = []
    mode = value(argv, "--disaggregation-mode")
    if mode is not None and mode != "null":
        text = f"capture does not work with disaggregation (--disaggregation-mode {mode}): two servers share the rows"
        problems.append(Problem("capture-disaggregation", text, "Capture on a server of its own, without that flag."))
    return problems


def _flags(argv: Sequence[str]) -> list[Problem]:
    return [
        Problem(slug, f"capture does not work with {what}: {why}", f"Remove {flag} from [server] flags.")
        for flag, slug, what, why in ALONE
        if present(argv, flag)
    ]
