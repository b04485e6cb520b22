"""Fuzzing what reads untrusted bytes: the wire, the log's reader, recordings. 100,000 cases a target.

    python tests/bench/fuzz.py [CASES] [TARGET ...]

Each target may only return, or raise the error that a person is told. Ends with one line of JSON; exit 1 on a finding,
which is printed with the smallest example.
"""

import json
import sys
import time
import traceback
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import HypothesisException

sys.path.insert(0, str(Path(__file__).parents[1]))

from wire.fuzzing import TARGETS


def main() -> int:
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    found: dict[str, object] = {}
    chosen = settings(
        max_examples=cases, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    unknown = set(sys.argv[2:]) - set(TARGETS)
    if unknown:
        sys.exit(f"no target is called {', '.join(sorted(unknown))}: there are {', '.join(TARGETS)}")
    for name in sys.argv[2:] or TARGETS:
        target = TARGETS[name]
        begun = time.monotonic()
        try:
            chosen(target)()
            outcome = "ok"
        except (Exception, HypothesisException):
            traceback.print_exc()
            outcome = "FOUND"
        found[name] = {"cases": cases, "outcome": outcome, "seconds": round(time.monotonic() - begun, 1)}
        print(name, found[name], file=sys.stderr, flush=True)
    print(json.dumps(found))
    return int(any(one["outcome"] != "ok" for one in found.values()))  # type: ignore[index]


if __name__ == "__main__":
    sys.exit(main())
