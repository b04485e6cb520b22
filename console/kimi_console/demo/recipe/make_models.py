"""Make the demo's tiny models with random weights: `python make_models.py DIRECTORY`.

tiny-llama    LlamaForCausalLM, 8 layers
tiny-kimi     DeepseekV3ForCausalLM with Kimi-K2's settings: latent attention, 8 experts, 6 layers
tiny-kimi25   KimiK25ForConditionalGeneration, the class that serves Kimi-K2.5, text only, around
              tiny-kimi's very weights; Transformers cannot load it, so tiny-kimi is its reference

Every model has a hidden size of 128 and bfloat16 weights, and all share one byte-level BPE tokenizer that is
trained here. The same seed gives the same files; nothing is downloaded.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED: Final = 0
UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
"""The special tokens; they get the ids 0, 1 and 2."""
HIDDEN: Final = 128
SHAPE: Final[dict[str, Any]] = {
    "vocab_size": 512,
    "hidden_size": HIDDEN,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}
IMAGE_TOKEN: Final = 500
"""Stands for an image in Kimi-K2.5's prompts; the tokenizer's ids stay below it, so no text holds it."""

LATENT_ATTENTION: Final[dict[str, Any]] = {
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
}
EXPERTS: Final[dict[str, Any]] = {
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}
PUBLISHED: Final[dict[str, Any]] = {
    "rope_theta": 50000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 64.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
    "max_position_embeddings": 262144,
    "moe_layer_freq": 1,
    "ep_size": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "num_nextn_predict_layers": 0,
}
"""What Kimi's published configuration has, SGLang reads, and Transformers' class leaves out when it saves."""

VISION: Final[dict[str, Any]] = {
    "model_type": "kimi_k25",
    "patch_size": 14,
    "init_pos_emb_height": 8,
    "init_pos_emb_width": 8,
    "init_pos_emb_time": 4,
    "pos_emb_type": "divided_fixed",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "intermediate_size": 128,
    "vt_num_attention_heads": 2,
    "vt_num_hidden_layers": 1,
    "vt_hidden_size": 64,
    "vt_intermediate_size": 128,
    "merge_kernel_size": [2, 2],
    "video_attn_type": "spatial_temporal",
    "merge_type": "sd2_tpool",
    "mm_projector_type": "patchmerger",
    "mm_hidden_size": 64,
    "projector_hidden_act": "gelu",
    "projector_ln_eps": 1e-5,
    "text_hidden_size": HIDDEN,
}
"""The vision tower that the class asks for; `language_model_only` keeps it from being built."""

TEXT: Final = (
    "The server loads the weights of the model and then it waits for the first request.",
    "Every rank keeps a part of the layers, and all of them have to join before the port opens.",
    "A hidden state is what a block of the model hands to the next one for each token.",
    "When one rank is late, the others stand still, and nothing in the log says which one it is.",
    "She wrote the numbers down, closed the window and went home through the quiet streets.",
    "What is the difference between a thread and a process, and when should you use which?",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Please explain how a compiler turns the source of a program into something a machine can run.",
    "There are seven days in a week, twelve months in a year and a hundred years in a century.",
    "the quick brown fox jumps over the lazy dog and then runs back to where it came from",
    "Tell me about the weather in the mountains, the sea in winter and the trees in the spring.",
    "List three things that make a good tool: it is fast, it is honest and it stays out of the way.",
)
"""English from which the tokenizer learns its merges."""


def write_tokenizer(directory: Path) -> None:
    """Train the tokenizer and save it into `directory`."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=IMAGE_TOKEN, special_tokens=[UNKNOWN, BEGIN, END], initial_alphabet=alphabet, min_frequency=1
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=UNKNOWN, bos_token=BEGIN, eos_token=END)
    fast.save_pretrained(directory)


def write_llama(directory: Path) -> None:
    """Save tiny-llama."""
    config = LlamaConfig(**SHAPE, num_hidden_layers=8, num_key_value_heads=2, max_position_embeddings=4096)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


def write_kimi(directory: Path) -> None:
    """Save tiny-kimi, with the configuration that Kimi-K2 publishes."""
    config = DeepseekV3Config(
        **SHAPE,
        **LATENT_ATTENTION,
        **EXPERTS,
        num_hidden_layers=6,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        rope_theta=10000.0,
    )
    DeepseekV3ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    file = directory / "config.json"
    saved = json.loads(file.read_text(encoding="utf-8"))
    saved.pop("rope_parameters", None)
    write_json(file, saved | PUBLISHED)


def write_kimi25(directory: Path) -> None:
    """Save tiny-kimi25 around the weights of the tiny-kimi beside it."""
    kimi = directory.parent / "tiny-kimi"
    weights = load_file(kimi / "model.safetensors")
    wrapped = {f"language_model.{name}": tensor for name, tensor in weights.items()}
    save_file(wrapped, directory / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((kimi / "config.json").read_text(encoding="utf-8"))
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "torch_dtype": "bfloat16",
        "language_model_only": True,
        "media_placeholder_token_id": IMAGE_TOKEN,
        "pad_token_id": 0,
        "ignore_index": -100,
        "vision_config": VISION,
        "text_config": text | {"model_type": "kimi_k2"},
    }
    write_json(directory / "config.json", config)


def write_json(file: Path, value: dict[str, Any]) -> None:
    """Write `value` as readable JSON."""
    file.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main(directory: Path) -> None:
    """Make all models under `directory`; tiny-kimi25 needs tiny-kimi, so the order matters."""
    torch.manual_seed(SEED)
    for name, write in (("tiny-llama", write_llama), ("tiny-kimi", write_kimi), ("tiny-kimi25", write_kimi25)):
        out = directory / name
        out.mkdir(parents=True, exist_ok=True)
        write(out)
        write_tokenizer(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
