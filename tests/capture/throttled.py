"""Run by the engine's Python, a dump on a disk that is far too slow: throttled.py DIRECTORY BUDGET RATE TOTAL, in MiB.

Drives a dump as the hooks do, as fast as it can. The files are real; only the time that each takes is the slow disk's.
Prints {"grown_mib", "seconds", "held_back", "committed", "served", "missing"}.
"""

import json
import resource
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch

from kimi_capture.dump import MIB, Dump, Limits
from kimi_capture.format import Array, Manifest, conventions
from kimi_capture.guard import Guard
from kimi_capture.rows import Ledger
from kimi_capture.staging import Stager
from kimi_capture.store import Committer, Store
from kimi_capture.writer import Finished

HIDDEN = 1024
BOUNDARIES = (2, 3, 4)
ROW_BYTES = 4 * HIDDEN * 2 + 16
ROWS = 128


class SlowCommitter(Committer):
    """A committer whose disk takes `rate` bytes a second, one file after the other."""

    rate = 0.0
    disk = threading.Lock()

    def _place(self, name: str, buffers: list[Array]) -> tuple[int, str]:
        with self.disk:
            began = time.monotonic()
            placed = super()._place(name, buffers)
            threading.Event().wait(max(0.0, placed[0] / self.rate - (time.monotonic() - began)))
        return placed


def manifest() -> Manifest:
    return Manifest(
        "d", "run", 0.0, BOUNDARIES, conventions(BOUNDARIES, 0), "bfloat16", HIDDEN, 6, "post", {}, None, "0.5.23",
        "0.1.0", (), {},
    )  # fmt: skip


def main(directory: str, budget: int, rate: int, total: int) -> None:
    SlowCommitter.rate = rate * MIB
    ledger, lock, stager = Ledger(), threading.Condition(), Stager()
    store = Store(
        Path(directory), "TP0", manifest(), start=lambda claim: SlowCommitter(claim.directory, claim.manifest)
    )
    limits = Limits(shard=2 * MIB, waiting=budget * MIB, memory=budget * MIB)
    stager.prepare(limits.arena, len(BOUNDARIES), HIDDEN, "bfloat16")
    dump = Dump(ledger, lock, store, stager=stager, row_bytes=ROW_BYTES, limits=limits, guard=Guard())
    aux, last = torch.randn(ROWS, 3, HIDDEN).bfloat16(), torch.randn(ROWS, HIDDEN).bfloat16()
    tokens = np.arange(ROWS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    for number in range(total * MIB // (ROWS * ROW_BYTES)):
        rid = f"r{number:06}"
        with lock:
            pieces = ledger.step([(rid, 0, ROWS)], dump.refusal())
        if pieces:
            source = {
                "aux_hidden_states": aux, "last_hidden_state": last, "token_ids": torch.from_numpy(tokens),
                "positions": torch.arange(ROWS),
            }  # fmt: skip
            if reason := dump.stage(source, pieces):
                with lock:
                    ledger.shed(rid, reason)
            dump.writer.hold_back()
        with lock:
            done = ledger.finish(rid, ROWS, 1)
        if done:
            dump.put(Finished(rid, ROWS, 1, "length", tokens, done))
    dump.stop(0)
    seconds = time.monotonic() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    status = dump.status()
    print(
        json.dumps(
            {
                "grown_mib": round(grown, 1),
                "seconds": round(seconds, 2),
                "held_back": status["held_back_s"],
                "committed": status["committed"],
                "served": status["served"],
                "missing": status["missing"],
                "errors": status["errors"],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
