"""How soon a dump of 100,000 samples can be looked into, from the agent's first request on.

    python tests/bench/inspector.py [--directory DIR] [--samples N] [--repeat N]

Needs no engine. Two dumps are written: one with as many samples a shard as Kimi-K2.5's width gives (5, so 20,000
shards), one with 1,000 a shard. Their hidden size is 16, which makes them quickly and leaves what is measured as it is:
an index is made of commits and headers, whose size does not depend on it. What reads rows is measured on one shard of
real width.
"""

import argparse
import asyncio
import contextlib
import os
import platform
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from kimi_agent.paths import Home
from kimi_agent.shards.inspect.index import FILE, DumpIndex
from kimi_agent.shards.inspect.serve import Inspector
from kimi_capture.format import COMMITS, MANIFEST, Commit, Manifest, Sample, conventions, encode_commit
from kimi_capture.parts import encode_parts

BOUNDARIES = (3, 31, 59)
ROWS = 8
"""Rows of a sample of the large dumps."""
BAD_EVERY = 97
"""Every so many-th shard has a row that is zero."""
Ask = Callable[[], Awaitable[Any]]


def write_dump(directory: Path, samples: int, of_a_shard: int, hidden: int = 16, rows: int = ROWS) -> Path:
    """A dump of random states; its files are not fsynced."""
    directory.mkdir(parents=True)
    manifest = Manifest(
        dump=directory.name, run="bench", created=time.time(), boundaries=BOUNDARIES,
        conventions=conventions(BOUNDARIES, 0), dtype="bfloat16", hidden_size=hidden, num_layers=61,
        last_hidden_norm="post", model={}, tokenizer=None, sglang="none", plugin="bench", argv=(), parallel={},
    )  # fmt: skip
    (directory / MANIFEST).write_bytes(manifest.encode())
    random = np.random.default_rng(0)
    total = of_a_shard * rows
    noise = (random.normal(size=(total, 4, hidden)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    lines = []
    for number in range(samples // of_a_shard):
        states = noise.copy()
        if number % BAD_EVERY == 5:
            states[3, 1] = 0
        tensors: dict[str, list[npt.NDArray[Any]]] = {
            "aux_hidden_states": [states[:, :3]], "last_hidden_state": [states[:, 3]],
            "token_ids": [random.integers(0, 160_000, total)], "positions": [np.tile(np.arange(rows), of_a_shard)],
            "sample_offsets": [np.arange(of_a_shard + 1) * rows],
        }  # fmt: skip
        made = tuple(
            Sample(f"{random.integers(1 << 60):015x}-{number * of_a_shard + place:06}", rows - 1, 2, rows, "stop")
            for place in range(of_a_shard)
        )
        parts = encode_parts(
            tensors, [None], dump=directory.name, dtype="BF16", boundaries=BOUNDARIES, samples=made
        )  # fmt: skip
        name = f"shard-TP0-{number:06}.safetensors"
        with (directory / name).open("wb") as file:
            file.writelines(part.data for part in parts)
            size = file.tell()
        rids = tuple(sample.rid for sample in made)
        lines.append(encode_commit(Commit(name, size, total, of_a_shard, "", time.time(), rids)))
    (directory / COMMITS).write_bytes(b"".join(lines))
    return directory


def forget(directory: Path) -> None:
    """Put a directory's files out of the page cache, so that they are read from the disk again."""
    for entry in os.scandir(directory):
        fd = os.open(entry.path, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@contextlib.asynccontextmanager
async def agent(root: Path, home: Path) -> Any:
    """The agent's inspector, with no process yet."""
    inspector = Inspector(Home(home), lambda: [root])
    try:
        yield inspector.methods()
    finally:
        await inspector.close()


async def timed(ask: Ask) -> float:
    """Seconds that an answer takes."""
    began = time.perf_counter()
    await ask()
    return time.perf_counter() - began


async def first_view(root: Path, home: Path, dump: str, *, index: bool, cold: bool) -> float:
    """From the first request of an agent that has no process: start it, open the dump, answer the first page."""
    file = root / dump / FILE
    if not index:
        file.unlink(missing_ok=True)
    if cold:
        forget(root / dump)
    kept = file.read_bytes() if index else b""
    async with agent(root, home) as methods:
        seconds = await timed(partial(methods["samples"], dump=dump, count=60))
    if index and file.read_bytes() != kept:
        raise SystemExit("the index was not used")
    return seconds


async def indexed(methods: dict[str, Callable[..., Awaitable[Any]]], dump: str) -> float:
    """Seconds until every header is in the index, asked for as a screen does, twice a second."""
    began = time.perf_counter()
    while True:
        facts = await methods["samples"](dump=dump, count=60)
        if facts["known"] == facts["shard_count"]:
            return time.perf_counter() - began
        await asyncio.sleep(0.5)


async def measure(root: Path, home: Path, dump: str, repeat: int) -> dict[str, list[float]]:
    """All figures of one dump, in seconds."""
    found: dict[str, list[float]] = {}
    for label, index, cold in (
        ("first view, no index, disk cold", False, True),
        ("first view, no index", False, False),
    ):
        found[label] = [await first_view(root, home, dump, index=index, cold=cold) for _ in range(repeat)]
    async with agent(root, home) as methods:
        (root / dump / FILE).unlink(missing_ok=True)
        found["until all headers are read (the screen is used meanwhile)"] = [await indexed(methods, dump)]
    for label, cold in (("first view, index kept, disk cold", True), ("first view, index kept", False)):
        found[label] = [await first_view(root, home, dump, index=True, cold=cold) for _ in range(repeat)]
    async with agent(root, home) as methods:
        await indexed(methods, dump)
        rid = (await methods["samples"](dump=dump, first=77_000, count=1))["samples"][0]["rid"]
        asks: dict[str, Callable[[int], Ask]] = {
            "page down": lambda turn: partial(methods["samples"], dump=dump, first=100 * turn, count=100),
            "to the end": lambda turn: partial(methods["samples"], dump=dump, first=99_900 - turn, count=100),
            "sort by rows, first time": lambda turn: partial(
                methods["samples"], dump=dump, sort="rows", reverse=bool(turn % 2), count=100),
            "sort by worst, first time": lambda turn: partial(
                methods["samples"], dump=dump, sort="worst", reverse=bool(turn % 2), count=100),
            "search by a whole rid": lambda turn: partial(methods["samples"], dump=dump, search=rid[turn:], count=100),
            "next sample with bad rows": lambda turn: partial(methods["bad_sample"], dump=dump, number=9000 * turn),
        }  # fmt: skip
        for label, ask in asks.items():
            found[label] = [await timed(ask(turn)) for turn in range(repeat)]
    return found


async def measure_rows(root: Path, home: Path, dump: str, repeat: int) -> dict[str, list[float]]:
    """What reads a sample's rows, at real width: 4,096 tokens of 57 kB."""
    found: dict[str, list[float]] = {"open a sample: the first answer": [], "all of its rows are read": []}
    where = {"dump": dump, "shard": "shard-TP0-000000.safetensors", "place": 0}
    for _ in range(repeat):
        async with agent(root, home) as methods:
            await methods["samples"](dump=dump)
            began = time.perf_counter()
            facts = await methods["sample"](**where)
            found["open a sample: the first answer"].append(time.perf_counter() - began)
            while facts["read"] < facts["rows"]:
                facts = await methods["sample"](**where)
            found["all of its rows are read"].append(time.perf_counter() - began)
            found.setdefault("next bad token", []).append(await timed(partial(methods["next_bad"], **where, token=5)))
            found.setdefault("500 tokens", []).append(await timed(partial(methods["tokens"], **where, count=500)))
    return found


async def growth(root: Path, dump: str) -> list[float]:
    """What an index costs that takes up one more commit."""
    index = DumpIndex(root / dump)
    lines, seconds = (root / dump / COMMITS).read_bytes(), []
    for turn in range(5):
        commit = Commit(f"shard-TP1-{turn:06}.safetensors", 1, 1, 1, "", time.time(), (f"new-{turn}",))
        with (root / dump / COMMITS).open("ab") as file:
            file.write(encode_commit(commit))
        began = time.perf_counter()
        index.refresh()
        seconds.append(time.perf_counter() - began)
    (root / dump / COMMITS).write_bytes(lines)
    return seconds


def table(found: dict[str, list[float]]) -> None:
    """Medians and ranges in milliseconds."""
    for label, seconds in found.items():
        times = [1e3 * value for value in seconds]
        print(f"| {label} | {median(times):,.0f} | {min(times):,.0f} – {max(times):,.0f} |")


async def run(root: Path, home: Path, samples: int, repeat: int) -> None:
    """Write the dumps and print their tables."""
    for dump, of_a_shard in (("narrow", 5), ("broad", 1000)):
        write_dump(root / dump, samples, of_a_shard)
        print(f"\n| {samples:,} samples in {samples // of_a_shard:,} shards | ms | range |\n|---|---:|---:|")
        table(await measure(root, home, dump, repeat))
        table({"take up one more commit": await growth(root, dump)})
    write_dump(root / "wide", 1, 1, hidden=7168, rows=4096)
    print("\n| one sample of 4,096 tokens, hidden 7168, 4 layers: 235 MB | ms | range |\n|---|---:|---:|")
    table(await measure_rows(root, home, "wide", repeat))


def main() -> None:
    """Print the machine, the method and the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="where to write the dumps (a temporary directory)")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    print(f"machine  {platform.platform()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    print(f"versions python {platform.python_version()}, numpy {np.__version__}, msgspec {version('msgspec')}")
    print(
        f"method   requests to the agent's inspector, its process started anew for each first view; {args.repeat} runs"
    )
    with tempfile.TemporaryDirectory(dir=args.directory) as name:
        asyncio.run(run(Path(name) / "dumps", Path(name) / "home", args.samples, args.repeat))


if __name__ == "__main__":
    main()
