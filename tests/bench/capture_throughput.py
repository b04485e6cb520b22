"""What capture costs a live SGLang, and what it delivers, beside the other ways to get hidden states out of it.

    python tests/bench/capture_throughput.py [--lane cpu|gpu] [--model kimi-8l|kimi-61l] [--parts PART ...]
        [--rounds N] [--limit SECONDS] [--out DIR]

Starts the real SGLang by itself: with the plugin, without it, and with decode graphs off (and the contenders' plugin).
Rounds of the variants alternate, each in another order; ratios are of the same round, and medians are shown. Rounds
without the plugin run in the server that has it, its hooks taken out for them: two servers started alike differ by more
than capture costs. A part that fails is named in the table and the rest goes on.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2] / room) for room in ("agents", "console", "tests")]


from bench import capture_others as others  # noqa: E402
from bench.capture_lane import (  # noqa: E402 - the path is set above
    PAUSE,
    START_LIMIT,
    Fleet,
    Lane,
    Server,
    Variant,
    cpu_lane,
    decode,
    dumping,
    gpu_lane,
    in_turn,
    prefill,
    prefill_body,
    raw_disk,
)
from bench.capture_report import MANY, describe, steady, table  # noqa: E402
from bench.disk_meter import DiskMeter  # noqa: E402
from kimi_capture.format import file_xxh3, read_commits, read_shard  # noqa: E402
from kimi_capture.statistics import shard_moments, shard_statistics  # noqa: E402

OTHERS = ("HTTP", "values", "torch", "safetensors", "graphs off", "dumper")
"""Parts that need servers beside the one with the plugin."""
PARTS = ("first start", "sustained", "prefill", "decode", *OTHERS, "a server without the plugin")


class Bench:
    """One run: its servers, what was measured, and the time that is left."""

    def __init__(self, fleet: Fleet, disk: Path, memory: Path, given: argparse.Namespace) -> None:
        self.fleet = fleet
        self.lane: Lane = fleet.lane
        self.disk = disk
        self.memory = memory
        self.out: Path = given.out
        self._rounds: int | None = given.rounds
        self.numbers: dict[str, list[float]] = defaultdict(list)
        self.notes: list[str] = []
        self._began = time.monotonic()
        self._limit: float = given.limit
        self._wanted: list[str] = given.parts
        self._count = 0

    @property
    def left(self) -> float:
        return self._limit - (time.monotonic() - self._began)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:6.1f}s] {text}", flush=True)

    def part(self, name: str, needs: float, run: Callable[[], None]) -> None:
        """Run a part of the benchmark if it is wanted and there is time; a failure is noted and the rest goes on."""
        if name not in self._wanted:
            return
        if self.left < needs:
            self.notes.append(f"{name}: left out, no time")
            return
        self.say(f"{name} …")
        try:
            run()
        except Exception as error:  # whatever one part runs into, the others' numbers count
            self.say(traceback.format_exc())
            self.notes.append(f"{name}: failed: {type(error).__name__}: {error}"[:400])
        self.save()

    def wants(self, *parts: str) -> bool:
        """Whether any of these parts is wanted."""
        return not set(parts).isdisjoint(self._wanted)

    def each_round(self, usual: int, first: int = 0) -> Iterator[int]:
        """The numbers of the rounds, as long as there is time for one like the longest before."""
        rounds, longest = self._rounds or usual, 0.0
        for number in range(first, rounds):
            if self.left < longest:
                self.notes.append(f"{number} of {rounds} rounds: no time for more")
                return
            began = time.monotonic()
            yield number
            longest = max(longest, time.monotonic() - began)

    def save(self) -> str:
        """Write what there is so far; the table."""
        text = table(self.lane, self.numbers, self.notes)
        stem = self.out / f"capture-{self.lane.name}-{self.lane.model}"
        stem.with_suffix(".md").write_text(text)
        stem.with_suffix(".json").write_text(json.dumps({"machine": describe(), **self.numbers}, indent=1) + "\n")
        return text

    def name(self, kind: str) -> str:
        """A name for a dump or a batch that was not used before."""
        self._count += 1
        return f"{kind}-{self._count:04}"

    def first_start(self, server: Server) -> None:
        """A process' first dump takes its host memory and compiles; later ones start at once."""
        for kind in ("first start, seconds", "later start, seconds"):
            directory = self.disk / self.name("start")
            began = time.perf_counter()
            server.ask(op="start", dump=directory.name, directory=str(directory))
            self.numbers[kind].append(time.perf_counter() - began)
            server.ask(op="stop", drain=0)
            shutil.rmtree(directory)

    # Prefill

    def prefill_once(self, kind: str, server: Server, place: Path | None = None, batches: int = 1) -> float:
        """Tokens a second of batches, written to `place` if given; books the durable rate and the plugin's view."""
        name, tokens = self.name(kind), batches * self.lane.prompts * self.lane.rows
        bodies = [prefill_body(self.lane, f"{name}-{number}", self.lane.prompts) for number in range(batches)]
        if place is None:
            time.sleep(PAUSE)
            return tokens / prefill(server, *bodies)
        with dumping(server, place / name) as result:
            time.sleep(PAUSE)
            asked = time.time()
            seconds = prefill(server, *bodies)
        dump = result["dump"]
        self.check(
            f"{kind} dump", dump["committed"] == tokens and not dump["missing"] and not dump["errors"], str(dump)
        )
        commits = sorted(read_commits(place / name)[0], key=lambda commit: commit.time)
        first, last = commits[0].time - asked, commits[-1].time - asked
        self.numbers[f"{kind} first commit, seconds"].append(first)
        self.numbers[f"{kind} last commit, seconds"].append(last)
        self.numbers[f"{kind} durable"].append(tokens / last)
        if len(commits) >= MANY:
            self.numbers[f"{kind} durable, steady"].append(steady(commits))
        self.numbers[f"{kind} held back"].append(dump["held_back_s"] / seconds)
        self.numbers[f"{kind} hook_us"].append(result["hook_us"])
        shutil.rmtree(place / name)
        return tokens / seconds

    def prefill_rounds(self, variants: dict[str, Variant], usual: int) -> None:
        """Alternating rounds of one batch each."""
        for kind, variant in variants.items():
            variant.take_up()
            for _ in range(2):
                self.prefill_once(f"warm-{kind}", variant.server, variant.place)
        for number in self.each_round(usual):
            for kind, variant in in_turn(variants, number):
                self.numbers[kind].append(self.prefill_once(kind, variant.server, variant.place))
            self.say(f"round {number}: " + ", ".join(f"{kind} {self.numbers[kind][-1]:,.0f}" for kind in variants))

    def decode_rounds(self, variants: dict[str, Variant], usual: int, tokens: int) -> None:
        """Alternating rounds of four streams with decode graphs (or without, on the server that has them off)."""
        for number in self.each_round(usual, -1):
            for kind, variant in in_turn(variants, number):
                rate = self.decode_once(kind, variant, tokens)
                if number >= 0:
                    self.numbers[f"decode {kind}"].append(rate)

    def decode_once(self, kind: str, variant: Variant, tokens: int) -> float:
        """Tokens a second of one round; checks a dump's accounts."""
        name, server = self.name(kind), variant.server
        if variant.place is None:
            time.sleep(PAUSE)
            return decode(server, name, tokens)
        with dumping(server, variant.place / name) as result:
            time.sleep(PAUSE)
            rate = decode(server, name, tokens)
        dump = result["dump"]
        whole = dump["committed"] == dump["served"] > 0 and not dump["errors"]
        self.check(f"decode {kind} dump", whole, str(dump))
        self.numbers[f"decode-{kind} hook_us"].append(result["hook_us"])
        shutil.rmtree(variant.place / name)
        return rate

    # The disk

    def sustained(self, server: Server, batches: int, usual: int) -> None:
        """More than the staging memory holds, so that the disk sets the pace; raw writes of as much around each round.

        A disk's pace changes within minutes: a round is held against the mean of the raw writes before and after it.
        At most three quarters of what is free on the disk are written.
        """
        token_bytes = server.ask(op="status")["status"]["hidden_size"] * 2 * (len(self.lane.layers) + 1)
        batch = self.lane.prompts * self.lane.rows * token_bytes
        batches = max(1, min(batches, shutil.disk_usage(self.disk).free * 3 // 4 // batch))
        size, raw = batches * batch, self.numbers["raw disk"]
        self.prefill_once("warm-sustained", server, self.disk)
        raw.append(raw_disk(self.disk / self.name("raw"), size) / token_bytes)
        for _ in self.each_round(usual):
            with DiskMeter() as meter:
                self.prefill_once("sustained", server, self.disk, batches)
            for name, value in meter.told.items():
                self.numbers[f"sustained: the disk's {name}"].append(value)
            raw.append(raw_disk(self.disk / self.name("raw"), size) / token_bytes)
            said = [f"raw {raw[-2]:,.0f} and {raw[-1]:,.0f} tok/s"]
            for durable in ("sustained durable", "sustained durable, steady"):
                if self.numbers.get(durable):
                    self.numbers[f"{durable}, of the raw disk"].append(2 * self.numbers[durable][-1] / sum(raw[-2:]))
                    said.append(f"{durable} {self.numbers[durable][-1]:,.0f}")
            self.say(", ".join(said))

    boundaries: tuple[int, ...] = ()

    # Values

    def values(self, graphs: Server, eager: Server) -> None:
        """The same requests under decode graphs and without: their rows must be equal, bit by bit."""
        dumps = [self.three_requests(server, label) for server, label in ((graphs, "graph"), (eager, "eager"))]
        rows = sum(len(tokens) for _, _, tokens in dumps[0].values())
        self.check("requests", dumps[0].keys() == dumps[1].keys() and len(dumps[0]) == 3, str(dumps[0].keys()))
        equal = sum(
            int((one == other).reshape(len(one), -1).all(axis=1).sum())
            for rid in dumps[0]
            for one, other in [(dumps[0][rid][0], dumps[1][rid][0])]
        )
        for rid, (_, rms, _) in dumps[0].items():
            same = rms is not None and np.isfinite(rms).all() and np.array_equal(rms, dumps[1][rid][1])
            self.check("RMS before the norm is the same under graphs", bool(same), f"{rid}: {rms} {dumps[1][rid][1]}")
        text = graphs.log.read_text(errors="replace")
        replays = text.count("cuda graph: True")
        self.numbers["rows compared"], self.numbers["rows equal"] = [rows], [equal]
        self.notes.append(
            f"values: {equal} of {rows} rows equal bit by bit; log lines with `cuda graph: True`: {replays}"
        )

    def three_requests(self, server: Server, label: str) -> dict[str, tuple[Any, Any, Any]]:
        source = np.random.default_rng(5)
        directory = self.disk / self.name(label)
        with dumping(server, directory):
            for number, length in enumerate((40, 7, 123)):
                sampling = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
                prompt = source.integers(3, self.lane.vocabulary, length).tolist()
                body = {"rid": f"value-{number}", "input_ids": prompt, "sampling_params": sampling}
                server.post("/generate", json.dumps(body).encode())
        found = self.read(directory)
        shutil.rmtree(directory)
        return found

    def read(self, directory: Path) -> dict[str, tuple[Any, Any, Any]]:
        """(states [rows, K+1, H], RMS [rows], tokens) by request; checks hashes, tokens and the device's statistics."""
        found: dict[str, tuple[Any, Any, Any]] = {}
        for commit in read_commits(directory)[0]:
            shard = read_shard(directory / commit.shard)
            self.check("hashes", not shard.corrupt() and file_xxh3(shard.path) == commit.xxh3, commit.shard)
            aux, last = shard.aux_hidden_states, shard.last_hidden_state
            again = shard_statistics(
                shard_moments(aux, last), list(shard.meta.statistics),
                partial(row_of, aux, last),
            )  # fmt: skip
            for name, stored in shard.meta.statistics.items():
                host = again[name]
                same = (stored.non_finite, stored.zero_rows, stored.duplicate_rows, stored.max_abs) == (
                    host.non_finite, host.zero_rows, host.duplicate_rows, host.max_abs
                )  # fmt: skip
                near = abs(stored.rms - host.rms) <= 1e-4 * host.rms
                near &= stored.cosine_before is None or abs(stored.cosine_before - (host.cosine_before or 0)) < 1e-4
                self.check("statistics of the device equal the host's", same and near, f"{name}: {stored} {host}")
            states = np.concatenate([aux, last[:, None]], axis=1)
            for sample, first, end in zip(
                shard.meta.samples, shard.sample_offsets, shard.sample_offsets[1:], strict=False
            ):
                rows = slice(int(first), int(end))
                rms = shard.last_pre_norm_rms
                found[sample.rid] = (
                    states[rows].copy(), None if rms is None else rms[rows].copy(), shard.token_ids[rows].copy()
                )  # fmt: skip
        return found

    def check(self, what: str, good: bool, detail: str) -> None:
        """Count a check; a failed one is noted."""
        self.numbers[f"check {what}"].append(float(good))
        if not good:
            self.notes.append(f"check {what} failed: {detail}"[:600])


def row_of(aux: Any, last: Any, number: int, column: int) -> Any:
    """One row of one boundary."""
    return aux[number, column] if column < aux.shape[1] else last[number]


def together(bench: Bench, quick: bool) -> None:
    """The server with the plugin first; then others beside it."""
    fleet, dumps = bench.fleet, bench.disk / "dumper"
    dumps.mkdir()
    ours = fleet.start("plugin", plugin=True)
    bench.say(f"with the plugin: ready after {fleet.ready(ours, START_LIMIT):.0f} s")
    status = ours.ask(op="status")["status"]
    bench.boundaries = tuple(status["boundaries"])
    bench.say(f"boundaries {bench.boundaries}, {status['warnings']}")
    rounds = 3 if quick else 7
    bench.part("first start", 60, partial(bench.first_start, ours))
    variants = {
        "none": Variant(ours, bare=True), "none again": Variant(ours, bare=True), "idle": Variant(ours),
        "disk": Variant(ours, bench.disk), "memory": Variant(ours, bench.memory),
    }  # fmt: skip
    bench.part("sustained", 70, lambda: bench.sustained(ours, 18, 1 if quick else 2))
    bench.part("prefill", 60, lambda: bench.prefill_rounds(variants, rounds))
    bench.part("decode", 35, lambda: bench.decode_rounds(variants, rounds, 16 if quick else 384))
    ours.bare(False)
    bench.say(f"the plugin's last problem: {ours.ask(op='status')['status']['last_error']}")
    if not bench.wants(*OTHERS):
        return
    if bench.left < 90:
        bench.notes.append("the eager run, and what others do: left out, no time")
        return
    base = fleet.start("base")
    bench.say(f"without the plugin: ready after {fleet.ready(base, START_LIMIT):.0f} s")
    eager_flags = ["--disable-cuda-graph"]
    eager = fleet.start("eager", *eager_flags, plugin=True, contenders=True)
    dumper = fleet.start(
        "dumper", *eager_flags, DUMPER_SERVER_PORT="reuse", DUMPER_NON_INTRUSIVE_MODE="all", DUMPER_DIR=str(dumps)
    )
    bench.part("HTTP", 15, lambda: others.http(bench, base, bench.lane.rows // 4, 2))
    bench.say(f"eager: ready after {fleet.ready(eager, START_LIMIT):.0f} s")
    bench.part("values", 15, lambda: bench.values(ours, eager))
    for mode in ("torch", "safetensors"):
        bench.part(mode, 25, partial(others.contender, bench, eager, mode, 2))
    bench.part("graphs off", 10, lambda: bench.decode_rounds({"graphs off": Variant(eager)}, 2, 16 if quick else 64))
    bench.say(f"dumper: ready after {fleet.ready(dumper, START_LIMIT):.0f} s more")
    bench.part("dumper", 30, lambda: others.dumper(bench, dumper, dumps, bench.lane.prompts // 3 or 1, 1))


def apart(bench: Bench, quick: bool) -> None:
    """Only one server fits: another that never had the plugin comes after it."""
    fleet, rounds = bench.fleet, 3 if quick else 5
    tokens = 16 if quick else 128
    ours = fleet.start("plugin", plugin=True)
    bench.say(f"with the plugin: ready after {fleet.ready(ours, START_LIMIT):.0f} s")
    bench.boundaries = tuple(ours.ask(op="status")["status"]["boundaries"])
    variants = {
        "none": Variant(ours, bare=True), "none again": Variant(ours, bare=True), "idle": Variant(ours),
        "disk": Variant(ours, bench.disk),
    }  # fmt: skip
    bench.part("prefill", 60, lambda: bench.prefill_rounds(variants | {"memory": Variant(ours, bench.memory)}, rounds))
    bench.part("decode", 40, lambda: bench.decode_rounds(variants, rounds, tokens))
    ours.bare(False)
    bench.part("sustained", 60, lambda: bench.sustained(ours, 2, 1))
    bench.part("HTTP", 30, lambda: others.http(bench, ours, bench.lane.rows // 4, 1))
    ours.stop()

    def without() -> None:
        base = fleet.start("base")
        bench.say(f"without the plugin: ready after {fleet.ready(base, START_LIMIT):.0f} s")
        bench.prefill_rounds({"other server": Variant(base)}, rounds)
        bench.decode_rounds({"other server": Variant(base)}, rounds, tokens)
        base.stop()

    bench.part("a server without the plugin", 150, without)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lane", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--model", choices=("kimi-8l", "kimi-61l"), default="kimi-8l", help="on the gpu lane")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, help="of each part; default: what fits a lease of ten minutes")
    parser.add_argument("--limit", type=float, default=560.0, help="seconds after which no further part begins")
    parser.add_argument("--disk", type=Path, help="where to dump; default: the directory for temporary files")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    parser.add_argument("--logs", type=Path, help="where the servers' logs stay")
    arguments = parser.parse_args()
    lane = cpu_lane() if arguments.lane == "cpu" else gpu_lane(arguments.model)
    with (
        tempfile.TemporaryDirectory(prefix="capture-", dir=arguments.disk) as disk,
        tempfile.TemporaryDirectory(prefix="capture-", dir="/dev/shm") as memory,
        Fleet(lane, arguments.logs or Path(disk)) as fleet,
    ):
        bench = Bench(fleet, Path(disk), Path(memory), arguments)
        try:
            (together if lane.together else apart)(bench, lane.name == "cpu")
        finally:
            print(bench.save(), flush=True)


if __name__ == "__main__":
    main()
