"""Flags that cannot work together, or not with this model or host."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kimi_agent.engine.options import number, present, value
from kimi_agent.model.events import GpuSample
from kimi_agent.preflight.check import Check, ok, refuse, warn
from kimi_agent.runs.plan import Plan


def flag_checks(plan: Plan, environment: Mapping[str, str], gpus: Sequence[GpuSample]) -> list[Check]:
    """The checks of the command line as a whole."""
    argv = plan.argv
    found = [*_nodes(argv), *_sizes(argv), *_ignored(argv), *_heads(plan), *_count(argv, environment, gpus)]
    return found or [ok("flags", "no flags of this command line contradict each other")]


def _tp(argv: Sequence[str]) -> int:
    return number(argv, "--tp-size", "--tensor-parallel-size", "--tp", default=1)


def _dp(argv: Sequence[str]) -> int:
    return number(argv, "--dp-size", "--data-parallel-size", "--dp", default=1)


def _nodes(argv: Sequence[str]) -> list[Check]:
    nodes, node = number(argv, "--nnodes", default=1), number(argv, "--node-rank", default=0)
    checks = []
    if nodes > 1 and value(argv, "--dist-init-addr", "--nccl-init-addr") is None:
        checks.append(refuse("flags", f"--nnodes {nodes} without --dist-init-addr: the nodes cannot find each other",
                             "Add --dist-init-addr HOST:PORT of the first node, the same on every node."))  # fmt: skip
    if node >= max(nodes, 1):
        checks.append(refuse("flags", f"--node-rank {node} with --nnodes {nodes}: nodes count from 0",
                             f"Set --node-rank between 0 and {nodes - 1}."))  # fmt: skip
    if nodes > 1 and (_tp(argv) * number(argv, "--pp-size", "--pp", default=1)) % nodes:
        checks.append(refuse("flags", f"{_tp(argv)} tensor-parallel ranks cannot be spread over {nodes} nodes evenly",
                             "Set --tp-size to a multiple of --nnodes."))  # fmt: skip
    return checks


def _sizes(argv: Sequence[str]) -> list[Check]:
    tp, checks = _tp(argv), []
    if present(argv, "--enable-dp-attention"):
        dp = _dp(argv)
        if dp == 1:
            checks.append(warn("flags", "--enable-dp-attention does nothing with --dp-size 1",
                               "Set dp in [server], or remove the flag."))  # fmt: skip
        elif tp % dp:
            checks.append(refuse("flags", f"attention data parallelism of {dp} does not divide {tp} ranks",
                                 "Set dp to a divisor of tp."))  # fmt: skip
    ep = number(argv, "--ep-size", "--expert-parallel-size", "--ep", default=1)
    if ep > 1 and tp % ep:
        checks.append(refuse("flags", f"expert parallelism of {ep} does not divide {tp} ranks",
                             "Set --ep-size to a divisor of tp."))  # fmt: skip
    return checks


def _ignored(argv: Sequence[str]) -> list[Check]:
    graphs = [flag for flag in ("--cuda-graph-max-bs", "--cuda-graph-bs") if present(argv, flag)]
    if graphs and present(argv, "--disable-cuda-graph"):
        return [warn("flags", f"--disable-cuda-graph leaves {graphs[0]} without effect", "Remove one of the two.")]
    return []


def _heads(plan: Plan) -> list[Check]:
    config = _config(Path(plan.profile.server.model) / "config.json")
    heads, tp = config.get("num_attention_heads"), _tp(plan.argv)
    dp = _dp(plan.argv) if present(plan.argv, "--enable-dp-attention") else 1
    per = max(tp // max(dp, 1), 1)
    split = present(plan.argv, "--attn-cp-size", "--attn-dp-size", "--attention-context-parallel-size")
    if isinstance(heads, int) and heads % per and not split:
        return [refuse("flags", f"the model's {heads} attention heads cannot be divided among {per} ranks",
                       "Set tp so that it divides the number of heads.")]  # fmt: skip
    checks = []
    longest, asked = config.get("max_position_embeddings"), number(plan.argv, "--context-length", default=0)
    if isinstance(longest, int) and asked > longest:
        checks.append(warn("flags", f"--context-length {asked} is more than the {longest} that the model was made for",
                           "Lower it, unless the longer context is meant."))  # fmt: skip
    return checks


def _config(path: Path) -> dict[str, Any]:
    """The language model's part of a config; empty when it cannot be read."""
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    text = config.get("text_config") if isinstance(config, dict) else None
    return text if isinstance(text, dict) else config if isinstance(config, dict) else {}


def _count(argv: Sequence[str], environment: Mapping[str, str], gpus: Sequence[GpuSample]) -> list[Check]:
    """GPUs that this node's ranks need, against those that are there."""
    if not gpus or value(argv, "--device") == "cpu":
        return []
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    have = len([name for name in visible.split(",") if name.strip()]) if visible is not None else len(gpus)
    nodes = max(number(argv, "--nnodes", default=1), 1)
    replicas = 1 if present(argv, "--enable-dp-attention") else _dp(argv)
    need = max(_tp(argv) * number(argv, "--pp-size", "--pp", default=1) // nodes, 1) * replicas
    if need <= have:
        return []
    where = "CUDA_VISIBLE_DEVICES names" if visible is not None else "this host has"
    return [refuse("gpus", f"the ranks of this launch need {need} GPUs, {where} {have}", "Lower tp or dp.")]
