"""What a step's rows on their way to the host do to the few bytes that the scheduler waits for, and what each part of
capture's work on the device takes. Needs a GPU; no engine.

    . .gpu/env.sh && python3 tests/bench/copy_order.py

A GPU copies to the host in the order in which copies become possible, whatever their streams: see
`kimi_capture.transfer`. Medians of 12.
"""

import mmap
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2] / room) for room in ("agents", "console", "tests")]

from bench.capture_report import describe  # noqa: E402 - the path is set above

ROWS, BOUNDARIES, HIDDEN, WORDS = 8192, 3, 7168, 163_840
"""A prefill step of SGLang's default size at Kimi-K2.5's width."""
SIZE = ROWS * (BOUNDARIES + 1) * HIDDEN * 2
PIECES = (SIZE, 64 << 20, 16 << 20, 4 << 20, 1 << 20)
ROUNDS = 12
REPEATS = 100
"""Copies in a graph: one takes less than asking for it."""


class Copies:
    """A step's rows on the device, pinned memory for them, and a few bytes with a stream of their own."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        memory = torch.from_numpy(np.frombuffer(mmap.mmap(-1, SIZE), np.uint8))
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), SIZE, 0))
        self.host, self.rows = memory, torch.randint(0, 255, (SIZE,), dtype=torch.uint8, device="cuda")
        self.side, self.engine = torch.cuda.Stream(), torch.cuda.Stream()
        self.few, self.answer = torch.zeros(8, device="cuda"), torch.zeros(8).pin_memory()

    def send(self, piece: int) -> None:
        """The rows to the host, in pieces of so many bytes."""
        with self.torch.cuda.stream(self.side):
            for first in range(0, SIZE, piece):
                self.host[first : first + piece].copy_(self.rows[first : first + piece], non_blocking=True)

    def wait(self, piece: int | None) -> tuple[float, float]:
        """Milliseconds until the few bytes are on the host, asked for right behind the rows, and until all is."""
        self.torch.cuda.synchronize()
        began = time.perf_counter()
        if piece:
            self.send(piece)
        asked = time.perf_counter()
        with self.torch.cuda.stream(self.engine):
            self.answer.copy_(self.few, non_blocking=True)
            done = self.engine.record_event()
        done.synchronize()
        told = time.perf_counter()
        self.torch.cuda.synchronize()
        return (told - asked) * 1e3, (time.perf_counter() - began) * 1e3


def on_device(torch: Any, work: Callable[[], object]) -> float:
    """Milliseconds that the device takes."""
    times: list[float] = []
    for _ in range(ROUNDS + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[3:])


def small_copies(torch: Any, rows: int) -> dict[str, float]:
    """Microseconds that the device takes to copy a decode step's rows, by way: a graph of many, by their number."""
    from kimi_capture.staging import copy_small  # noqa: PLC0415 - imported when torch is there

    sources = [
        torch.randn(rows, BOUNDARIES, HIDDEN, device="cuda", dtype=torch.bfloat16),
        torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16),
        torch.arange(rows, device="cuda"), torch.arange(rows, device="cuda"), torch.rand(rows, device="cuda"),
    ]  # fmt: skip
    targets = [torch.empty_like(tensor) for tensor in sources]
    halves = [[tensor.view(torch.int16) for tensor in tensors] for tensors in (targets, sources)]
    ways: dict[str, Callable[[], object]] = {
        "each tensor by itself": lambda: [one.copy_(other) for one, other in zip(targets, sources, strict=True)],
        "one launch, 2-byte words": lambda: torch._foreach_copy_(*halves),
        "as capture does": lambda: copy_small(targets, sources),
    }
    found: dict[str, float] = {}
    for way, copy in ways.items():
        copy()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(REPEATS):
                copy()
        found[way] = on_device(torch, graph.replay) * 1e3 / REPEATS
    return found


def main() -> None:
    """Measure, print the tables."""
    if find_spec("torch") is None:
        sys.exit("copy_order: this Python has no torch. Run it on a GPU host with the Python that has SGLang.")
    import torch  # noqa: PLC0415 - the usage is told without it

    if not torch.cuda.is_available():
        sys.exit("copy_order: there is no GPU here.")
    from kimi_capture.device import write_moments  # noqa: PLC0415 - needs Triton

    copies = Copies(torch)
    print(f"\n{describe()}. {ROWS} rows, {SIZE / 1e6:.0f} MB.\n")
    print("| rows to the host | 8 bytes behind them, ms | all, ms |\n|---|---:|---:|")
    for piece in (None, *PIECES):
        seen = [copies.wait(piece) for _ in range(ROUNDS + 3)][3:]
        few, whole = (statistics.median(values) for values in zip(*seen, strict=True))
        kind = "none" if piece is None else "in one piece" if piece == SIZE else f"in pieces of {piece >> 20} MiB"
        print(f"| {kind} | {few:.3f} | {whole:.3f} |")
    states = torch.randn(ROWS, BOUNDARIES + 1, HIDDEN, device="cuda", dtype=torch.bfloat16)
    aux, last = states[:, :-1].contiguous(), states[:, -1].contiguous()
    moments = torch.empty(ROWS, BOUNDARIES + 1, 4, device="cuda")
    head, target = torch.randn(WORDS, HIDDEN, device="cuda", dtype=torch.bfloat16), torch.empty_like(copies.rows)
    print("\n| on the device | ms |\n|---|---:|")
    print(f"| the rows to memory of their own | {on_device(torch, lambda: target.copy_(copies.rows)):.3f} |")
    print(f"| their moments | {on_device(torch, lambda: write_moments(aux, last, moments)):.3f} |")
    print(f"| the head on one row | {on_device(torch, lambda: last[:1] @ head.T):.3f} |")
    print("\n| rows of a decode step to their block | 4 rows, us | 64 rows, us |\n|---|---:|---:|")
    few_rows, many_rows = small_copies(torch, 4), small_copies(torch, 64)
    for way, time_taken in few_rows.items():
        print(f"| {way} | {time_taken:.1f} | {many_rows[way]:.1f} |")


if __name__ == "__main__":
    main()
