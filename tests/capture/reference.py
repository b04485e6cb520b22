"""Run by the engine's Python: Hugging Face's hidden states for the tokens of captured rows, in float32.

reference.py MODEL TOKENS.npz OUT.npz, where TOKENS holds token ids [rows] by request id, and OUT gets by request id
[layers + 1, rows, hidden]: boundary b at index b, the last one after the final norm.
"""

import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main(model_path: str, tokens_path: str, out_path: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="eager").eval()
    out = {}
    for rid, tokens in np.load(tokens_path).items():
        with torch.no_grad():
            output = model.model(torch.tensor(tokens)[None], output_hidden_states=True, use_cache=False)
        out[rid] = torch.stack([layer[0] for layer in output.hidden_states]).numpy()
    np.savez(out_path, allow_pickle=False, **out)


if __name__ == "__main__":
    main(*sys.argv[1:])
