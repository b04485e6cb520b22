"""Every real log of this repository, diagnosed from its text alone: `python tests/bench/doctor_logs.py [FILE…]`."""

import platform
import sys
import time
from pathlib import Path

from kimi_agent import __version__
from kimi_agent.doctor.logfile import diagnose_log

LOGS = Path(__file__).parents[1] / "logs"
HAPPENED = {
    "cpu-attn-dp-attribute-error": "attention DP: both ranks raised the same error at warm-up",
    "cpu-deepseek-tp1-ready": "clean start, one rank",
    "cpu-deepseek-warmup-shape-error": "the warm-up request raised in the attention backend",
    "cpu-hook-exception": "a plugin's hook raised while serving",
    "cpu-llama-tp2-ready": "clean start",
    "cpu-rope-import-error-tp2": "an import error before any rank was there",
    "cpu-soft-watchdog": "a good start, with the soft watchdog's dumps",
    "cpu-two-nodes-rank0": "clean start, first of two nodes",
    "cpu-two-nodes-rank1": "clean start, second node: it never prints a ready line",
    "h200-kimi-width-graph-capture-ready": "87 silent seconds in graph capture, then ready",
    "h200-missing-cutlass": "an import error in the rank, buried under `Received sigquit`",
}


def main(paths: list[Path]) -> None:
    """Print machine, versions, method and the table."""
    print(f"kimi-agent {__version__}, Python {platform.python_version()}, {platform.machine()}; text alone, no host\n")
    print("| log | what happened | status | verdict | rank | summary | ms |")
    print("|---|---|---|---|---|---|---:|")
    for path in paths:
        data = path.read_bytes()
        began = time.perf_counter()
        found = diagnose_log([data])
        spent = 1000 * (time.perf_counter() - began)
        verdict = found.verdict
        summary = "" if verdict.kind == "none" else verdict.summary.replace("|", "/")
        cells = (path.stem, HAPPENED.get(path.stem, ""), found.status, f"`{verdict.kind}`", verdict.rank or "")
        print(f"| {' | '.join(cells)} | {summary[:110]} | {spent:.0f} |")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or sorted(LOGS.glob("*.log")))
