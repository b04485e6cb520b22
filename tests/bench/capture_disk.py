"""What the capture writer makes durable, beside what the disk takes: no engine, the rows are in memory from the start.

    .engine/bin/python tests/bench/capture_disk.py [--mib N] [--rounds N] [--disk DIR]

Rounds of raw writes (8 MiB, O_DIRECT, six threads, one fsync a thread at the end) and of shards alternate. A shard is
committed as in a dump: hashes, one copy, O_DIRECT, fsync, rename, and its line in the list, in the writer's process.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2] / room) for room in ("agents", "console", "tests")]

from bench.capture_lane import raw_disk  # noqa: E402 - the path is set above
from bench.capture_report import describe  # noqa: E402
from bench.verify_rate import BOUNDARIES  # noqa: E402
from kimi_capture.arena import Arena, Region  # noqa: E402
from kimi_capture.format import Array, Manifest, Sample, conventions  # noqa: E402
from kimi_capture.scribe import Scribe  # noqa: E402
from kimi_capture.statistics import MOMENTS  # noqa: E402
from kimi_capture.store import COMMITTERS, Store  # noqa: E402

HIDDEN = 7168
ROWS = 2048
SAMPLES = 2
"""Of a shard: with 117 MB each, what comes nearest to 256 MiB."""


class Rows:
    """The rows of some samples in shared memory; every shard is made of them again."""

    def __init__(self, samples: int) -> None:
        size = samples * ROWS * HIDDEN * 2
        self.arena = Arena()
        self.arena.add(Region(size * (len(BOUNDARIES) + 1)))
        memory: Array = self.arena.regions[0].memory.numpy()
        memory.view(np.uint32)[:] = np.random.default_rng(0).integers(0, 1 << 32, memory.size // 4, np.uint32)
        aux, last = memory[: size * len(BOUNDARIES)].view(np.uint16), memory[size * len(BOUNDARIES) :].view(np.uint16)
        self._aux = aux.reshape(samples, ROWS, len(BOUNDARIES), HIDDEN)
        self._last = last.reshape(samples, ROWS, HIDDEN)

    def shard(self, number: int) -> dict[str, list[Array]]:
        """The tensors of one shard, in a piece a sample."""
        which = [(number * SAMPLES + index) % len(self._aux) for index in range(SAMPLES)]
        return {
            "aux_hidden_states": [self._aux[index] for index in which],
            "last_hidden_state": [self._last[index] for index in which],
            "token_ids": [np.arange(ROWS)] * SAMPLES,
            "positions": [np.arange(ROWS)] * SAMPLES,
            "sample_offsets": [np.arange(SAMPLES + 1) * ROWS],
        }


def shards(directory: Path, rows: Rows, size: int) -> float:
    """Bytes a second until at least `size` bytes are committed."""
    manifest = Manifest(
        dump=directory.name, run="bench", created=time.time(), boundaries=BOUNDARIES,
        conventions=conventions(BOUNDARIES, 0), dtype="bfloat16", hidden_size=HIDDEN, num_layers=61,
        last_hidden_norm="post", model={}, tokenizer=None, sglang="none", plugin="bench", argv=(), parallel={},
    )  # fmt: skip
    store = Store(directory, "tp0", manifest, start=lambda claim: Scribe(rows.arena, claim))
    shard_bytes = SAMPLES * ROWS * HIDDEN * 2 * (len(BOUNDARIES) + 1)
    shape = SAMPLES, ROWS, len(BOUNDARIES) + 1, MOMENTS
    moments = list(np.random.default_rng(0).random(shape, np.float32))  # alike ones would be searched for equal rows
    jobs = [(store.new_name(), number) for number in range(-(-size // shard_bytes))]

    def commit(job: tuple[str, int]) -> int:
        samples = tuple(Sample(f"{job[1]}-{index}", ROWS - 1, 1, ROWS, "length") for index in range(SAMPLES))
        return store.commit(job[0], rows.shard(job[1]), samples, moments).bytes

    began = time.perf_counter()
    with ThreadPoolExecutor(COMMITTERS) as pool:
        done = sum(pool.map(commit, jobs))
    rate = done / (time.perf_counter() - began)
    store.release()
    shutil.rmtree(directory)
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=4096, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=12, help="distinct ones in memory, 117 MB each")
    parser.add_argument("--disk", type=Path, help="where to write; default: the directory for temporary files")
    arguments = parser.parse_args()
    if find_spec("torch") is None:
        sys.exit("capture_disk: this Python has no torch. Run it with .engine/bin/python.")
    rows, size = Rows(arguments.samples), arguments.mib << 20
    found: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="capture-", dir=arguments.disk) as disk:
        for number in range(arguments.rounds):
            found.append((raw_disk(Path(disk) / "raw", size), shards(Path(disk) / f"dump-{number}", rows, size)))
            print(f"raw {found[-1][0] / 1e9:.3f} GB/s, durable {found[-1][1] / 1e9:.3f} GB/s", flush=True)
    raw, ours = ([pair[which] / 1e9 for pair in found] for which in (0, 1))
    ratio = [100 * one / other for other, one in found]
    print(f"\n{describe()}. {arguments.mib} MiB a round, {COMMITTERS} committers.\n")
    print("| | median | min to max |\n|---|---:|---:|")
    table = {"raw disk, GB/s": raw, "durable shards, GB/s": ours, "of the same round's raw, %": ratio}
    for name, values in table.items():
        print(f"| {name} | {statistics.median(values):.4g} | {min(values):.4g} to {max(values):.4g} |")


if __name__ == "__main__":
    main()
