"""Run by the engine's Python: what the plugin reads from SGLang's norm and a head, as one line of JSON."""

import json
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.layernorm import RMSNorm
from torch import nn

from kimi_capture.chunk import Rows, to_numpy
from kimi_capture.guard import Guard
from kimi_capture.norm import FinalNorm
from kimi_capture.rows import Piece
from kimi_capture.selfcheck import Checker

HIDDEN, VOCABULARY = 32, 50


def norm_found() -> dict[str, Any]:
    norm, watch = RMSNorm(HIDDEN), FinalNorm()
    watch.attach(norm)
    state = torch.randn(6, HIDDEN) * 7
    residual = torch.randn(6, HIDDEN)
    norm.forward_native(state, residual)  # not by the module's call: nothing is seen
    unknown = watch.take(6, replayed=False)
    norm(state.clone(), residual.clone())
    width = HIDDEN**0.5
    fused = (watch.take(4, replayed=False) / width).tolist()
    norm(state + residual)
    alone = (watch.take(4, replayed=False) / width).tolist()
    other = FinalNorm()
    other.attach(nn.LayerNorm(HIDDEN))
    expected = (state + residual).pow(2).mean(-1).sqrt()[:4].tolist()
    return {
        "fused": fused, "alone": alone, "expected": expected, "refused": other.reason,
        "unknown": None if unknown.isnan().all() else unknown.tolist(),
    }  # fmt: skip


def model(weight: torch.Tensor) -> Any:
    places = SimpleNamespace(org_vocab_start_index=10, org_vocab_end_index=30)
    head = SimpleNamespace(weight=weight[10:34], shard_indices=places)
    return SimpleNamespace(lm_head=head, logits_processor=SimpleNamespace(final_logit_softcapping=None))


def check_found() -> dict[str, Any]:
    weight, rows = torch.randn(VOCABULARY, HIDDEN), torch.randn(9, HIDDEN)
    guard = Guard()
    checker = Checker(guard, interval=0.0)
    checker.attach(model(weight))
    logits = rows[5:6] @ weight.T
    for rid, held in (("right", rows), ("again", rows), ("split", rows), ("wrong", rows.roll(1, 0))):
        checker.keep([(rid, 0, 6)], [Piece(0, 6, 0)], logits)
        halves = [held[:4], held[4:]] if rid == "split" else [held]
        checker.check(rid, [Rows({"last_hidden_state": to_numpy(half.clone())}) for half in halves])
        checker.totals(10.0)
        if rid == "split":
            right = checker.describe()
    packed = Checker(guard)
    packed.attach(model(torch.zeros(VOCABULARY, HIDDEN, dtype=torch.int8)))
    return {"right": right, "wrong": checker.describe(), "error": guard.last_error, "quantised": packed.reason}


print(json.dumps(norm_found() | check_found()))
