"""Prove a running server's capture mode by mode: requests of our own that are in no dump, and the plugin's counts."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from kimi_agent.engine import options
from kimi_agent.engine.http import get_json, post_json
from kimi_agent.errors import KimiError
from kimi_agent.runs import plugin
from kimi_agent.runs.plan import Plan

PROOF: Final = "KIMI_PROOF_"
"""How the request ids begin; the plugin keeps such rows out of every dump."""
DEADLINE: Final = 300.0
"""Seconds for all requests: the first one of a kind may compile kernels."""
SHORT: Final = 8
OUTPUT: Final = 24
"""Tokens that the short request decodes, while the long one comes in by chunks."""
LONGEST: Final = 16_384
"""Tokens of the longest prompt that is sent."""
TOKEN: Final = 11
"""Any token that every vocabulary has."""
MODES: Final = ("EXTEND", "CHUNKED", "MIXED", "DECODE", "IDLE")
GRAPH: Final = "_GRAPH"


class ProofError(KimiError):
    """The capture cannot be proved now."""

    slug = "prove"


@dataclass(frozen=True, slots=True)
class Proof:
    """One mode: its steps since the ranks began, the rows they computed, and those that had hidden states."""

    mode: str
    steps: int
    computed: int
    captured: int
    verdict: str
    """`ok`, `not seen` or `lost`."""
    why: str = ""


async def prove(plan: Plan, sockets: Path) -> dict[str, Any]:
    """Send a few requests through every mode that this launch has, and report what the ranks counted.

    Raises:
        ProofError: no rank's plugin captures.
        KimiError: the server does not answer.
    """
    await _counts(sockets)
    server = plan.profile.server
    key = options.value(plan.argv, "--api-key")
    info = await get_json(server.host, server.port, "/server_info", key, 30.0)
    long = prompt_length(info if isinstance(info, dict) else {}, plan.argv)

    async def send(name: str, tokens: int, new: int) -> None:
        body = {
            "rid": f"{PROOF}{name}",
            "input_ids": [TOKEN + place % 50 for place in range(tokens)],
            "sampling_params": {"max_new_tokens": new, "temperature": 0, "ignore_eos": True},
        }
        await post_json(server.host, server.port, "/generate", body, api_key=key, deadline=DEADLINE)

    short = asyncio.create_task(send("short", SHORT, OUTPUT))
    await asyncio.gather(short, send("long", long, 2))
    counts = await _counts(sockets)
    table = proofs(counts, plan.argv)
    return {"ok": all(proof.verdict != "lost" for proof in table), "modes": [asdict(proof) for proof in table]}


def prompt_length(info: Mapping[str, Any], argv: Iterable[str]) -> int:
    """Tokens of a prompt that comes in at least two chunks, if the server lets it be that long."""
    given = options.number(list(argv), "--chunked-prefill-size", default=8192)
    size = info.get("chunked_prefill_size")
    chunk = size if isinstance(size, int) and size > 0 else given
    limits = [info.get(key) for key in ("context_length", "max_total_num_tokens", "max_total_tokens")]
    longest = min([limit // 2 for limit in limits if isinstance(limit, int) and limit > 0] + [LONGEST])
    return max(SHORT, min(chunk + chunk // 2 + 1, longest))


def proofs(counts: Mapping[str, Mapping[str, int]], argv: Iterable[str]) -> list[Proof]:
    """The table: every mode, eager and from a graph where either was seen, in a fixed order."""
    names = [name for mode in MODES for name in (mode, mode + GRAPH)]
    found = []
    for name in names:
        count = counts.get(name)
        if count is None:
            if name.endswith(GRAPH) or name + GRAPH in counts:
                continue
            found.append(Proof(name, 0, 0, 0, "not seen", _reason(name, list(argv))))
        else:
            lost = count["captured"] != count["computed"]
            why = "the model gave no hidden states for some rows: its capture patch misses this mode" if lost else ""
            verdict = "lost" if lost else "ok"
            found.append(Proof(name, count["steps"], count["computed"], count["captured"], verdict, why))
    return found


def lines(answer: Mapping[str, Any]) -> list[str]:
    """The answer for a terminal."""
    marks = {"ok": "✓", "not seen": "–", "lost": "✖"}
    return [
        f"{marks[mode['verdict']]} {mode['mode']:14} {mode['captured']:>9,} of {mode['computed']:>9,} rows in "
        f"{mode['steps']:>6,} steps  {mode['verdict']}{': ' + mode['why'] if mode['why'] else ''}"
        for mode in answer["modes"]
    ]


def _reason(mode: str, argv: list[str]) -> str:
    if mode == "MIXED" and not options.present(argv, "--enable-mixed-chunk"):
        return "this launch mixes no decode steps into prefill (--enable-mixed-chunk)"
    if mode == "IDLE":
        return "only a rank of attention data parallelism is idle while another works"
    return "no step of this kind has run yet"


async def _counts(sockets: Path) -> dict[str, dict[str, int]]:
    """The counts of all writer ranks, summed."""
    writers = [one for one in await plugin.poll(sockets) if one.writer]
    if not writers:
        raise ProofError("no rank captures", "Launch with [capture] enabled and wait until the server is READY.")
    total: dict[str, dict[str, int]] = {}
    for one in writers:
        for mode, count in (one.status.get("modes") or {}).items():
            into = total.setdefault(mode, dict.fromkeys(("steps", "computed", "captured"), 0))
            for key in into:
                into[key] += int(count[key])
    return total
