"""`HostSampler`: the host's memory and load, beside whatever the GPU reader has."""

from collections.abc import Sequence

from kimi_agent.host.procfs import read_text
from kimi_agent.model.events import GpuSample, HostSampled


class HostSampler:
    """Samples host memory, load and CPU from /proc."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def sample(self, gpus: Sequence[GpuSample] = (), no_gpu: str | None = None) -> HostSampled:
        """One sample; `gpus` and `no_gpu` are passed on. CPU is `None` the first time."""
        total, used = memory()
        load = (read_text("/proc/loadavg") or "0").split()[0]
        return HostSampled(total, used, float(load), self._cpu(), tuple(gpus), no_gpu)

    def _cpu(self) -> float | None:
        """Percent of all cores busy since the last sample."""
        fields = (read_text("/proc/stat") or "").partition("\n")[0].split()[1:9]
        if len(fields) < 5:
            return None
        ticks = [int(field) for field in fields]
        now = (sum(ticks), ticks[3] + ticks[4])
        before, self._before = self._before, now
        if before is None or now[0] <= before[0]:
            return None
        total, idle = now[0] - before[0], now[1] - before[1]
        return round(min(max(100.0 * (total - idle) / total, 0.0), 100.0), 1)


def memory() -> tuple[int, int]:
    """Bytes of memory that the host has, and that are used and could not be given back."""
    values = {}
    for line in (read_text("/proc/meminfo") or "").splitlines():
        key, _, rest = line.partition(":")
        if key in ("MemTotal", "MemAvailable"):
            values[key] = int(rest.split()[0]) * 1024
    total = values.get("MemTotal", 0)
    return total, total - values.get("MemAvailable", total)
