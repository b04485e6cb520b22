"""Run by the engine's Python: a shard of rows that lie in an arena, half of it grown later, is what was put there."""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from kimi_capture.arena import Arena, Region
from kimi_capture.chunk import to_numpy
from kimi_capture.format import Sample, read_shard
from kimi_capture.handover import Packing
from kimi_capture.scribe import Scribe
from kimi_capture.store import Store

from .dumping import finished, manifest


def main(directory: Path) -> None:
    arena = Arena()
    store = Store(directory, "TP0", manifest(), start=partial(Scribe, arena))
    kept = []
    for number, rows in enumerate((40, 70)):
        while extent := arena.take(4096):
            kept.append(extent)
        arena.add(Region(1 << 20))
        request = finished(f"r{number}", rows, number)
        tensors = {}
        for name in request.pieces[0].rows.arrays:  # type: ignore[attr-defined]
            whole = np.concatenate([piece.rows.arrays[name] for piece in request.pieces])  # type: ignore[attr-defined]
            extent = arena.take(whole.nbytes)
            assert extent is not None
            kept.append(extent)
            held = to_numpy(extent.memory)[: whole.nbytes].view(whole.dtype).reshape(whole.shape)
            held[:] = whole
            tensors[name] = held
            packing = Packing(arena.locate)
            assert packing.place(held)[0] == number
            assert not packing.tail
        tensors["sample_offsets"] = np.array([0, rows])
        commit = store.commit(store.new_name(), tensors, (Sample(f"r{number}", rows, 1, rows, "length"),))
        shard = read_shard(directory / commit.shard)
        assert all((shard.tensor(name) == tensor).all() for name, tensor in tensors.items())
    store.release()
    print("equal")


with tempfile.TemporaryDirectory() as place:
    main(Path(place) / "d")
