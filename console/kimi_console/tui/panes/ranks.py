"""Ranks: every scheduler process with its phase, processor, memory and GPU."""

from kimi_agent.model.events import GpuSample, RankSample
from kimi_agent.model.phases import ORDER, READY
from kimi_agent.model.state import RankState, RunState
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Column, Role, Span, table
from kimi_console.tui.panes.base import Drawing, PaneSpec
from kimi_console.tui.view import View, front, run_end

STATES: dict[str, tuple[str, Role]] = {
    "R": ("R", "plain"),
    "S": ("S", "dim"),
    "D": ("D", "warn"),
    "T": ("T", "bad"),
    "Z": ("Z", "bad"),
    "X": ("X", "bad"),
}


def _depends(view: View) -> tuple[object, ...]:
    run = view.run
    if run is None:
        return (None,)
    clock = int(view.now) if run.alive else 0
    return (run.ranks, run.samples, view.state.host, run.exited, clock, view.lost)


def draw(view: View, width: int, height: int) -> Drawing:
    """A table, a row a rank; its GPU's values beside it where there is one."""
    run = view.run
    if run is None:
        return Drawing([], [[(" no ranks: nothing runs", "dim")]])
    age = view.stale(run.samples_time)
    gpus = _gpus(view)
    samples = {sample.rank: sample for sample in run.samples}
    name = max([len(rank.rank) for rank in run.ranks] or [4])
    columns = [
        Column("rank", max(4, name), "left"), Column("pid", 7, drop=2), Column("state", 5, "left"),
        Column("phase", 12, "left"), Column("for", 7), Column("cpu", 6, drop=5), Column("rss", 8, drop=6),
    ]  # fmt: skip
    if gpus:
        columns[-1] = Column("GiB", 5, drop=6)
        columns[6:6] = [Column("gpu", 3, drop=4), Column("util", 5, drop=8), Column("power", 5, drop=7)]
    base: Role = "stale" if age or not run.alive else "plain"
    rows = [_row(view, run, rank, samples.get(rank.rank), base) for rank in run.ranks]
    lines = table(columns, rows, width, 1 if gpus else 2)
    if not run.samples and len(lines) < height:
        lines.append([(" pid, state, cpu and memory –: no process sample yet", "dim")])
    hidden = len(lines) - height
    if hidden > 0:
        lines = [*lines[: height - 1], [(f" … {hidden + 1} more ranks: z", "dim")]]
    title: list[Span] = [(age, "stale")] if age else []
    if not run.alive:
        title = [("ended, last values", "stale")]
    return Drawing(title, lines)


def _gib(count: int | None) -> str:
    return fmt.DASH if count is None else f"{count / fmt.GIB:.1f}"


def _gpus(view: View) -> dict[int, GpuSample]:
    return {gpu.index: gpu for gpu in view.state.host.gpus} if view.state.host else {}


def _row(view: View, run: RunState, rank: RankState, sample: RankSample | None, base: Role) -> list[Span]:
    quiet: Role = "stale" if base == "stale" else "dim"
    late = ORDER[rank.phase] < max(ORDER[other.phase] for other in run.ranks)
    place: Role = "warn" if late and rank.phase == front(run) and base == "plain" else base
    since = fmt.duration(run_end(run, view.known) - rank.since)
    row: list[Span] = [(rank.rank, place), (str(sample.pid) if sample else fmt.DASH, quiet)]
    word, role = STATES.get(sample.state, (sample.state, "plain")) if sample else (fmt.DASH, "dim")
    row.append((word, quiet if base == "stale" else role))
    if sample is not None and sample.compiling:
        row.append((sample.compiling[0], "move" if base == "plain" else base))
    else:
        row.append((rank.phase, quiet if rank.phase == READY else place))
    row += [(since, quiet), (fmt.percent(sample.cpu) if sample else fmt.DASH, base)]
    gpus = _gpus(view)
    if not gpus:
        return [*row, (fmt.size(sample.rss) if sample else fmt.DASH, base)]
    gpu = gpus.get(sample.gpu) if sample and sample.gpu is not None else None
    if gpu is None or sample is None:
        return [*row, *((fmt.DASH, "dim") for _ in range(3)), (_gib(sample.rss) if sample else fmt.DASH, base)]
    memory = dict(gpu.processes).get(sample.pid, gpu.memory_used)
    return [
        *row, (str(gpu.index), quiet), (fmt.percent(gpu.utilisation), base),
        (fmt.DASH if gpu.power is None else f"{gpu.power:.0f} W", base), (_gib(memory), base),
    ]  # fmt: skip


RANKS = PaneSpec(
    "ranks", 3, "Ranks", _depends, draw,
    (
        ("rank pid", "SGLang's scheduler processes, by their titles in /proc"),
        ("state", "R runs, S sleeps, D waits for a disk, T is stopped, Z and X are dead"),
        ("phase for", "where the rank is in the start and for how long, from the log; or the compiler that runs"),
        ("cpu", "percent of one core since the last sample; 100 % is one busy thread"),
        ("util power", "the rank's GPU by NVML; utilisation without power is not progress"),
        ("GiB rss", "GPU memory of the process, or without a GPU its resident memory"),
    ),
)  # fmt: skip
