"""The way of rows over a device, with its streams and events stood in for: on_device.py HIDDEN

The device has always done all that it was asked to. What that cannot show is order in time; it shows that every row
comes to its request, and all memory comes back.
"""

import contextlib
import gc
import sys
from typing import Any

import numpy as np
import torch

from kimi_capture.arena import Region
from kimi_capture.chunk import Chunk
from kimi_capture.rows import Piece
from kimi_capture.staging import Stager

BOUNDARIES, HIDDEN = 3, int(sys.argv[1])
Step = tuple[dict[str, torch.Tensor], list[Piece]]


class Event:
    def query(self) -> bool:
        return True


class Stream:
    device = torch.device("cpu")

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, Event)

    def record_event(self) -> Event:
        return Event()


def stager() -> Stager:
    """One that takes this host's memory for a device's."""
    stream: Any = Stream()
    cuda: Any = torch.cuda
    cuda.current_stream = lambda device=None: stream
    cuda.stream = lambda given: contextlib.nullcontext()
    tensor: Any = torch.Tensor
    tensor.record_stream = lambda self, given: None
    made = Stager()
    made.device, made._side, made._moments = torch.device("cpu"), stream, lambda aux, last, out: out.fill_(1.0)
    made.arena.add(Region(64 << 20))
    return made


def step(rows: int, seed: int, pieces: list[Piece]) -> Step:
    """A step's tensors, and whose its rows are."""
    dice = torch.Generator().manual_seed(seed)
    aux = torch.randn(rows, BOUNDARIES * HIDDEN, generator=dice).bfloat16()
    return {
        "aux_hidden_states": aux.unflatten(1, (BOUNDARIES, HIDDEN)),
        "last_hidden_state": torch.randn(rows, HIDDEN, generator=dice).bfloat16(),
        "token_ids": torch.randint(0, 500, (rows,), generator=dice),
        "positions": torch.arange(rows),
        "last_pre_norm_rms": torch.rand(rows, generator=dice),
    }, pieces


def check(one: Step, length: int) -> None:
    """Every piece has its rows of the step, `length` of them each."""
    source, pieces = one
    for number, piece in enumerate(pieces):
        held: Any = piece.rows
        own, there = slice(number * length, (number + 1) * length), slice(piece.at, piece.at + length)
        for name in ("aux_hidden_states", "last_hidden_state"):
            wanted = source[name][own].contiguous().view(torch.int16).numpy().view(np.uint16)
            assert np.array_equal(held.arrays[name][there], wanted), name
        for name in ("token_ids", "positions"):
            assert np.array_equal(held.arrays[name][there], source[name][own].numpy()), name
        rms = held.arrays["last_pre_norm_rms"][there] * np.sqrt(HIDDEN)
        assert np.allclose(rms, source["last_pre_norm_rms"][own].numpy())
        assert (held.moments[there] == 1).all()


def arrive(chunk: Chunk) -> None:
    assert chunk.ready
    chunk.settle()


def main() -> None:
    one = stager()
    prefill = [step(300, seed, [Piece(0, 300, 0, rid=f"r{seed}")]) for seed in range(6)]
    chunks = []
    for number, (source, pieces) in enumerate(prefill):
        chunk = one.stage(source, pieces)
        assert chunk is not None
        assert not chunk.ready, "rows set out before the engine took its results"
        chunks.append(chunk)
        if number % 2:  # now and then the engine is two steps ahead
            one.begin()
    for chunk, staged in zip(chunks, prefill, strict=True):
        arrive(chunk)
        check(staged, 300)
    decode = [step(4, 100 + seed, [Piece(seed, 1, row, rid=f"d{row}") for row in range(4)]) for seed in range(50)]
    block = one.gather(decode[0][0], 4)
    assert block is not None
    assert all(block.add(source, pieces) for source, pieces in decode)
    chunk = one.close(block)
    one.begin()
    arrive(chunk)
    for staged in decode:
        check(staged, 1)
    del chunks, chunk, block, prefill, decode, staged, source, pieces
    gc.collect()
    one.begin()
    assert one.arena.take(64 << 20) is not None, "memory did not come back"
    print("all there")


if __name__ == "__main__":
    main()
