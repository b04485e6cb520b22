"""A process with the plugin's control socket and writer but no engine: writing.py SOCKETS ROOT RUN.

Each line on stdin is a request that ended, `RID ROWS`; it is in the dump that was started over the socket.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from kimi_capture.capture import Capture
from kimi_capture.chunk import Rows
from kimi_capture.facts import Facts
from kimi_capture.rows import Piece
from kimi_capture.writer import Finished

HIDDEN = 16
BOUNDARIES = (2, 3)


def facts() -> Facts:
    return Facts(
        rank="TP0", writer=True, model_class="Tiny", boundaries=BOUNDARIES, flag_offset=0, num_layers=6,
        hidden_size=HIDDEN, dtype="bfloat16", sglang="0.5.23", model_path="/nowhere/tiny",
        tokenizer_path="/nowhere/tiny", parallel={"tp": 1}, warnings=(),
    )  # fmt: skip


def finished(rid: str, rows: int) -> Finished:
    source = np.random.default_rng(len(rid))
    tokens = source.integers(0, 500, rows)
    arrays: dict[str, Any] = {
        "aux_hidden_states": source.integers(0x3C00, 0x4100, (rows, len(BOUNDARIES), HIDDEN), dtype=np.uint16),
        "last_hidden_state": source.integers(0x3C00, 0x4100, (rows, HIDDEN), dtype=np.uint16),
        "token_ids": tokens,
        "positions": np.arange(rows),
    }
    return Finished(rid, rows, 1, "length", tokens, [Piece(0, rows, 0, Rows(arrays))])


def main(sockets: str, root: str, run: str) -> None:
    capture = Capture(Path(sockets), run, Path(root))
    capture._facts = facts()  # what on_configured reads off a model
    for line in sys.stdin:
        rid, rows = line.split()
        dump = capture._dump
        assert dump is not None
        with capture._lock:
            capture._ledger.step([(rid, 0, int(rows))], dump.refusal(), dump.writer.rids)
            if capture._ledger.finish(rid, int(rows), 1) is not None:
                dump.put(finished(rid, int(rows)))


if __name__ == "__main__":
    main(*sys.argv[1:])
