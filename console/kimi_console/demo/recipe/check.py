"""Fail unless this engine can import SGLang and everything that an agent needs beside it."""

from importlib import import_module
from typing import Final

NEEDED: Final = (
    "cpu_mla", "msgspec", "numpy", "orjson", "psutil", "py_spy", "pynvml", "safetensors", "sgl_kernel", "xxhash",
    "zstandard", "sglang.srt.server_args",
)  # fmt: skip

for name in NEEDED:
    import_module(name)
