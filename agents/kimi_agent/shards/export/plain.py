"""Formats that need no trainer: one safetensors or NumPy file a sample."""

import io
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kimi_agent.shards.export.base import PerSample
from kimi_agent.shards.export.container import write_tensors
from kimi_agent.shards.export.rows import ExportRows
from kimi_capture.format import PRE_NORM_RMS, Array, to_float32, write_durably


class Safetensors(PerSample):
    """`NNNNNNNN.safetensors`: the dump's own names and dtypes, a sample each."""

    name: ClassVar[str] = "safetensors"
    consumer: ClassVar[str] = "any reader of safetensors"
    suffix: ClassVar[str] = ".safetensors"

    def write(self, rows: ExportRows, path: Path, dtype: str) -> None:
        tensors: dict[str, tuple[str, Array]] = {
            "input_ids": ("I64", rows.input_ids),
            "loss_mask": ("I64", rows.loss_mask.astype(np.int64)),
            "aux_hidden_states": (dtype, rows.aux),
            "last_hidden_state": (dtype, rows.last),
        }
        if rows.rms is not None:
            tensors[PRE_NORM_RMS] = ("F32", rows.rms)
        write_tensors(path, tensors, {"rid": rows.rid})


class Numpy(PerSample):
    """`NNNNNNNN.npz`; NumPy has no bf16, so that states are float32, which holds every bf16 value exactly."""

    name: ClassVar[str] = "numpy"
    consumer: ClassVar[str] = "NumPy; bf16 states widened to float32, exactly"
    suffix: ClassVar[str] = ".npz"

    def write(self, rows: ExportRows, path: Path, dtype: str) -> None:
        states = [to_float32(array) if dtype == "BF16" else array for array in (rows.aux, rows.last)]
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {
            "rid": np.array(rows.rid),
            "input_ids": rows.input_ids,
            "loss_mask": rows.loss_mask,
            "aux_hidden_states": states[0],
            "last_hidden_state": states[1],
        }
        if rows.rms is not None:
            arrays[PRE_NORM_RMS] = rows.rms
        np.savez(buffer, **arrays)
        write_durably(path, [buffer.getbuffer()])
