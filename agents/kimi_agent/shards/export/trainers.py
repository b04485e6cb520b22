"""The formats of trainers that read one file a sample: SpecForge, ModelOpt, speculators."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from kimi_agent.errors import UsageError
from kimi_agent.shards.export.base import Entry, Facts, PerSample, Piece, block_outputs
from kimi_agent.shards.export.container import read_tensor, write_tensors
from kimi_agent.shards.export.rows import ExportRows
from kimi_capture.format import Manifest, write_durably

SPECFORGE_GROUP: Final = 2000
"""Files of one of SpecForge's `rows_*` directories."""
EAGLE3_LAYERS: Final = 3
ARROW_ROWS: Final = 1000
"""Rows of one record batch."""


class SpecForge(PerSample):
    """`rows_A-B/data_N.ckpt`: torch files for SpecForge's offline EAGLE-3 training."""

    name: ClassVar[str] = "specforge"
    consumer: ClassVar[str] = "SpecForge, offline EAGLE-3"
    packages: ClassVar[tuple[str, ...]] = ("torch",)
    suffix: ClassVar[str] = ".ckpt"
    convention: ClassVar[str] = "0-based block outputs"

    def layer_ids(self, boundaries: tuple[int, ...]) -> list[int]:
        return block_outputs("SpecForge", boundaries, 0)

    def refusal(self, manifest: Manifest, boundaries: tuple[int, ...]) -> UsageError | None:
        if len(boundaries) == EAGLE3_LAYERS:
            return None
        return UsageError(
            f"SpecForge's EAGLE-3 takes exactly 3 layers, and {len(boundaries)} would be exported: "
            f"boundaries {' '.join(map(str, boundaries))}",
            "Choose three with --layers." if len(boundaries) > EAGLE3_LAYERS else "Capture three.",
        )

    def place(self, number: int) -> str:
        first = number - number % SPECFORGE_GROUP
        return f"rows_{first}-{first + SPECFORGE_GROUP}/data_{number}{self.suffix}"

    def write(self, rows: ExportRows, path: Path, dtype: str) -> None:
        save(path, {
            "input_ids": rows.input_ids,
            "loss_mask": rows.loss_mask.astype(np.int64),
            "aux_hidden_state": rows.aux.reshape(1, len(rows.aux), -1),
            "hidden_state": rows.last[None],
        })  # fmt: skip


class ModelOpt(PerSample):
    """`NNNNNNNN.pt`: torch files for ModelOpt's offline dataset, which say that their last state is post-norm."""

    name: ClassVar[str] = "modelopt"
    consumer: ClassVar[str] = "NVIDIA ModelOpt, OfflineSupervisedDataset"
    packages: ClassVar[tuple[str, ...]] = ("torch",)
    suffix: ClassVar[str] = ".pt"
    convention: ClassVar[str] = "0-based block outputs"

    def layer_ids(self, boundaries: tuple[int, ...]) -> list[int]:
        return block_outputs("ModelOpt", boundaries, 0)

    def write(self, rows: ExportRows, path: Path, dtype: str) -> None:
        save(path, {
            "input_ids": rows.input_ids,
            "loss_mask": rows.loss_mask.astype(np.int64),
            "aux_hidden_states": rows.aux.reshape(len(rows.aux), -1),
            "hidden_states": rows.last,
            "hidden_states_prenorm": False,
            "conversation_id": rows.rid,
        })  # fmt: skip


class Speculators(PerSample):
    """An Arrow dataset and `hidden_states/hs_N.safetensors`, whose last layer is before the final norm."""

    name: ClassVar[str] = "speculators"
    consumer: ClassVar[str] = "speculators, ArrowDataset"
    packages: ClassVar[tuple[str, ...]] = ("pyarrow",)
    suffix: ClassVar[str] = ".safetensors"
    pre_norm: ClassVar[bool] = True
    convention: ClassVar[str] = "vLLM boundaries; the last slot of each file is the state after the last block"

    def place(self, number: int) -> str:
        return f"hidden_states/hs_{number}{self.suffix}"

    def write(self, rows: ExportRows, path: Path, dtype: str) -> None:
        stacked = np.concatenate([rows.aux, rows.last[:, None]], axis=1)
        write_tensors(path, {"hidden_states": (dtype, stacked), "token_ids": ("I64", rows.input_ids)}, {})

    def finish(self, facts: Facts, pieces: Mapping[int, Piece]) -> tuple[str, ...]:
        features = {
            "input_ids": {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"},
            "loss_mask": {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"},
            "seq_len": {"dtype": "int64", "_type": "Value"},
        }
        name = "data-00000-of-00001.arrow"
        _write_arrow(facts.out / name, features, pieces)
        state: dict[str, Any] = {
            "_data_files": [{"filename": name}], "_fingerprint": f"{facts.manifest.dump}-{len(pieces)}",
            "_format_columns": None, "_format_kwargs": {}, "_format_type": "torch",
            "_output_all_columns": False, "_split": None,
        }  # fmt: skip
        info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
        for file, value in (("dataset_info.json", info), ("state.json", state)):
            temporary = facts.out / f".{file}.tmp"
            write_durably(temporary, [memoryview(json.dumps(value, indent=2).encode())])
            temporary.rename(facts.out / file)
        return name, "dataset_info.json", "state.json"


def save(path: Path, values: Mapping[str, Any]) -> None:
    """Write a dict with torch.save, durably; arrays become tensors, bf16 ones too."""
    import torch  # noqa: PLC0415 - only who exports to a torch format needs it

    from kimi_agent.shards.dataset import as_tensor  # noqa: PLC0415 - imports torch

    tensors = {name: as_tensor(value) if isinstance(value, np.ndarray) else value for name, value in values.items()}
    with path.open("wb") as file:
        torch.save(tensors, file)
        file.flush()
        os.fsync(file.fileno())


def _write_arrow(path: Path, features: Mapping[str, Any], pieces: Mapping[int, Piece]) -> None:
    """The rows of all pieces, by number, as the one file of a Hugging Face dataset; bounded memory."""
    import pyarrow  # noqa: PLC0415 - only this format needs it

    numbers = pyarrow.list_(pyarrow.int64())
    fields = [("input_ids", numbers), ("loss_mask", numbers), ("seq_len", pyarrow.int64())]
    told = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pyarrow.schema(fields, metadata=told)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        with pyarrow.ipc.new_stream(file, schema) as stream:
            for batch in _batches(path.parent, pieces):
                stream.write_batch(pyarrow.record_batch(batch, schema=schema))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def _batches(out: Path, pieces: Mapping[int, Piece]) -> Iterator[dict[str, list[Any]]]:
    for first in range(0, len(pieces), ARROW_ROWS):
        batch: dict[str, list[Any]] = {"input_ids": [], "loss_mask": [], "seq_len": []}
        for number in range(first, min(first + ARROW_ROWS, len(pieces))):
            piece = pieces[number]
            ids = read_tensor(out / piece.path, "token_ids")
            batch["input_ids"].append(ids)
            batch["loss_mask"].append(_mask(piece.entries[0], len(ids)))
            batch["seq_len"].append(len(ids))
        yield batch


def _mask(entry: Entry, tokens: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    mask = np.zeros(tokens, np.int64)
    for first, last in entry.mask:
        mask[first:last] = 1
    return mask
