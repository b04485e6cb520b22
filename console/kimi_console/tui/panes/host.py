"""GPUs, or the host's memory where there are none."""

from kimi_agent.model.events import GpuSample, HostSampled
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Column, Line, Role, Span, fit, table
from kimi_console.tui.panes.base import Drawing, PaneSpec
from kimi_console.tui.view import View


def _depends(view: View) -> tuple[object, ...]:
    return (view.state.host, view.stale(view.state.host_time), view.lost)


def draw(view: View, width: int, height: int) -> Drawing:
    """A row a GPU; without GPUs memory and load, and why there are no GPUs."""
    host = view.state.host
    if host is None:
        where = "in this recording" if view.replay else "yet"
        return Drawing([], [[(f" –  no sample of the host {where}", "dim")]])
    age = view.stale(view.state.host_time)
    title: list[Span] = [(age, "stale")] if age else []
    base: Role = "stale" if age else "plain"
    lines: list[Line] = []
    if host.gpus:
        lines = _gpus(host, base, width) if len(host.gpus) + 2 <= height else _all_gpus(host, base, width)
    lines += _memory(host, base, width)
    if not host.gpus and host.no_gpu:
        lines.append([(fit(f" no GPUs: {host.no_gpu}", width), "dim")])
    return Drawing(title, lines[:height])


def _memory(host: HostSampled, base: Role, width: int) -> list[Line]:
    full, empty = fmt.bar(host.memory_used, host.memory_total, 10)
    low = host.memory_used > 0.95 * host.memory_total
    line: Line = [
        (" host ", "dim"), (full, "warn" if low else base), (empty, "rule"),
        (f" {fmt.size(host.memory_used):>8}", "warn" if low else base), (f" of {fmt.size(host.memory_total)}", "dim"),
    ]  # fmt: skip
    load = f"  cpu {fmt.percent(host.cpu):>5}  load {host.load:.1f}"
    taken = sum(len(text) for text, _ in line)
    return [[*line, (load, base)]] if taken + len(load) <= width else [line, [(f" {load.strip()}", base)]]


def _all_gpus(host: HostSampled, base: Role, width: int) -> list[Line]:
    """The GPUs together, where there is no room for a row each."""
    gpus = host.gpus
    used, total = (sum(getattr(gpu, name) or 0 for gpu in gpus) for name in ("memory_used", "memory_total"))
    watts, limit = sum(gpu.power or 0 for gpu in gpus), sum(gpu.power_limit or 0 for gpu in gpus)
    busy = [gpu.utilisation for gpu in gpus if gpu.utilisation is not None]
    spread = fmt.DASH if not busy else percent_range(min(busy), max(busy))
    errors = sum(gpu.ecc_errors or 0 for gpu in gpus)
    line: Line = [(fit(f" {len(gpus)} × {gpus[0].name}", width // 3), "dim"), (f"  {fmt.size(used)}", base)]
    line += [(f" of {fmt.size(total)}", "dim")]
    rest: Line = [(" util ", "dim"), (spread, base), ("  power ", "dim"), (f"{watts:,.0f}", base),
                  (f" of {limit:,.0f} W", "dim")]  # fmt: skip
    if errors:
        rest.append((f"  ecc {errors}", "bad"))
    return [line, rest]


def percent_range(low: int, high: int) -> str:
    """`3 %`, or `0-98 %`."""
    return fmt.percent(low) if low == high else f"{low}-{high} %"


def _gpus(host: HostSampled, base: Role, width: int) -> list[Line]:
    columns = [
        Column("gpu", 3), Column("memory", 8), Column("of", 8, drop=3), Column("util", 5), Column("power", 5),
        Column("of", 5, drop=2), Column("temp", 5, drop=1), Column("ecc", 3, drop=4),
    ]  # fmt: skip
    rows = [_gpu(gpu, base) for gpu in host.gpus]
    return table(columns, rows, width, 1)


def _gpu(gpu: GpuSample, base: Role) -> list[Span]:
    hot = gpu.temperature is not None and gpu.temperature >= 85
    return [
        (str(gpu.index), "dim"), (fmt.size(gpu.memory_used), base), (fmt.size(gpu.memory_total), "dim"),
        (fmt.percent(gpu.utilisation), base), (_watts(gpu.power), base), (_watts(gpu.power_limit), "dim"),
        (fmt.DASH if gpu.temperature is None else f"{gpu.temperature} °C", "warn" if hot else "dim"),
        (fmt.count(gpu.ecc_errors), "bad" if gpu.ecc_errors else "dim"),
    ]  # fmt: skip


def _watts(value: float | None) -> str:
    return fmt.DASH if value is None else f"{value:.0f} W"


HOST = PaneSpec(
    "host", 5, "Host", _depends, draw,
    (
        ("memory of", "GPU memory used and present, by NVML"),
        ("power of", "watts drawn and allowed; an idle or waiting GPU draws a fifth of its limit"),
        ("ecc", "uncorrected memory errors since the driver started; should be 0"),
        ("host", "memory of the machine that is not available to programs, and the 1-minute load average"),
    ),
)  # fmt: skip
