"""Fail unless this engine has SGLang and everything that an agent needs beside it."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

MODULES: Final = (
    "cpu_mla", "msgspec", "numpy", "orjson", "psutil", "pynvml", "safetensors", "sgl_kernel", "xxhash", "zstandard",
    "sglang.srt.server_args",
)  # fmt: skip

for name in MODULES:
    import_module(name)
subprocess.run([str(Path(sys.executable).with_name("py-spy")), "--version"], check=True)
