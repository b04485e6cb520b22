"""The phases of a start, in the order every SGLang version goes through them."""

from typing import Final

IMPORT: Final = "import"
JOIN: Final = "join ranks"
LOAD: Final = "load weights"
AFTER_LOAD: Final = "after load"
KV_CACHE: Final = "KV cache"
GRAPHS: Final = "graphs"
PORT: Final = "port"
WARM_UP: Final = "warm-up"
READY: Final = "ready"

PHASES: Final[tuple[str, ...]] = (
    IMPORT, JOIN, LOAD, AFTER_LOAD, KV_CACHE, GRAPHS, PORT, WARM_UP, READY,
)  # fmt: skip
"""A rank is *in* a phase from the line that opens it until the line that opens a later one."""

ORDER: Final[dict[str, int]] = {phase: index for index, phase in enumerate(PHASES)}

MEANING: Final[dict[str, str]] = {
    IMPORT: "the rank's process starts and imports SGLang; it logs nothing meanwhile",
    JOIN: "the ranks meet: rendezvous, NCCL or gloo groups, the first collective",
    LOAD: "weights go from disk to the device",
    AFTER_LOAD: "weights are repacked, kernels compiled, all ranks wait for the slowest (480 s at most)",
    KV_CACHE: "the KV cache is sized and allocated",
    GRAPHS: "kernels are tuned, attention is set up, CUDA graphs are captured",
    PORT: "the ranks have reported; the HTTP server opens its port last",
    WARM_UP: "the port is open; the first request runs through the model",
    READY: "the server says it is ready",
}
"""What happens in each phase, for the operator."""
