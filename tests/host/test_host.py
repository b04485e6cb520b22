"""Host memory and load against the kernel's own figures, and GPUs through a child that may never hang us."""

import os
from pathlib import Path

import psutil
import pytest

from kimi_agent.host.gpu import NO_DRIVER, GpuReader
from kimi_agent.host.memory import HostSampler
from kimi_agent.model.events import GpuSample

HAS_DRIVER = Path("/dev/nvidiactl").exists()


def test_memory_is_what_the_kernel_says() -> None:
    sample = HostSampler().sample()
    real = psutil.virtual_memory()
    assert sample.memory_total == real.total
    assert abs(sample.memory_used - (real.total - real.available)) < real.total * 0.05
    assert sample.load >= 0


def test_cpu_is_a_share_of_all_cores_since_the_last_sample() -> None:
    sampler = HostSampler()
    assert sampler.sample().cpu is None
    before = sum(os.times()[:2])
    while sum(os.times()[:2]) - before < 0.3:
        pass
    cpu = sampler.sample().cpu
    assert cpu is not None
    assert 0 < cpu <= 100


def test_gpu_values_are_passed_on() -> None:
    gpu = GpuSample(0, "H200", 1, 2, 3, 4.0, 5.0, 6, 7, 0)
    assert HostSampler().sample([gpu]).gpus == (gpu,)
    assert HostSampler().sample(no_gpu="why").no_gpu == "why"


@pytest.mark.skipif(HAS_DRIVER, reason="this host has an NVIDIA driver")
async def test_a_host_without_a_driver_says_so_and_is_left_in_peace() -> None:
    reader = GpuReader()
    try:
        assert await reader.sample() == ((), NO_DRIVER)
        children = psutil.Process().children(recursive=True)
        assert await reader.sample() == ((), NO_DRIVER)
        assert psutil.Process().children(recursive=True) == children
    finally:
        await reader.close()


@pytest.mark.skipif(not HAS_DRIVER, reason="this host has no NVIDIA driver")
async def test_every_gpu_is_read() -> None:
    reader = GpuReader()
    try:
        gpus, why = await reader.sample()
    finally:
        await reader.close()
    assert why is None
    assert [gpu.index for gpu in gpus] == list(range(len(gpus)))
    assert all(gpu.memory_total and gpu.name for gpu in gpus)


async def test_a_late_answer_costs_its_deadline_and_no_more() -> None:
    reader = GpuReader(deadline=0.0)
    late = "NVML did not answer in 0 s" if Path("/dev/nvidiactl").exists() else NO_DRIVER
    assert await reader.sample() == ((), late)
    await reader.close()
    assert not [child for child in psutil.Process().children() if "kimi_agent.host.gpu" in " ".join(child.cmdline())]
