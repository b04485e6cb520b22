"""How fast a log is read: `python tests/bench/log_parse.py [MB]` prints machine, versions, method and a table.

Each file is a real start followed by what one kind of server writes for hours; it is read in chunks of 1 MiB and
diagnosed as `kimi-console diagnose FILE` does. The figure is CPU time of the one process, the file's reading included.
"""

import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from kimi_agent import __version__
from kimi_agent.doctor.logfile import diagnose_tracker
from kimi_agent.engine.loads import ThroughputMeter
from kimi_agent.engine.loglines import parse, without_repeats
from kimi_agent.engine.logscan import LogScanner
from kimi_agent.engine.phases import PhaseTracker
from kimi_agent.model.events import Event, LogLines
from kimi_agent.runs.follow import LogFollower
from kimi_agent.runs.secrets import Secrets
from kimi_agent.wire.codec import encode_event

START = Path(__file__).parents[1] / "logs" / "cpu-soft-watchdog.log"
CHUNK = 1 << 20
SECONDS = 60
BATCHES = [
    *(f"[2026-11-29 14:03:01 TP0] Decode batch, #running-req: 48, #token: {120_000 + n}, token usage: 0.39, cuda "
      f"graph: True, gen throughput (token/s): 71.23, #queue-req: 0" for n in range(4)),
    *("[2026-11-29 14:03:01 TP0] Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, token usage: 0.00, "
      "#running-req: 0, #queue-req: 0, cuda graph: False, input throughput (token/s): 12.10" for _ in range(2)),
    *(f'[2026-11-29 14:03:01] INFO:     127.0.0.1:{48760 + n} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
      for n in range(4)),
]  # fmt: skip
NCCL = [f"gpu-07:{41230 + rank}:41999 [{rank}] NCCL INFO Channel {n}/0 : {rank}[{rank}] -> 4[4] via P2P/CUMEM"
        for n in range(8) for rank in range(8)]  # fmt: skip
OTHERS = ["[aiter] type hints mismatch, override to --> mha_fwd(q: torch.Tensor, k: torch.Tensor)",
          "some library prints a line of its own about nothing in particular"]  # fmt: skip
MESSAGES = ["[2026-11-29 14:03:01 TP0] A message of the scheduler that no rule knows and that has to be read in full"]
KINDS = {
    "serving: batch and access lines": BATCHES,
    "the same through compose": [f"sglang-kimi-k2  | {line}" for line in BATCHES],
    "the same through the kubelet": [f"2026-11-29T13:03:01.123456789Z stdout F {line}" for line in BATCHES],
    "NCCL INFO of eight ranks": NCCL,
    "serving, one line in fifty unknown": [*BATCHES * 5, *MESSAGES],
    "other vendors' lines": OTHERS,
    "unknown messages only": MESSAGES,
}


def make(path: Path, lines: list[str], size: int) -> int:
    """Write a log of about `size` bytes; how long it became."""
    block = "".join(f"{line}\n" for line in lines * (1 + CHUNK // sum(map(len, lines)))).encode()
    with path.open("wb") as file:
        file.write(START.read_bytes())
        while file.tell() < size:
            file.write(block)
        return file.tell()


def read(path: Path) -> tuple[float, str]:
    """(CPU seconds, the status word) of one diagnosis."""
    began = time.process_time()
    tracker = PhaseTracker()
    scanner = LogScanner(tracker)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            scanner.feed(chunk)
    scanner.finish()
    status = diagnose_tracker(tracker).status
    return time.process_time() - began, status


def follow(directory: Path, rate: int) -> float:
    """Percent of a core that a supervisor spends on the log of a ready server that writes `rate` lines a second.

    Ten looks a second: read, split, parse what tells something, encode one event.
    """
    path = directory / "growing.log"
    path.write_bytes(START.read_bytes())
    log = LogFollower(path, Secrets(()))
    tracker, meter = PhaseTracker(), ThroughputMeter("r")
    for line in log.read():
        tracker.feed(parse(line))
    lines = (BATCHES * (1 + rate // len(BATCHES)))[:rate]
    spent = 0.0
    for look in range(10 * SECONDS):
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines[look % 10 :: 10])
        began = time.process_time()
        fresh = log.read()
        encode_event(Event(look + 1, 0.0, LogLines("r", 0, tuple(fresh))))
        for parsed in map(parse, without_repeats(fresh)):
            meter.feed(parsed, 0.0)
            tracker.feed(parsed)
        spent += time.process_time() - began
    return 100 * spent / SECONDS


def main(megabytes: int) -> None:
    """Print machine, versions, method and the table."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
          f"Python {platform.python_version()}, kimi-agent {__version__}")  # fmt: skip
    print(f"a real start, then lines of one kind; {megabytes} MB (a tenth for the last two); best of three, CPU time\n")
    print("| log | MB | MB/s | status |")
    print("|---|---:|---:|---|")
    with tempfile.TemporaryDirectory(prefix="kimi-bench-") as directory:
        path = Path(directory) / "server.log"
        for kind, lines in KINDS.items():
            slow = lines in (OTHERS, MESSAGES)
            size = make(path, lines, megabytes * 1_000_000 // (10 if slow else 1))
            spent, status = min(read(path) for _ in range(3))
            print(f"| {kind} | {size / 1e6:.0f} | {size / spent / 1e6:.0f} | {status} |", flush=True)
        print(f"\nfollowing a ready server's log live, ten looks a second, {SECONDS} s\n")
        print("| lines a second | % of a core |\n|---:|---:|")
        for rate in (0, 10, 100, 1000):
            print(f"| {rate} | {follow(Path(directory), rate):.2f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
