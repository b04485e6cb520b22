"""The table of faults: a real dump, one fault at a time, and what `shards verify --model` says of it.

    flock LOCK .venv/bin/python tests/bench/faults.py

Starts the tiny Kimi model on the CPU engine in `.engine` once. Exit 1 when a fault is not caught and named.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from capture import faulting, test_faults


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kimi-faults-") as work:
        verified = test_faults.verify(test_faults.make_dumps(Path(work)), "--model")
    found = test_faults.faults_found(verified)
    print("\n".join(faulting.table(found)))
    print(f"clean dump: {'ok' if verified['clean']['ok'] else 'NOT OK'}")
    named = all(kind in {problem["kind"] for problem in problems} for kind, problems in found.values())
    return 0 if named and verified["clean"]["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
