"""The lines that open a phase, in the wording of every SGLang from 0.2 on and of vLLM."""

import re
from typing import Final

from kimi_agent.model.phases import AFTER_LOAD, GRAPHS, JOIN, KV_CACHE, LOAD, PORT, READY, WARM_UP

RANK_MARKS: Final = (
    (JOIN, re.compile(
        r"(?P<line>Init (?:parallel|torch distributed|nccl) begin|(?:sglang|vLLM) is using nccl=="
        r"|world_size=\d+ rank=\d+|rank \d+ in world size \d+ is assigned)"
    )),
    (LOAD, re.compile(
        r"(?P<line>Init (?:parallel|torch distributed|nccl) (?:ends?|done)\b|Memory baseline taken|Load weight begin"
        r"|Starting to load model|Loading model from scratch)"
    )),
    (AFTER_LOAD, re.compile(
        r"(?P<line>Load weight end\.|Loading weights took|Model loading took|Dynamo bytecode transform time"
        r"|torch\.compile (?:takes|took))"
    )),
    (KV_CACHE, re.compile(
        r"(?:\S+ ){0,3}?(?P<line>KV Cache is allocated|KV Cache VA upper bound|Available KV cache memory"
        r"|GPU KV cache size|# (?:GPU|CUDA) blocks)"
    )),
    (GRAPHS, re.compile(
        r"(?P<line>Memory pool end|Capture (?:\S+ ){0,4}(?:cuda|CUDA|[ncxh]pu|[NC]PU) graph begin"
        r"|Running FlashInfer autotune|Capturing (?:the model for )?(?:CUDA|cudagraph))"
    )),
    (PORT, re.compile(r"(?P<line>max_total_num_tokens=\d)")),
)  # fmt: skip
"""Each rank says these for itself, but for the last, which only the first rank of a group says: so rank 0's lead in
`port` is none. `line` names what is counted where a logger has dropped the rank tags."""

MAIN_MARKS: Final = (
    (PORT, re.compile(
        r"Engine startup timings|(?:INFO: +)?Started server process|Dummy health check server started"
        r"|init engine \(profile"
    )),
    (WARM_UP, re.compile(r"(?:INFO: +)?Uvicorn running on |Starting vLLM API server")),
    (READY, re.compile(r"The server is fired up and ready to roll!")),
)  # fmt: skip
ANY: Final = re.compile(
    "|".join(re.sub(r"\(\?P<line>", "(?:", pattern.pattern) for _, pattern in (*RANK_MARKS, *MAIN_MARKS))
    + "|.*LLM|.*Application startup complete"
)
"""What a message must match to open a phase; most match not."""

VLLM: Final = re.compile(
    r"vLLM API server version|vLLM is using nccl|Initializing an? (?:V\d )?LLM engine|Starting vLLM API"
)
VLLM_READY: Final = re.compile(r"(?:INFO: +)?Application startup complete\.")
"""What vLLM says last; from SGLang it comes before the warm-up."""
WORLD: Final = re.compile(r"(?:rank \d+ in )?world[_ ]size[= ](\d{1,4}) (?:rank=\d|is assigned)")
STOPPING: Final = re.compile(r"SIGTERM received|Gracefully exiting|(?:INFO: +)?Shutting down")

_SUBJECT = (
    r"(?:weights?|checkpoints?|shards?|kv[ _-]?(?:cache|pool)|memory pool|graphs?|(?:torch )?distributed"
    r"|process groups?|autotun\w+|warm[ -]?up|model runner|server|engine)"
)
_SUBJECT_CLUES = (
    "weight", "checkpoint", "shard", "cache", "pool", "graph", "distributed", "process group", "autotun", "warm",
    "model runner", "server", "engine",
)  # fmt: skip
_TURN = (
    r"(?:begins?|begun|beginning|ends?|ended|starts?|starting|started|finish(?:ed|es)?|completed?|done|ready|loaded"
    r"|loading|captur(?:ed|ing)|allocat(?:ed|ing)|initiali[sz](?:ed|ing)|up and running)"
)
_LIKE_A_MARK = re.compile(
    rf"(?i)(?:\S+ ){{0,5}}?(?:{_SUBJECT}(?: \S+){{0,3}}? {_TURN}|{_TURN}(?: \S+){{0,4}}? {_SUBJECT})\b"
)
_KNOWN = re.compile(
    r"Capture (?:\S+ ){0,4}\w+ graph end|Load weight end|Ignore import error|server_args="
    r"|(?:INFO: +)?(?:Waiting for application|Application |Finished server)|FlashInfer autotune completed"
    r"|Post-capture KV sizing|NCCL/\S+ warmup completed|Graph capturing finished|Initializing an? "
)
"""Lines that read like a mark, are known, and open no phase."""


def could_be_mark(message: str) -> bool:
    """Whether a message that no mark knows reads as if something of a start began or ended: a rewording, perhaps."""
    begin = message[:200]
    if not any(map(begin.lower().__contains__, _SUBJECT_CLUES)):
        return False
    return _LIKE_A_MARK.match(begin) is not None and _KNOWN.match(begin) is None
