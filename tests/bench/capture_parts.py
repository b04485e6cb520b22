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
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / room) for room in ("agents", "console", "tests")]

from bench.capture_bare import COPY, MOMENTS, SEND, WHOLE  # noqa: E402 - the path is set above
from bench.capture_lane import Fleet, Server, cpu_lane, dumping, gpu_lane, prefill, prefill_body  # noqa: E402
from bench.capture_report import describe, relative  # noqa: E402

PAUSE = 1.0
"""Seconds before each batch: a GPU that rested is faster, so all rest alike."""
START_LIMIT = 420.0


@dataclass(frozen=True)
class Kind:
    """What is done in a round."""

    name: str
    place: Path | None = None
    """Where it dumps, if it does."""
    parts: tuple[str, ...] = WHOLE
    bare: bool = False


def kinds(disk: Path, memory: Path) -> list[Kind]:
    """Each adds a part to one before."""
    return [
        Kind("none", bare=True), Kind("none again", bare=True), Kind("idle"), Kind("accounts", memory, ()),
        Kind("copied", memory, (COPY,)), Kind("moments", memory, (COPY, MOMENTS)), Kind("sent", memory, (COPY, SEND)),
        Kind("settled", memory, (COPY, MOMENTS, SEND)), Kind("memory", memory), Kind("disk", disk),
    ]  # fmt: skip


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
        wanted = kinds(Path(disk), Path(memory))
        for number in range(-1, given.rounds):
            if time.monotonic() - began > given.limit:
                break
            for kind in (*wanted[number % len(wanted) :], *wanted[: number % len(wanted)]):
                server.bare(kind.bare, kind.parts)
                name = f"{kind.name.replace(' ', '-')}-{number + 1:03}"
                body = prefill_body(lane, name, lane.prompts)
                with dumped(server, kind.place and kind.place / name) as told:
                    time.sleep(PAUSE)
                    seconds = prefill(server, body)
                if number >= 0:  # the first round compiles and takes memory
                    rates[kind.name].append(lane.prompts * lane.rows / seconds)
                    hooks[kind.name] += told.values()
    print(f"\n{describe()}. {lane.model}, layers {lane.layers}, {lane.prompts} x {lane.rows} tokens a batch.\n")
    print("| | tokens/s | of the same round without the plugin | hook, us a step | rounds |\n|---|---:|---:|---:|---:|")
    for name, values in rates.items():
        hook = f"{statistics.median(hooks[name]):,.0f}" if hooks[name] else "-"
        rate, ratio = statistics.median(values), relative(values, rates["none"])
        print(f"| {name} | {rate:,.0f} | {ratio} | {hook} | {len(values)} |")


if __name__ == "__main__":
    main()
