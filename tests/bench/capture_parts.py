"""Which part of capture costs a live SGLang how much: rounds of prefill in one server with parts of the work left out.

    python tests/bench/capture_parts.py [--lane cpu|gpu] [--model kimi-8l|kimi-61l] [--rounds N] [--limit SECONDS]

`accounts`: the rows are booked and nothing is copied. `copied`: to memory of their own, on the device. `moments`: and
their statistics there. `sent`: copied and brought to the host. `settled`: all of this, in the writer's hands, which
throws them away. `memory` and `disk`: whole, as shards. Rounds alternate, each in another order; ratios are of the same
round.
"""

import argparse
import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / room) for room in ("agents", "console", "tests")]

from bench.capture_bare import COPY, MOMENTS, SEND  # noqa: E402 - the path is set above
from bench.capture_lane import (  # noqa: E402
    PAUSE,
    START_LIMIT,
    Fleet,
    Server,
    Variant,
    cpu_lane,
    dumping,
    gpu_lane,
    in_turn,
    prefill,
    prefill_body,
)
from bench.capture_report import describe, relative  # noqa: E402


def variants(server: Server, disk: Path, memory: Path) -> dict[str, Variant]:
    """Each adds a part to one before."""
    within = partial(Variant, server, memory)
    return {
        "none": Variant(server, bare=True), "none-again": Variant(server, bare=True), "idle": Variant(server),
        "accounts": within(parts=()), "copied": within(parts=(COPY,)), "moments": within(parts=(COPY, MOMENTS)),
        "sent": within(parts=(COPY, SEND)), "settled": within(parts=(COPY, MOMENTS, SEND)),
        "memory": within(), "disk": Variant(server, disk),
    }  # fmt: skip


@contextlib.contextmanager
def dumped(server: Server, directory: Path | None) -> Iterator[dict[str, float]]:
    """A dump around what is inside, if there is to be one; the plugin's microseconds a step afterwards."""
    told: dict[str, float] = {}
    if directory is None:
        yield told
        return
    with dumping(server, directory) as result:
        yield told
    told["hook_us"] = result["hook_us"]
    shutil.rmtree(directory)


def main() -> None:
    """Start, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lane", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--model", choices=("kimi-8l", "kimi-61l"), default="kimi-61l", help="on the gpu lane")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=float, default=540.0, help="seconds after which no further round begins")
    parser.add_argument("--logs", type=Path, help="where the server's log stays")
    given = parser.parse_args()
    lane, began = cpu_lane() if given.lane == "cpu" else gpu_lane(given.model), time.monotonic()
    rates: dict[str, list[float]] = defaultdict(list)
    hooks: dict[str, list[float]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="capture-") as disk,
        tempfile.TemporaryDirectory(prefix="capture-", dir="/dev/shm") as memory,
        Fleet(lane, given.logs or Path(disk)) as fleet,
    ):
        server = fleet.start("plugin", plugin=True)
        print(f"ready after {fleet.ready(server, START_LIMIT):.0f} s", flush=True)
        wanted = variants(server, Path(disk), Path(memory))
        for number in range(-1, given.rounds):
            if time.monotonic() - began > given.limit:
                break
            for kind, variant in in_turn(wanted, number):
                name = f"{kind}-{number + 1:03}"
                body = prefill_body(lane, name, lane.prompts)
                with dumped(server, variant.place and variant.place / name) as told:
                    time.sleep(PAUSE)
                    seconds = prefill(server, body)
                if number >= 0:  # the first round compiles and takes memory
                    rates[kind].append(lane.prompts * lane.rows / seconds)
                    hooks[kind] += told.values()
    print(f"\n{describe()}. {lane.model}, layers {lane.layers}, {lane.prompts} x {lane.rows} tokens a batch.\n")
    print("| | tokens/s | of the same round without the plugin | hook, us a step | rounds |\n|---|---:|---:|---:|---:|")
    for name, values in rates.items():
        hook = f"{statistics.median(hooks[name]):,.0f}" if hooks[name] else "-"
        rate, ratio = statistics.median(values), relative(values, rates["none"])
        print(f"| {name} | {rate:,.0f} | {ratio} | {hook} | {len(values)} |")


if __name__ == "__main__":
    main()
