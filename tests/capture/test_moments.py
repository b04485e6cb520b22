"""The moments that the GPU computes are those of the host; faulty rows show in what is summed up from them."""

import pytest

from .conftest import by_engine


@pytest.mark.engine
def test_the_gpus_kernel_agrees_with_the_host() -> None:
    result = by_engine("moments.py", TRITON_INTERPRET="1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[(0, 0, 1), (2, 0, 1), (0, 0, 1), (0, 1, 0)]"
