"""Good starts under the doctor's eyes, slow ones among them: how many were called anything but well.

    python tests/bench/good_starts.py [STARTS]

Real servers of two ranks, every second one beside processes that take the processors from it. A start that is called
HUNG or FAILED, or gets a verdict, is a false alarm. Prints a table, and leaves with 1 when there was one.
"""

import asyncio
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
sys.path.insert(0, str(CHECKOUT / "tests"))

from doctor.watching import Launch, watched  # noqa: E402 - the tests' own server
from kimi_console.demo.engine import Engine  # noqa: E402

LIMIT = 400.0


def _spin() -> None:
    while True:
        pass


@contextmanager
def crowded(processes: int) -> Iterator[None]:
    """Processes that compute beside the server."""
    others = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(processes)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()


async def start(engine: Engine, model: str, directory: Path) -> tuple[float, list[str]]:
    """Seconds until READY, and every word and verdict that an operator would have been alarmed by."""
    alarms: list[str] = []
    began = time.monotonic()
    async with watched(engine, directory, Launch(model)) as watch:
        while time.monotonic() - began < LIMIT:
            word, verdict = await watch.look()
            said = f"{word} {verdict.kind} {verdict.rank or ''}".strip()
            if (word in ("HUNG", "FAILED") or verdict.kind != "none") and said not in alarms:
                alarms.append(said)
            if word == "READY":
                return time.monotonic() - began, alarms
            await asyncio.sleep(0.5)
    return LIMIT, [*alarms, "not ready"]


def main() -> None:
    starts = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    engine = Engine((CHECKOUT / ".engine").absolute())
    cores = os.cpu_count() or 1
    print(f"{platform.platform()}, {cores} cores, load {os.getloadavg()[0]:.1f}, sglang 0.5.23, two ranks")
    bad = 0
    for number in range(starts):
        crowd = (0, cores, 2 * cores)[number % 3]
        model = ("tiny-kimi25", "tiny-llama")[number % 2]
        with tempfile.TemporaryDirectory(prefix="kimi-bench-") as directory, crowded(crowd):
            seconds, alarms = asyncio.run(start(engine, model, Path(directory)))
        bad += bool(alarms)
        print(
            f"{number + 1:3} {model:12} {crowd:2} others  {seconds:6.1f} s  {', '.join(alarms) or 'none'}", flush=True
        )
    print(f"{starts} starts, {bad} with an alarm")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
