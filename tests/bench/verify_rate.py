"""How fast `shards verify` reads, against a plain sequential read of the same file.

    python tests/bench/verify_rate.py [--directory DIR] [--mib N] [--hidden H] [--repeat N]

Needs no engine: one shard of random bf16 states at Kimi-K2.5's width is written, then verified.
"""

import argparse
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from kimi_agent.shards.content import check_content
from kimi_agent.shards.verify import verify
from kimi_capture.format import (
    COMMITS,
    MANIFEST,
    Commit,
    Manifest,
    Sample,
    conventions,
    encode_commit,
    file_xxh3,
    read_shard,
)
from kimi_capture.parts import write_shard

BOUNDARIES = (3, 31, 59)
ROWS_OF_A_SAMPLE = 512


def write_dump(directory: Path, mib: int, hidden: int) -> Path:
    """A dump of one shard of about `mib` MiB of random states; returns the shard."""
    samples = mib * 2**20 // (8 * hidden * ROWS_OF_A_SAMPLE)
    rows = samples * ROWS_OF_A_SAMPLE
    random = np.random.default_rng(0)
    noise = (random.normal(size=1 << 20).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    states = np.resize(noise, rows * 4 * hidden)
    tensors: dict[str, npt.NDArray[Any]] = {
        "aux_hidden_states": states[: rows * 3 * hidden].reshape(rows, 3, hidden),
        "last_hidden_state": states[rows * 3 * hidden :].reshape(rows, hidden),
        "token_ids": random.integers(0, 160_000, rows),
        "positions": np.tile(np.arange(ROWS_OF_A_SAMPLE), samples),
        "sample_offsets": np.arange(samples + 1) * ROWS_OF_A_SAMPLE,
    }
    manifest = Manifest(
        dump="bench", run="bench", created=time.time(), boundaries=BOUNDARIES,
        conventions=conventions(BOUNDARIES, 0), dtype="bfloat16", hidden_size=hidden, num_layers=61,
        last_hidden_norm="post", model={}, tokenizer=None, sglang="none", plugin="bench", argv=(), parallel={},
    )  # fmt: skip
    (directory / MANIFEST).write_bytes(manifest.encode())
    path = directory / "shard-TP0-000000.safetensors"
    made = tuple(Sample(f"r{place}", ROWS_OF_A_SAMPLE, 1, ROWS_OF_A_SAMPLE, "stop") for place in range(samples))
    size, digest = write_shard(path, tensors, dump="bench", dtype="BF16", boundaries=BOUNDARIES, samples=made)
    (directory / COMMITS).write_bytes(encode_commit(Commit(path.name, size, rows, samples, digest, time.time())))
    return path


def read_plainly(path: Path) -> None:
    """Read the file from beginning to end in blocks of 1 MiB."""
    block = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(block):
            pass


def verify_it(directory: Path) -> None:
    """Verify the dump; it must be good, or the rate means nothing."""
    result = verify(directory)
    if not result.ok:
        raise SystemExit(f"the dump is not good: {asdict(result)}")


def seconds(work: Callable[[], object], repeat: int) -> list[float]:
    """Wall time of each of `repeat` runs, after one that warms the page cache."""
    work()
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return times


def main() -> None:
    """Print the machine, the method and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="where to write the shard (a temporary directory)")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.directory) as name:
        path = write_dump(Path(name), args.mib, args.hidden)
        size = path.stat().st_size
        print(f"machine  {platform.platform()}, {platform.processor() or platform.machine()}, cores {cores()}")
        print(f"versions python {platform.python_version()}, numpy {np.__version__}, xxhash {version('xxhash')}")
        print(f"method   one shard of {size / 2**20:.0f} MiB, hidden {args.hidden}, in the page cache (warm); ", end="")
        print(f"median and range of {args.repeat} runs, one process, one thread\n")
        works: dict[str, Callable[[], object]] = {
            "plain sequential read, 1 MiB blocks": lambda: read_plainly(path),
            "whole-file xxh3 alone": lambda: file_xxh3(path),
            "per-tensor xxh3 alone": lambda: read_shard(path).corrupt(),
            "rows, positions, statistics alone": lambda: list(check_content(read_shard(path))),
            "verify (all of it)": lambda: verify_it(Path(name)),
        }
        print(f"{'':38}{'GB/s':>8}{'range':>16}{'of plain':>10}")
        plain = 0.0
        for label, work in works.items():
            rates = [size / 1e9 / taken for taken in seconds(work, args.repeat)]
            plain = plain or median(rates)
            spread = f"{min(rates):.2f} – {max(rates):.2f}"
            print(f"{label:38}{median(rates):8.2f}{spread:>16}{median(rates) / plain:10.0%}")


def cores() -> str:
    """How many cores there are, and of which make where the system says."""
    info = Path("/proc/cpuinfo")
    names = [line.partition(": ")[2] for line in info.read_text().splitlines() if line.startswith("model name")]
    return f"{len(names)} × {names[0]}" if names else "unknown"


if __name__ == "__main__":
    main()
