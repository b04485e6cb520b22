"""Throughput: tokens per second beside their own recent median, the queue, the KV cache."""

from kimi_agent.model.events import ThroughputSampled
from kimi_agent.model.state import RunState
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Line, Role, Span, paragraphs
from kimi_console.tui.panes.base import Drawing, PaneSpec
from kimi_console.tui.view import View

OLD_HEARTBEAT = 10.0


def _depends(view: View) -> tuple[object, ...]:
    run = view.run
    if run is None:
        return (None,)
    return (run.throughput, run.ready_time, run.exited, view.stale(run.throughput_time), view.lost)


def draw(view: View, width: int, height: int) -> Drawing:
    """Rates, queue and cache, then a line of blocks for each rate; without values the reason."""
    run = view.run
    if run is None:
        return Drawing([], [[(" –  nothing runs", "dim")]])
    sample = run.throughput
    if sample is None:
        why = _no_sample(view)
        return Drawing([], [_line("prefill", None, None, "plain"), _line("decode", None, None, "plain"),
                            *paragraphs(why, "dim", width)])  # fmt: skip
    age = view.stale(run.throughput_time)
    base: Role = "stale" if age or not run.alive else "bright"
    lines = [
        _line("prefill", sample.prefill_rate, fmt.median(run.prefill_history), base),
        _line("decode", sample.decode_rate, fmt.median(run.decode_history), base),
        _queue(sample, base), _cache(sample, base),
    ]  # fmt: skip
    lines += _why(sample, width)
    lines += _charts(run, width)[: max(0, height - len(lines))]
    title: list[Span] = [(age, "stale")] if age else _heartbeat(sample)
    return Drawing(title, lines[:height])


def _no_sample(view: View) -> str:
    if view.replay:
        return "this recording holds no throughput"
    if view.run is not None and view.run.ready_time is None:
        return "the server answers no requests before it is ready"
    return "the engine's counters have not been read yet"


def _line(name: str, value: float | None, middle: float | None, role: Role) -> Line:
    line: Line = [(f" {name:<8}", "dim"), (f"{fmt.rate(value):>7}", "dim" if value is None else role)]
    line.append((" tok/s" if value is not None else "      ", "dim"))
    if middle is not None:
        line.append((f"   median {fmt.rate(middle):>6}", "dim"))
    return line


def _queue(sample: ThroughputSampled, role: Role) -> Line:
    waiting: Role = "warn" if sample.waiting and role != "stale" else role
    return [
        (" queue   ", "dim"), (f"{fmt.count(sample.running):>7}", role), (" running", "dim"),
        (f"{fmt.count(sample.waiting):>8}", waiting), (" waiting", "dim"),
    ]  # fmt: skip


def _cache(sample: ThroughputSampled, role: Role) -> Line:
    used, capacity = sample.tokens_used, sample.token_capacity
    if used is None or not capacity:
        return [(" KV      ", "dim"), (f"{fmt.DASH:>7}", "dim"), (" not reported", "dim")]
    return [
        (" KV      ", "dim"), (f"{fmt.share(used, capacity):>7}", role),
        (f" {fmt.short(used)} of {fmt.short(capacity)} tokens", "dim"),
    ]  # fmt: skip


def _why(sample: ThroughputSampled, width: int) -> list[Line]:
    if sample.source == "loads":
        return []
    if sample.source == "log":
        return [[(" from the log's batch lines", "dim")]]
    return paragraphs(f"–  {sample.source}", "dim", width)


def _heartbeat(sample: ThroughputSampled) -> list[Span]:
    if sample.engine_age is None:
        return []
    old = sample.engine_age > OLD_HEARTBEAT
    return [(f"engine heartbeat {fmt.age(sample.engine_age)}", "warn" if old else "dim")]


def _charts(run: RunState, width: int) -> list[Line]:
    room = max(8, width - 11)
    lines: list[Line] = []
    for name, history in (("decode", run.decode_history), ("prefill", run.prefill_history)):
        lines.append([(f" {name:<8} ", "dim"), (fmt.sparkline(history, room), "move")])
    return lines


THROUGHPUT = PaneSpec(
    "throughput", 4, "Throughput", _depends, draw,
    (
        ("prefill decode", "tokens per second between two polls of the engine's own counters; – where one is missing"),
        ("median", "of the last 240 samples above zero: what this server does when it works"),
        ("queue", "requests running and waiting in the scheduler"),
        ("KV", "tokens held in the KV cache, of those it has room for"),
        ("engine heartbeat", "how long ago the scheduler itself published its load; it stands still in a hang"),
        ("blocks", "each row against its own maximum, oldest at the left; a gap is a gap"),
    ),
)  # fmt: skip
