"""A model's weights on disk, tensor by tensor and block by block: no model code runs, no tensor is read whole."""

import json
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kimi_agent.errors import UsageError
from kimi_agent.text import clean
from kimi_capture.format import Array, to_float32

FLOATS: Final[dict[str, np.dtype[Any]]] = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
}
BLOCK_BYTES: Final = 64 << 20
"""Size of the float32 blocks in which a matrix is read."""
MAX_HEADER: Final = 100_000_000
FINAL_NORM: Final = re.compile(r"(?:^|\.)norm\.weight$")
HEAD: Final = re.compile(r"(?:^|\.)lm_head\.weight$")
EMBEDDING: Final = re.compile(r"(?:^|\.)embed_tokens\.weight$")
NOT_TEXT: Final = re.compile(r"(?:^|\.)layers\.\d|vision|visual|audio|mtp|projector")
"""Names of tensors that belong to a layer or to another tower than the language model."""
ONE_PLUS: Final = ("gemma", "qwen3_next", "qwen3_5")
"""Model types, by how they begin, whose norms multiply by 1 + weight."""


class NoWeight(Exception):  # noqa: N818 - an answer, not a failure
    """A weight that a check needs cannot be had; says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class Weights:
    """The safetensors files of a model's directory."""

    def __init__(self, directory: Path) -> None:
        """Reads the files' headers and config.json.

        Raises:
            UsageError: the directory holds no model in safetensors, or a file of it is damaged.
        """
        files = sorted(directory.glob("*.safetensors"))
        if not files or not (directory / "config.json").is_file():
            raise UsageError(
                f"{directory} holds no model: config.json and *.safetensors are needed",
                "Give the directory that the server loaded",
            )
        self.directory = directory
        try:
            self.config: dict[str, Any] = json.loads((directory / "config.json").read_bytes())
            self.entries = {name: entry for file in files for name, entry in _entries(file)}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(clean(f"the model in {directory} cannot be read: {error}"), "Check its files") from error

    @property
    def text_config(self) -> dict[str, Any]:
        """The language model's part of config.json."""
        text = self.config.get("text_config")
        return text if isinstance(text, dict) else self.config

    @property
    def bytes(self) -> int:
        """Size of all tensors."""
        return sum(entry.end - entry.start for entry in self.entries.values())

    @property
    def norm_offset(self) -> float:
        """1 where the norms multiply by 1 + weight, else 0."""
        return 1.0 if str(self.text_config.get("model_type", "")).startswith(ONE_PLUS) else 0.0

    def final_norm(self) -> npt.NDArray[np.float32]:
        """[hidden] what the final norm multiplies by: its weight, with the offset in it. Raises NoWeight."""
        weight = next(self.blocks(self._name(FINAL_NORM, "the final norm")))[1]
        return weight + np.float32(self.norm_offset)

    def head(self) -> str:
        """The name of the matrix [vocabulary, hidden] that makes logits. Raises NoWeight."""
        if self.text_config.get("tie_word_embeddings") or self.config.get("tie_word_embeddings"):
            return self._name(EMBEDDING, "the embedding, which is the head here,")
        return self._name(HEAD, "lm_head")

    def blocks(self, name: str) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """(first row, [rows, …] float32) of a tensor, block after block. Raises NoWeight when it is quantised."""
        entry = self.entries[name]
        if entry.dtype not in FLOATS:
            raise NoWeight(f"{name} is stored as {entry.dtype}")
        with entry.file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            dtype = FLOATS[entry.dtype]
            width = int(np.prod(entry.shape[1:], dtype=np.int64))
            step = max(1, BLOCK_BYTES // max(4 * width, 1))
            for first in range(0, entry.shape[0], step):
                last = min(first + step, entry.shape[0])
                start = entry.start + first * width * dtype.itemsize
                block: Array = np.frombuffer(data[start : entry.start + last * width * dtype.itemsize], dtype)
                yield first, to_float32(block).reshape(last - first, *entry.shape[1:])

    def _name(self, pattern: re.Pattern[str], what: str) -> str:
        found = [name for name in self.entries if pattern.search(name) and not NOT_TEXT.search(name)]
        if len(found) != 1:
            raise NoWeight(f"{what} is not among the weights" if not found else f"{what} is there {len(found)} times")
        return found[0]


def _entries(file: Path) -> Iterator[tuple[str, Entry]]:
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= MAX_HEADER:
            raise ValueError(f"{file.name} has no safetensors header")
        header = json.loads(stream.read(length))
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            yield name, Entry(file, entry["dtype"], tuple(entry["shape"]), 8 + length + start, 8 + length + end)
