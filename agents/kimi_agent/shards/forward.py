"""Run as a child by a Python that has transformers: a model's own hidden states for given tokens.

`python -m kimi_agent.shards.forward MODEL TOKENS.npz OUT.npz MEMORY` where TOKENS.npz holds token ids [rows] by key.
OUT.npz gets by key [layers + 2, rows, hidden] float32: boundary b at index b for b < layers, then the state before
and the state after the final norm. The last line of stderr says why when it fails.
"""

import json
import re
import resource
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

SAME_AS: Final = {"kimi_k2": "deepseek_v3"}
"""Text models that are another one under a name of their own."""
WRAPPER: Final = {r"^language_model\.": ""}
"""What a multimodal wrapper puts before the names of its text model's weights."""


class CannotRunError(Exception):
    """The model cannot be run here; says why."""


def load(path: Path) -> Any:
    """The language model at `path`, in float32. Raises CannotRunError when it is not all there or not known."""
    import torch  # noqa: PLC0415 - only the child needs it
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM  # noqa: PLC0415

    whole = json.loads((path / "config.json").read_text())
    text = whole.get("text_config") or whole
    if text.get("quantization_config") or whole.get("quantization_config"):
        raise CannotRunError("its weights are quantised")
    kind = SAME_AS.get(text["model_type"], text["model_type"])
    if kind not in CONFIG_MAPPING:
        raise CannotRunError(f"transformers does not know {kind}")
    config = CONFIG_MAPPING[kind](**{key: value for key, value in text.items() if key != "model_type"})
    model, loading = AutoModelForCausalLM.from_pretrained(
        path, config=config, key_mapping=WRAPPER, dtype=torch.float32, attn_implementation="eager",
        output_loading_info=True,
    )  # fmt: skip
    if missing := loading["missing_keys"]:
        raise CannotRunError(f"{len(missing)} of its weights are not in the files, {min(missing)} the first")
    return model.eval()


def states(model: Any, tokens: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """[layers + 2, rows, hidden] float32 of the tokens [rows] of one sequence. Raises CannotRunError."""
    import torch  # noqa: PLC0415

    before: list[Any] = []
    norm = getattr(model.model, "norm", None)
    if norm is None:
        raise CannotRunError("its final norm was not found")
    handle = norm.register_forward_hook(lambda module, inputs, output: before.append(inputs[0][0]))
    try:
        with torch.no_grad():
            output = model.model(torch.tensor(tokens)[None], output_hidden_states=True, use_cache=False)
    finally:
        handle.remove()
    layers = [state[0] for state in output.hidden_states[:-1]]
    found: np.ndarray[Any, Any] = torch.stack([*layers, before[-1], output.hidden_states[-1][0]]).numpy()
    return found


def main(model_path: str, tokens_path: str, out_path: str, memory: str) -> None:
    """Compute and write the states; ends with 1 and a line on stderr when that cannot be done."""
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory), resource.getrlimit(resource.RLIMIT_DATA)[1]))
    try:
        model = load(Path(model_path))
        vocabulary = model.get_input_embeddings().num_embeddings
        found = {}
        with np.load(tokens_path) as file:
            for key, tokens in file.items():
                if tokens.min(initial=0) < 0 or tokens.max(initial=0) >= vocabulary:
                    raise CannotRunError(f"token {int(tokens.max())} is not in its vocabulary of {vocabulary}")
                found[key] = states(model, tokens)
        np.savez(out_path, allow_pickle=False, **found)
    except (CannotRunError, ImportError, MemoryError, OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        words = re.sub(r"\s+", " ", str(error)) or type(error).__name__
        sys.exit(words[:300])


if __name__ == "__main__":
    main(*sys.argv[1:])
