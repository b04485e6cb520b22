"""The demo's launch profile: a tiny Kimi-K2.5 on this machine's processors."""

import os
import random
import socket
from pathlib import Path
from typing import Any, Final

from kimi_agent.errors import UnavailableError
from kimi_console.demo.engine import Engine

NAME: Final = "tiny-kimi25"
TP: Final = 2
CHUNK: Final = 64
"""Tokens of one prefill chunk: small, so that an ordinary prompt takes several."""
LAYERS: Final = (2, 3, 4)
"""Captured layers, in SGLang's spelling."""
SHARD_MIB: Final = 1
"""1024 tokens of this model, so that a short dump has several shards."""
PORTS: Final = range(20_000, 31_000)
"""Below those that the kernel gives to outgoing connections, and so are the ones that SGLang adds to it."""

_FLAGS: Final = (
    "--device", "cpu",
    "--attention-backend", "torch_native",
    "--max-total-tokens", "4096",
    "--context-length", "2048",
    "--chunked-prefill-size", str(CHUNK),
    "--disable-radix-cache",
)  # fmt: skip


def demo_profile(engine: Engine, port: int, dumps: Path | None = None) -> dict[str, Any]:
    """The profile, as `kimi_agent.profile.parse` reads it; dumps go to the agent's home unless `dumps` is given."""
    capture: dict[str, Any] = {"layers": list(LAYERS), "shard_mib": SHARD_MIB, "keep_free_gib": 0.5}
    if dumps is not None:
        capture["directory"] = str(dumps)
    return {
        "name": NAME,
        "server": {
            "model": str(engine.models / NAME),
            "python": str(engine.python),
            "port": port,
            "tp": TP,
            "flags": list(_FLAGS),
        },
        "env": _environment(engine),
        "capture": capture,
        "limits": {"start_timeout": 600, "stop_grace": 20},
    }


def free_port(among: range = PORTS) -> int:
    """A port of this machine that nothing listens on now.

    Raises:
        UnavailableError: none was found.
    """
    for port in random.sample(among, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise UnavailableError("No free port was found on this machine", "See what listens with: ss -ltnp")


def _environment(engine: Engine) -> dict[str, str]:
    cpus = sorted(os.sched_getaffinity(0))
    return {
        "PYTHONPATH": str(engine.shims),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(cpus[rank % len(cpus)]) for rank in range(TP)),
        # A CUDA build of torch brings NCCL, which SGLang would otherwise try on a GPU.
        "SGLANG_NCCL_SO_PATH": "/nonexistent",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
