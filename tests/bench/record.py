"""What a recording costs: events a second in and out, size against NDJSON, and seeking in a day of events.

    python tests/bench/record.py [EVENTS]

The day is the log of a busy server, one event a line, among samples of eight ranks and GPUs once a second: 50 million
events over 24 hours. Besides, a million lines as one event a line and as twenty, and samples alone. Rates are by this
process's CPU time, so that other processes matter less. Writing takes events, whose lines of the wire are not needed,
and leaves out the fold, which the caller has done anyway.
"""

import argparse
import itertools
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kimi_agent.model import events as ev
from kimi_agent.model.reduce import fold
from kimi_agent.model.state import State
from kimi_agent.record.format import CHECKPOINT_EVENTS
from kimi_agent.record.reader import Recording
from kimi_agent.record.writer import RecordingWriter
from kimi_agent.wire.codec import encode_event
from kimi_console.source.player import LOG_LINES

DAY_EVENTS = 50_000_000
STEP = 86_400 / DAY_EVENTS
POOL = 512
"""Batches that are made; later ones are these again at other times."""
WEIGHED = 64
"""After these, one batch of so many is weighed as NDJSON."""
MANY = 1_000_000
BEGIN = 1_790_000_000.0
RANKS = tuple(f"TP{rank}" for rank in range(8))


def lines() -> Iterator[str]:
    """The log of a server with eight ranks under load, for ever, in the words of real ones."""
    source, tokens = random.Random(7), 100_000
    for number in itertools.count():
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(BEGIN + STEP * number))
        rank, running = f"TP{number % 8}", source.randrange(200, 256)
        tokens = max(0, tokens + source.randrange(-3000, 3100))
        if number % 40 == 7:
            yield f'[{when}] INFO:     127.0.0.1:{source.randrange(30000, 60000)} - "POST /generate HTTP/1.1" 200 OK'
        elif number % 10 == 3:
            yield (f"[{when} {rank}] Prefill batch, #new-seq: {source.randrange(1, 9)}, #new-token: "
                   f"{source.randrange(8192)}, #cached-token: 0, token usage: {tokens / 1e6:.2f}, "
                   f"#running-req: {running}, #queue-req: {source.randrange(5)}, "
                   f"input throughput (token/s): {source.uniform(8000, 9000):.2f}, cuda graph: False")  # fmt: skip
        else:
            yield (f"[{when} {rank}] Decode batch, #running-req: {running}, #token: {tokens}, token usage: "
                   f"{tokens / 1e6:.2f}, cuda graph: True, gen throughput (token/s): {source.uniform(4000, 4500):.2f}, "
                   f"#queue-req: 0")  # fmt: skip


def samples(source: random.Random) -> tuple[ev.Body, ...]:
    """What eight ranks and GPUs look like in one second."""
    ranks = tuple(
        ev.RankSample(rank, 4000 + n, "S", round(source.random() * 100, 1), 81_000_000_000, 0.0, 0.0, "futex", n)
        for n, rank in enumerate(RANKS)
    )
    gpus = tuple(
        ev.GpuSample(n, "NVIDIA H200", 140_000_000_000, 150_000_000_000, source.randrange(100),
                     round(source.uniform(100, 700), 1), 700.0, 55, 1980, 0)
        for n in range(8)
    )  # fmt: skip
    rate = ev.ThroughputSampled(
        "r", source.uniform(1e3, 1e4), source.uniform(1e3, 1e4), 8, 0, 90_000, 10**6, 0.1, "loads"
    )
    return ev.RanksSampled("r", ranks), ev.HostSampled(10**12, 4 * 10**11, 3.5, 20.0, gpus), rate


def started() -> ev.RunStarted:
    """The launch of eight ranks."""
    return ev.RunStarted("r", "k", "/m/Kimi-K2.5", (), 1, 8, RANKS, "gpu-07", 30000, "/l", "/p", "0.5.23", True)


