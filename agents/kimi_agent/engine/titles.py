"""Process titles and rank tags: which ranks a server has, and which process is which."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kimi_agent.engine.dialects import canonical
from kimi_agent.engine.options import number, present

DETOKENIZER: Final = "detokenizer"
TOKENIZER: Final = "tokenizer_worker"

_TITLE = re.compile(r"sglang::(?P<role>[a-z_]+?)(?:_(?P<tag>(?:(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d+_?)+))?(?::\d+)?$")
_FIELD = re.compile(r"(?:'(\w+)': |\b(\w+)=)(\d+|True|False)\b")
"""As a dictionary, or as the call that versions up to 0.5.9 logged."""


def name_of_title(title: str) -> str | None:
    """The rank (`DP0 TP1`, plain `TP0`) or role (`detokenizer`, …) of a process title; `None` when not SGLang's."""
    match = _TITLE.match(title.strip("\0 ").split(" ")[0])
    if match is None:
        return None
    if match["role"] == "scheduler":
        return canonical(match["tag"] or "") or "TP0"
    return match["role"]


def is_rank(name: str) -> bool:
    """Whether a name is a scheduler rank's and not a role's."""
    return canonical(name) == name


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes from which SGLang makes its rank tags; all are counts of processes, 1 when not used."""

    tp: int = 1
    dp: int = 1
    """Whole replicas."""
    attn_dp: int = 1
    pp: int = 1
    attn_cp: int = 1
    moe_dp: int = 1
    ep: int = 1
    nodes: int = 1
    node: int = 0

    def ranks(self) -> tuple[str, ...]:
        """The tags of this node's scheduler ranks, in the order SGLang starts them; `TP0` for a single one."""
        pipelines, tensors = self._local()
        replicas = range(self.dp) if self.dp > 1 else (None,)
        return tuple(self._tag(dp, pp, tp) for dp in replicas for pp in pipelines for tp in tensors)

    def _local(self) -> tuple[range, range]:
        nodes = max(self.nodes, 1)
        pipelines = max(self.pp // nodes, 1)
        nodes_per_group = max(nodes // max(self.pp, 1), 1)
        tensors = max(self.tp // nodes_per_group, 1)
        first_pipeline = (self.node // nodes_per_group) * pipelines
        first_tensor = (self.node % nodes_per_group) * tensors
        return range(first_pipeline, first_pipeline + pipelines), range(first_tensor, first_tensor + tensors)

    def _tag(self, dp: int | None, pp: int, tp: int) -> str:
        attention = max(self.tp // (self.attn_dp * self.attn_cp), 1)
        per_moe = max(self.tp // self.moe_dp, 1)
        shown = dp if dp is not None else tp // (attention * self.attn_cp) if self.attn_dp > 1 else None
        parts = [
            ("DP", shown is not None, shown),
            ("PP", self.pp > 1, pp),
            ("ATTN_CP", self.attn_cp > 1, tp // attention % self.attn_cp),
            ("MOE_DP", self.moe_dp > 1, tp // per_moe),
            ("TP", self.tp > 1, tp),
            ("EP", self.ep > 1, tp % per_moe // max(per_moe // self.ep, 1)),
        ]
        return " ".join(f"{name}{value}" for name, used, value in parts if used) or "TP0"


def expected_ranks(tp: int, dp: int, argv: Sequence[str]) -> tuple[str, ...]:
    """The rank tags that a launch with these sizes and further flags will have on its node."""
    dp = number(argv, "--dp-size", "--data-parallel-size", "--dp", default=dp)
    attn_dp = number(argv, "--attn-dp-size", "--attention-data-parallel-size", default=1)
    if present(argv, "--enable-dp-attention"):
        attn_dp, dp = max(attn_dp, dp), 1
    layout = Layout(
        tp=number(argv, "--tp-size", "--tensor-parallel-size", "--tp", default=tp),
        dp=dp,
        attn_dp=attn_dp,
        pp=number(argv, "--pp-size", "--pipeline-parallel-size", "--pp", default=1),
        attn_cp=number(argv, "--attn-cp-size", "--attention-context-parallel-size", default=1),
        moe_dp=number(argv, "--moe-dp-size", "--moe-data-parallel-size", default=1),
        ep=number(argv, "--ep-size", "--expert-parallel-size", "--ep", default=1),
        nodes=number(argv, "--nnodes", default=1),
        node=number(argv, "--node-rank", default=0),
    )
    return layout.ranks()


def absent_ranks(tp: int, argv: Sequence[str], local: Sequence[str]) -> tuple[str, ...]:
    """The ranks of this server that other nodes run; empty for a server of one node."""
    nodes = number(argv, "--nnodes", default=1)
    if nodes < 2:
        return ()
    everywhere = [rank for node in range(nodes) for rank in expected_ranks(tp, 1, [*argv, "--node-rank", str(node)])]
    return tuple(dict.fromkeys(rank for rank in everywhere if rank not in local))


def ranks_of_server_args(message: str) -> tuple[str, ...]:
    """The ranks that a log's own `server_args=` line announces; empty when it gives no sizes that make sense."""
    found: dict[str, str] = {}
    for key, called, value in _FIELD.findall(message):
        found.setdefault(key or called, value)
    if "tp_size" not in found:
        return ()

    def size(key: str, least: int = 1) -> int:
        value = found.get(key, "")
        return min(max(int(value), least), 4096) if value.isdecimal() and len(value) < 6 else least

    attn_dp, dp = size("attn_dp_size"), size("dp_size")
    if found.get("enable_dp_attention") == "True":
        attn_dp, dp = max(attn_dp, dp), 1
    layout = Layout(
        tp=size("tp_size"),
        dp=dp,
        attn_dp=attn_dp,
        pp=size("pp_size"),
        attn_cp=size("attn_cp_size"),
        moe_dp=size("moe_dp_size"),
        ep=size("ep_size"),
        nodes=size("nnodes"),
        node=size("node_rank", 0),
    )
    return layout.ranks() if layout.tp * layout.dp * layout.pp <= 4096 else ()
