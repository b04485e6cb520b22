"""What the plugin reads back from the engine it runs in: rank, model, boundaries, launch."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import xxhash

from kimi_capture import __version__
from kimi_capture.checks import warnings
from kimi_capture.format import Manifest, conventions

if TYPE_CHECKING:
    import torch

SECRET: Final = re.compile(r"--(?:[\w-]*(?:api-key|password|token|secret))$")
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "tokenizer_config.json", "vocab.json")
SIZES: Final = ("tp", "dp", "pp", "attn_tp", "attn_dp", "attn_cp", "ep")


@dataclass(frozen=True, slots=True)
class Facts:
    """What was hooked. `flag_offset` is what the model class added to the flag's layer ids to get boundaries."""

    rank: str
    writer: bool
    model_class: str
    boundaries: tuple[int, ...]
    flag_offset: int
    num_layers: int
    hidden_size: int
    dtype: str
    sglang: str
    model_path: str
    tokenizer_path: str
    parallel: dict[str, int]
    warnings: tuple[str, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        """The boundaries in the spelling of the launch's flag."""
        return tuple(boundary - self.flag_offset for boundary in self.boundaries)

    def row_bytes(self) -> int:
        """Bytes of one row in a shard: states, token id and position."""
        return (len(self.boundaries) + 1) * self.hidden_size * (4 if self.dtype == "float32" else 2) + 16

    def manifest(self, dump: str, run: str, created: float) -> Manifest:
        """The dump's manifest; reads the model's small files to fingerprint them."""
        model, tokenizer = Path(self.model_path), Path(self.tokenizer_path)
        weights = sorted([*model.glob("*.safetensors"), *model.glob("*.bin"), *model.glob("*.safetensors.index.json")])
        sizes = "\n".join(f"{path.name} {path.stat().st_size}" for path in weights)
        return Manifest(
            dump=dump, run=run, created=created, boundaries=self.boundaries,
            conventions=conventions(self.boundaries, self.flag_offset), dtype=self.dtype,
            hidden_size=self.hidden_size, num_layers=self.num_layers, last_hidden_norm="post",
            model={
                "path": self.model_path,
                "class": self.model_class,
                "config": _hash_files([model / "config.json"]),
                "weights": xxhash.xxh3_64_hexdigest(sizes.encode()) if weights else None,
            },
            tokenizer=_hash_files([tokenizer / name for name in TOKENIZER_FILES]),
            sglang=self.sglang, plugin=__version__, argv=launch_argv(), parallel=self.parallel,
        )  # fmt: skip


def read_facts(model: "torch.nn.Module") -> Facts:
    """Read the facts off a model whose capture was just configured. Raises ValueError when it captures nothing."""
    import sglang  # noqa: PLC0415 - only scheduler ranks have it
    from sglang.srt.runtime_context import get_parallel, get_server_args  # noqa: PLC0415

    inner = text_model(model)
    layers = getattr(inner, "layers_to_capture", None)
    if not layers:
        raise ValueError(f"{type(model).__name__} captures no layers: are the aux hidden state flags set?")
    boundaries = tuple(sorted(int(layer) for layer in layers))
    parallel, server = get_parallel(), get_server_args()
    ids = sorted(server.return_aux_hidden_state_layer_ids or boundaries)
    config: Any = getattr(inner, "config", None) or model.config
    config = getattr(config, "text_config", None) or config
    return Facts(
        rank=rank_tag(Path("/proc/self/cmdline").read_bytes().rstrip(b"\0 ").decode(errors="replace")),
        writer=parallel.attn_tp_rank == 0 and parallel.attn_cp_rank == 0,
        model_class=type(model).__name__,
        boundaries=boundaries,
        flag_offset=boundaries[0] - ids[0],
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        dtype=str(inner.embed_tokens.weight.dtype).removeprefix("torch."),
        sglang=sglang.__version__,
        model_path=server.model_path,
        tokenizer_path=server.tokenizer_path or server.model_path,
        parallel={name: int(getattr(parallel, f"{name}_size")) for name in SIZES},
        warnings=tuple(warnings()),
    )


def text_model(model: Any) -> Any:
    """The decoder of a model, without the head and without what wraps it for images."""
    return getattr(model, "language_model", model).model


def rank_tag(title: str) -> str:
    """`DP0 TP1` from a scheduler's process title `sglang::scheduler_DP0_TP1`; `TP0` when it names no rank."""
    ranks = re.findall(r"(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d+", title.removeprefix("sglang::scheduler"))
    return " ".join(ranks) or "TP0"


def launch_argv() -> tuple[str, ...]:
    """The command line of the process that launched this rank, without keys and passwords."""
    pid = os.getppid()
    argv = _argv(pid)
    while argv and argv[0].startswith("sglang::"):
        pid = int(re.search(r"^PPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1])  # type: ignore[index]
        argv = _argv(pid)
    return redact(argv)


def redact(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A command line with the values of secret options replaced by `***`."""
    clean: list[str] = []
    for argument in argv:
        option, equals, _ = argument.partition("=")
        if clean and "=" not in clean[-1] and SECRET.match(clean[-1]):
            clean.append("***")
        else:
            clean.append(f"{option}=***" if equals and SECRET.match(option) else argument)
    return tuple(clean)


def _argv(pid: int) -> tuple[str, ...]:
    return tuple(Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0"))


def _hash_files(paths: list[Path]) -> str | None:
    digest = xxhash.xxh3_64()
    present = [path for path in paths if path.is_file()]
    for path in present:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return str(digest.hexdigest()) if present else None
