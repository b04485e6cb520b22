"""The safetensors container, written and read by tensor, without a tensor library."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from kimi_capture.format import DTYPES, Array, FormatError, write_durably

ALIGNMENT: Final = 8


def write_tensors(path: Path, tensors: Mapping[str, tuple[str, Array]], metadata: Mapping[str, str]) -> None:
    """Write a file, durably; `tensors` are (dtype as the format spells it, array) by name. Raises OSError."""
    whole = {name: (dtype, np.ascontiguousarray(array)) for name, (dtype, array) in tensors.items()}
    buffers = [memoryview(_header(whole, metadata))]
    buffers += [array.reshape(-1).view(np.uint8).data for _, array in whole.values() if array.size]
    write_durably(path, buffers)


def read_tensor(path: Path, name: str) -> Array:
    """One tensor of a file. Raises FormatError when the file does not have it whole, OSError when it cannot be read."""
    with path.open("rb") as file:
        try:
            length = int.from_bytes(file.read(8), "little")
            entry = json.loads(file.read(length))[name]
            first, last = entry["data_offsets"]
            file.seek(8 + length + first)
            array: Array = np.frombuffer(file.read(last - first), DTYPES[entry["dtype"]])
            return array.reshape(entry["shape"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise FormatError(path, f"has no whole tensor {name}") from error


def _header(tensors: Mapping[str, tuple[str, Array]], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, (dtype, array) in tensors.items():
        end = offset + array.nbytes
        entries[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
