"""GPUs by NVML, read in a child process: an NVML call can block for minutes when a GPU has fallen off the bus.

`python -m kimi_agent.host.gpu` is that child. It prints one JSON line for each line it is given.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kimi_agent.model.events import GpuSample

NO_DRIVER: Final = "no NVIDIA driver on this host"
DEADLINE: Final = 5.0
RETRY: Final = 60.0
"""Seconds between attempts while NVML cannot be used."""
_MAX_ANSWER: Final = 1024 * 1024


class GpuReader:
    """Asks the child for all GPUs, each time within a deadline. Use from one task; `close` ends the child."""

    def __init__(self, deadline: float = DEADLINE, retry: float = RETRY) -> None:
        self._deadline = deadline
        self._retry = retry
        self._child: asyncio.subprocess.Process | None = None
        self._not_before = float("-inf")
        self._why: str | None = None

    async def sample(self) -> tuple[tuple[GpuSample, ...], str | None]:
        """All GPUs, or none and the reason in words."""
        if time.monotonic() < self._not_before:
            return (), self._why
        try:
            answer = await asyncio.wait_for(self._ask(), self._deadline)
        except asyncio.TimeoutError:  # another class than TimeoutError before Python 3.11
            seen = Path("/dev/nvidiactl").exists()  # a crowded host without a GPU is late too
            return await self._give_up(f"NVML did not answer in {self._deadline:g} s" if seen else NO_DRIVER)
        except (OSError, ValueError):
            return await self._give_up("the NVML reader ended without an answer")
        if "error" in answer:
            return await self._give_up(str(answer["error"]))
        self._why = None
        return tuple(_sample(gpu) for gpu in answer["gpus"]), None

    async def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None:
            child.kill()
        if child.stdin is not None:
            child.stdin.close()
        # A process in an uninterruptible NVML call ends only when the driver lets it: do not wait for that.
        try:
            await asyncio.wait_for(child.wait(), 1.0)
        except asyncio.TimeoutError:
            return

    async def _give_up(self, why: str) -> tuple[tuple[GpuSample, ...], str]:
        self._why, self._not_before = why, time.monotonic() + self._retry
        await self.close()
        return (), why

    async def _ask(self) -> dict[str, Any]:
        if self._child is None or self._child.returncode is not None:
            root = str(Path(__file__).resolve().parents[2])
            path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "kimi_agent.host.gpu", env={**os.environ, "PYTHONPATH": path}, limit=_MAX_ANSWER,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        child = self._child
        if child.stdin is None or child.stdout is None:
            raise OSError("no pipe to the NVML reader")
        child.stdin.write(b"\n")
        await child.stdin.drain()
        answer = json.loads(await child.stdout.readline())
        if not isinstance(answer, dict):
            raise ValueError("not an object")
        return answer


async def sample_once() -> tuple[tuple[GpuSample, ...], str | None]:
    """All GPUs now, or why there are none, for who looks once."""
    reader = GpuReader()
    try:
        return await reader.sample()
    finally:
        await reader.close()


def _sample(gpu: dict[str, Any]) -> GpuSample:
    processes = tuple((int(pid), int(used)) for pid, used in gpu.pop("processes"))
    return GpuSample(**gpu, processes=processes)


def read_all() -> dict[str, Any]:
    """All GPUs as plain values, or why there are none. Only the child calls it: any call in here may block."""
    try:
        import pynvml  # noqa: PLC0415 - absent on hosts without the package, which is said in words
    except ImportError:
        missing = "the package nvidia-ml-py is not installed"
        return {"error": missing if Path("/dev/nvidiactl").exists() else NO_DRIVER}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {"error": NO_DRIVER}
    try:
        return {"gpus": [_read(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]}
    except pynvml.NVMLError as error:
        return {"error": f"NVML: {error}"}


def _read(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(call: Callable[[], Any]) -> Any:
        """A value this GPU or driver does not have is `None`."""
        try:
            return call()
        except nvml.NVMLError:
            return None

    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    rates = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    limit = ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    name = ask(lambda: nvml.nvmlDeviceGetName(handle)) or f"GPU {index}"
    ecc = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    return {
        "index": index,
        "name": name.decode() if isinstance(name, bytes) else name,
        "memory_used": memory.used if memory else None,
        "memory_total": memory.total if memory else None,
        "utilisation": rates.gpu if rates else None,
        "power": power / 1000 if power is not None else None,
        "power_limit": limit / 1000 if limit is not None else None,
        "temperature": ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "clock": ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "ecc_errors": ask(lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, *ecc)),
        "processes": [
            [process.pid, process.usedGpuMemory or 0]
            for process in ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()
        ],
    }


def main() -> None:
    """Answer each line of standard input with one line of JSON; end with the input."""
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(read_all()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
