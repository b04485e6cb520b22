"""The moments that the GPU computes are those of the host; faulty rows show in what is summed up from them."""

import os
import subprocess
from pathlib import Path

import pytest

from .conftest import PYTHON

AGENTS = Path(__file__).parents[2] / "agents"


@pytest.mark.engine
def test_the_gpus_kernel_agrees_with_the_host() -> None:
    result = subprocess.run(
        [PYTHON, Path(__file__).with_name("moments.py")], check=False, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(AGENTS), "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[(0, 0, 1), (2, 0, 1), (0, 0, 1), (0, 1, 0)]"
