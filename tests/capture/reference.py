"""Run by the engine's Python: Hugging Face's hidden states for the tokens of captured rows, in float32.

reference.py MODEL CAPTURED.npz OUT.npz, where CAPTURED holds, by request id, `RID.tokens` [rows] and `RID.states`
[K + 1, rows, hidden], and `boundaries` [K + 1] with the number of layers for the last. OUT holds `RID` [layers + 1,
rows, hidden] (boundary b at index b, the last one after the final norm) and `RID.ties` [n, 3]: layer, row, margin.

A mixture of experts is not continuous: where two experts score the same but for bf16 rounding at the edge of the top
k, either is a right answer, and two right implementations differ. So a row that does not match is computed again with
such ties decided the other way, and each is reported with its margin. Nothing else bends to the captured values.
"""

import itertools
import sys
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

MATCH = 0.999
"""Cosine below which a row does not match: two ties at once are looked for."""
AGREE = 0.9998
"""Cosine below which one tie is looked for: it would disturb the rows that follow."""
TIE = 0.006
"""Largest margin between two experts' scores that is a tie. SGLang rounds its scores, sigmoids around 0.5, to bf16,
which steps by 0.0039 there; the rest is what the rounding of the router's input does."""
Choices = dict[tuple[int, int], tuple[list[int], float]]
"""The experts of (layer, row) whose tie was decided the other way, and its margin."""


class Reference:
    """A model whose routing ties can be decided the other way."""

    def __init__(self, path: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
        self.scores: dict[int, torch.Tensor] = {}
        self.chosen: Choices = {}
        for layer, block in enumerate(self.model.model.layers):
            if hasattr(block.mlp, "gate"):
                block.mlp.gate.register_forward_hook(self._router(layer))

    def _router(self, layer: int) -> Any:
        def decide(gate: Any, inputs: Any, output: Any) -> Any:
            logits, weights, experts = output
            scores = logits.sigmoid()
            self.scores[layer] = scores + gate.e_score_correction_bias
            self.top_k = gate.top_k
            experts, weights = experts.clone(), weights.clone()
            for (where, row), (chosen, _) in self.chosen.items():
                if where == layer and row < len(scores):
                    share = scores[row, chosen]
                    experts[row] = torch.tensor(chosen)
                    weights[row] = share / share.sum() * gate.routed_scaling_factor
            return logits, weights, experts

        return decide

    def states(self, tokens: np.ndarray, chosen: Choices) -> np.ndarray:
        """[layers + 1, rows, hidden] float32; leaves the routers' scores in `scores`."""
        self.chosen = chosen
        with torch.no_grad():
            output = self.model.model(torch.tensor(tokens)[None], output_hidden_states=True, use_cache=False)
        states: np.ndarray = torch.stack([layer[0] for layer in output.hidden_states]).numpy()
        return states

    def ties(self, row: int, boundary: int, taken: Choices) -> Choices:
        """The other ways to route a row in the layers before a boundary, each by its layer and a running number."""
        found: Choices = {}
        for layer in (layer for layer in self.scores if layer < boundary and (layer, row) not in taken):
            scores = self.scores[layer][row]
            best = scores.topk(self.top_k + 2).indices.tolist()
            for chosen in itertools.combinations(best, self.top_k):
                margin = float(max(scores[e] for e in best if e not in chosen) - min(scores[e] for e in chosen))
                if 0 < margin < TIE:
                    found[layer, len(found)] = ([*chosen], margin)
        return found

    def follow(self, tokens: np.ndarray, captured: np.ndarray, boundaries: list[int]) -> tuple[np.ndarray, Choices]:
        """The states nearest to the captured ones among those that differ by ties only, and those ties.

        Row by row, since a row depends on those before it only.
        """
        chosen: Choices = {}
        states = self.states(tokens, chosen)
        for row, (column, boundary) in itertools.product(range(len(tokens)), enumerate(boundaries)):
            now = cosine(states[boundary, row], captured[column, row])
            if now >= AGREE:
                continue
            target, depth = captured[column, row], 2 if now < MATCH else 1
            chosen = self.repair(tokens[: row + 1], target, boundary, chosen, depth) or chosen
            states = self.states(tokens, chosen)
        return states, chosen

    def repair(
        self, tokens: np.ndarray, target: np.ndarray, boundary: int, chosen: Choices, depth: int
    ) -> Choices | None:
        """`chosen` and up to `depth` ties of the last row, such that it agrees with `target`; None if there are none.

        A tie further up moves the scores further down, so these are looked at anew.
        """
        row = len(tokens) - 1
        self.states(tokens, chosen)
        trials = [chosen | {(layer, row): choice} for (layer, _), choice in self.ties(row, boundary, chosen).items()]
        for trial in trials:
            if cosine(self.states(tokens, trial)[boundary, row], target) >= AGREE:
                return trial
        if depth > 1:
            for trial in trials:
                if found := self.repair(tokens, target, boundary, trial, depth - 1):
                    return found
        return None


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def main(model: str, captured_path: str, out_path: str) -> None:
    reference = Reference(model)
    captured = np.load(captured_path)
    boundaries = captured["boundaries"].tolist()
    out: dict[str, Any] = {}
    for rid in (name.removesuffix(".tokens") for name in captured.files if name.endswith(".tokens")):
        states, ties = reference.follow(captured[f"{rid}.tokens"], captured[f"{rid}.states"], boundaries)
        out[rid] = states
        out[f"{rid}.ties"] = np.array([(*key, margin) for key, (_, margin) in ties.items()], np.float64).reshape(-1, 3)
    np.savez(out_path, **out)


if __name__ == "__main__":
    main(*sys.argv[1:])