def log_alone(count: int, at_once: int) -> Iterator[ev.Event]:
    """So many lines of log, some in each event."""
    text = lines()
    yield ev.Event(1, BEGIN, started())
    for number in range(count // at_once):
        body = ev.LogLines("r", number * at_once, tuple(itertools.islice(text, at_once)))
        yield ev.Event(number + 2, round(BEGIN + STEP * number * at_once, 3), body)


def samples_alone(seconds: int) -> Iterator[ev.Event]:
    """Eight ranks and GPUs, looked at once a second."""
    source, seq = random.Random(2), 1
    yield ev.Event(1, BEGIN, started())
    for second in range(seconds):
        for body in samples(source):
            seq += 1
            yield ev.Event(seq, BEGIN + second, body)


def events(count: int) -> Iterator[ev.Event]:
    """A day of a server."""
    text, source = lines(), random.Random(1)
    yield ev.Event(1, BEGIN, started())
    second, number, seq = 0, 0, 1
    while seq < count:
        now = round(BEGIN + STEP * seq, 3)
        if now - BEGIN >= second:
            second += 1
            for body in samples(source):
                seq += 1
                yield ev.Event(seq, now, body)
        if source.random() < 1e-5:
            seq += 1
            yield ev.Event(seq, now, ev.Note("error", f"something happened at line {number}"))
        seq += 1
        yield ev.Event(seq, now, ev.LogLines("r", number, (next(text),)))
        number += 1


class Timer:
    """Adds up this process's CPU time spent within it: other processes on the machine do not count."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.process_time()

    def __exit__(self, *exc: object) -> None:
        self.seconds += time.process_time() - self._began


@dataclass(slots=True)
class Cost:
    """What recording some events came to."""

    what: str
    events: int = 0
    lines: int = 0
    raw: float = 0.0
    """Bytes as NDJSON; where that would take hours, by every so many batches."""
    size: int = 0
    writing: Timer = field(default_factory=Timer)
    reading: Timer = field(default_factory=Timer)

    def row(self) -> str:
        """A row of the table."""
        rates = [f"{self.events / timer.seconds:,.0f}" for timer in (self.writing, self.reading)]
        rates += [f"{self.lines / timer.seconds:,.0f}" if self.lines else "-" for timer in (self.writing, self.reading)]
        sizes = f"{self.size / 1e6:,.1f} MB | {self.size / self.events:.1f} | {self.raw / self.size:.1f}"
        return f"| {self.what} | {self.events:,} | {' | '.join(rates)} | {sizes} |"


def record(what: str, path: Path, batches: Iterable[list[ev.Event]], folded: int) -> Cost:
    """Write batches and read them again; the first so many events are folded, for checkpoints like real ones."""
    cost, state = Cost(what), State()
    writer = RecordingWriter(path)
    for number, batch in enumerate(batches):
        with cost.writing:
            writer.append(batch, state)
        if cost.events < folded:
            state = fold(batch, state)
        if number < POOL or number % WEIGHED == 0:
            weight = 1 if number < POOL else WEIGHED
            cost.raw += weight * sum(len(encode_event(event)) + 1 for event in batch)
        cost.events += len(batch)
        cost.lines += sum(len(event.body.lines) for event in batch if isinstance(event.body, ev.LogLines))
    with cost.writing:
        writer.close()
    cost.size = path.stat().st_size
    recording = Recording(path)
    with cost.reading:
        read = sum(map(len, recording.batches()))
    assert read == cost.events == len(recording)
    recording.close()
    return cost


def batched(made: Iterator[ev.Event]) -> Iterator[list[ev.Event]]:
    """Events as a caller has them."""
    while batch := list(itertools.islice(made, CHECKPOINT_EVENTS)):
        yield batch


def day(count: int) -> Iterator[list[ev.Event]]:
    """A day; making 50 million events in Python takes long and measures nothing: batches are used again."""
    made, written = events(count), 0
    pool: list[list[ev.Event]] = []
    while written < count:
        batch = list(itertools.islice(made, CHECKPOINT_EVENTS)) if len(pool) < POOL else _later(pool, written)
        if len(pool) < POOL:
            pool.append(batch)
        written += len(batch)
        yield batch


def _later(pool: list[list[ev.Event]], written: int) -> list[ev.Event]:
    """An earlier batch's events at the times, numbers and lines of this one."""
    batch = pool[1 + (written // CHECKPOINT_EVENTS) % (len(pool) - 1)]
    begin, made, line = BEGIN + STEP * written, [], written
    for number, event in enumerate(batch, 1):
        body = event.body
        if isinstance(body, ev.LogLines):
            body = ev.LogLines(body.run, line, body.lines)
            line += 1
        made.append(ev.Event(written + number, round(begin + STEP * number, 3), body))
    return made


def seeks(path: Path, *, cold: bool, tries: int = 200) -> list[tuple[float, float]]:
    """(CPU, wall) milliseconds of jumps to random times: place, state, and as much of the log as a jump brings."""
    source, taken = random.Random(3), []
    recording = Recording(path)
    with path.open("rb") as file:
        for _ in range(tries):
            if cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            cpu, wall = time.process_time(), time.perf_counter()
            place = recording.place_at(source.uniform(recording.begin, recording.end))
            recording.state(place)
            recording.log(place, LOG_LINES)
            taken.append((1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)))
    recording.close()
    return taken


def main() -> None:
    """Build, measure, print tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("events", type=int, nargs="?", default=DAY_EVENTS)
    given = parser.parse_args()
    print(f"\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
          f"load average {os.getloadavg()[0]:.1f}\n")  # fmt: skip
    print("| what | events | written, events/s | read, events/s | written, lines/s | read, lines/s "
          "| size | B an event | NDJSON / size |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|")  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        room = Path(directory)
        some: tuple[tuple[str, Iterator[ev.Event]], ...] = (
            ("log, a line an event", log_alone(MANY, 1)), ("log, twenty lines an event", log_alone(MANY, 20)),
            ("samples of ranks, GPUs and throughput", samples_alone(10_000)),
        )  # fmt: skip
        for number, (what, made) in enumerate(some):
            print(record(what, room / f"{number}.kimirec", batched(made), MANY).row(), flush=True)
        path = room / "day.kimirec"
        whole = record("the day", path, day(given.events), POOL * CHECKPOINT_EVENTS)
        print(whole.row(), flush=True)
        hours = whole.events * STEP / 3600
        print(f"\n| jump to 200 random times within {hours:.1f} hours | median | 99 of 100 | worst |")
        print("|---|---:|---:|---:|")
        for cold in (False, True):
            jumps = seeks(path, cold=cold)
            for name, column in (("CPU", 0), ("wall", 1)):
                taken = sorted(jump[column] for jump in jumps)
                figures = statistics.median(taken), taken[len(taken) * 99 // 100], taken[-1]
                where = "not in memory" if cold else "in memory"
                print(f"| {where}, {name} | {' | '.join(f'{figure:.0f} ms' for figure in figures)} |")


if __name__ == "__main__":
    main()
