"""Events as a run makes them, and recordings of them."""

from collections.abc import Sequence
from pathlib import Path

from kimi_agent.model import events as ev
from kimi_agent.model.reduce import resume
from kimi_agent.model.state import State
from kimi_agent.record.writer import RecordingWriter

RANKS = ("TP0", "TP1")


def started(run: str = "r1", *, adopted: bool = False) -> ev.RunStarted:
    """The launch of a run of two ranks."""
    return ev.RunStarted(
        run=run, name="tiny", model="/m/tiny", argv=("python",), pid=7, tp=2, ranks=RANKS, host="h", port=1,
        log="/l", python="/p", sglang="0.5.23", capture=True, adopted=adopted,
    )  # fmt: skip


def numbered(bodies: Sequence[ev.Body], first: int = 1, begin: float = 1000.0, step: float = 0.5) -> list[ev.Event]:
    """Bodies as events of one journal."""
    return [ev.Event(first + n, begin + step * n, body) for n, body in enumerate(bodies)]


def a_run(lines: int = 40, run: str = "r1", first: int = 1, begin: float = 1000.0) -> list[ev.Event]:
    """A whole run: launch, log, phases, samples, a hang with its verdict, the end."""
    bodies: list[ev.Body] = [started(run)]
    phases = ("join ranks", "load weights", "ready")
    for line in range(lines):
        bodies.append(ev.LogLines(run, line, (f"{run} line {line}",)))
        if line % 10 == 5 and line // 10 < len(phases):
            bodies += [ev.PhaseEntered(run, rank, phases[line // 10]) for rank in RANKS]
        bodies.append(ev.ThroughputSampled(run, 1.5 * line, 2.0, 1, 0, line, 100, 0.1, "loads"))
    verdict = ev.Verdict("straggler", "TP1 is stopped", "TP1", 0.9, ("proc TP1 is in state T",))
    bodies += [
        ev.StatusChanged(run, "HUNG", "TP1"), ev.VerdictChanged(run, verdict),
        ev.Note("error", "something broke"), ev.RunExited(run, -9, False),
    ]  # fmt: skip
    return numbered(bodies, first, begin)


def record(path: Path, events: Sequence[ev.Event], batch: int = 7) -> Path:
    """A recording of events that come in batches."""
    writer = RecordingWriter(path)
    state = State()
    for start in range(0, len(events), batch):
        part = events[start : start + batch]
        writer.append(part, state)
        for event in part:
            state = resume(state, event)
    writer.close()
    return path
