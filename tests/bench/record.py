"""What a recording costs: events a second in and out, size against NDJSON, and seeking in a day of events.

    python tests/bench/record.py [EVENTS] [--keep FILE]

The day is the log of a busy server, one event a line, among samples of eight ranks and GPUs once a
second: 50 million events over 24 hours. Rates are by this process's CPU time. Writing is measured without folding,
which the caller has done anyway.
"""

import itertools
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kimi_agent.model import events as ev
from kimi_agent.model.reduce import fold
from kimi_agent.model.state import State
from kimi_agent.record.format import CHECKPOINT_EVENTS
from kimi_agent.record.reader import Recording
from kimi_agent.record.writer import RecordingWriter
from kimi_agent.wire.codec import encode_event

DAY_EVENTS = 50_000_000
STEP = 86_400 / DAY_EVENTS
POOL = 512
"""Batches that are made; later ones are these again at other times."""
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


def events(count: int) -> Iterator[ev.Event]:
    """A day of a server."""
    started = ev.RunStarted("r", "k", "/m/Kimi-K2.5", (), 1, 8, RANKS, "gpu-07", 30000, "/l", "/p", "0.5.23", True)
    text, source = lines(), random.Random(1)
    yield ev.Event(1, BEGIN, started)
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


def build(path: Path, count: int) -> tuple[int, int, Timer, Timer]:
    """Write the day: (events, bytes as NDJSON, time in the writer, time encoding)."""
    writer, writing, encoding = RecordingWriter(path), Timer(), Timer()
    state, raw, written = State(), 0, 0
    day = events(count)
    pool: list[list[ev.Event]] = []
    while written < count:
        # Making 50 million events in Python would take the hours that this measures nothing of: batches are used again.
        block = list(itertools.islice(day, CHECKPOINT_EVENTS)) if len(pool) < POOL else _later(pool, written)
        if len(pool) < POOL:
            pool.append(block)
        with encoding:
            data = [encode_event(event) for event in block]
        raw += sum(map(len, data)) + len(data)
        with writing:
            writer.append(block, data, state)
        if written < POOL * CHECKPOINT_EVENTS:
            state = fold(block, state)
        written += len(block)
    with writing:
        writer.close()
    return written, raw, writing, encoding


def _later(pool: list[list[ev.Event]], written: int) -> list[ev.Event]:
    """An earlier block's events at the times and numbers of this one."""
    block = pool[1 + (written // CHECKPOINT_EVENTS) % (len(pool) - 1)]
    begin = BEGIN + STEP * written
    return [ev.Event(written + n, round(begin + STEP * n, 3), event.body) for n, event in enumerate(block, 1)]


def seeks(recording: Recording, tries: int = 100) -> list[tuple[float, float]]:
    """(CPU, wall) milliseconds of jumps to random times: place, state, and the last 2,000 lines of the log."""
    source, taken = random.Random(3), []
    for _ in range(tries):
        cpu, wall = time.process_time(), time.perf_counter()
        place = recording.place_at(source.uniform(recording.begin, recording.end))
        recording.state(place)
        recording.log(place, 2000)
        taken.append((1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)))
    return taken


def main() -> None:
    """Build, measure, print a table."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--keep"]
    count = int(arguments[0]) if arguments else DAY_EVENTS
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "day.kimirec"
        written, raw, writing, encoding = build(path, count)
        size = path.stat().st_size
        recording, reading, decoding = Recording(path), Timer(), Timer()
        with reading:
            read = sum(map(len, recording.lines()))
        assert read == written == len(recording)
        with decoding:
            decoded = sum(map(len, itertools.islice(recording.batches(), 100)))
        jumps = seeks(recording)
        recording.close()
    hours = written * STEP / 3600
    print(f"\n{platform.machine()}, Python {platform.python_version()}; {written:,} events, {hours:.1f} hours\n")
    print("| what | measured |\n|---|---:|")
    print(f"| written, lines given | {written / writing.seconds:,.0f} events/s |")
    print(f"| encoded to lines before | {written / encoding.seconds:,.0f} events/s |")
    print(f"| read as lines | {read / reading.seconds:,.0f} events/s |")
    print(f"| read as typed events | {decoded / decoding.seconds:,.0f} events/s |")
    print(f"| size | {size / 1e6:,.0f} MB, {size / written:.1f} B an event |")
    print(f"| against NDJSON | {raw / 1e6:,.0f} MB, {raw / size:.1f} times smaller |")
    for name, column in (("CPU", 0), ("wall", 1)):
        taken = sorted(jump[column] for jump in jumps)
        middle, worst = statistics.median(taken), taken[-1]
        print(f"| seek, 100 random times, {name}: median / worst | {middle:.0f} / {worst:.0f} ms |")


if __name__ == "__main__":
    main()
