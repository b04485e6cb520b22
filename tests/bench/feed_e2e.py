"""2,000 conversations from a dataset to a trained drafter, the feeder and its server killed once each on the way.

    flock LOCK .venv/bin/python tests/bench/feed_e2e.py [CONVERSATIONS] [RESULT.json]

Starts the tiny Kimi model with two ranks on the CPU engine in `.engine`, twice. Installs the trainers' packages once.
"""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kimi_console.demo.engine import Engine
from shards.journey import Host, travel
from shards.trainers import install


def main(count: str = "2000", result: str = "") -> None:
    engine = Engine((Path(__file__).parents[2] / ".engine").absolute())
    trainers = install(engine)
    with tempfile.TemporaryDirectory(prefix="kimi-feed-") as work:
        host = Host(Path(work), engine)
        try:
            seen = travel(host, trainers, int(count))
        finally:
            host.close()
    for part, value in seen.items():
        print(f"{part:18} {json.dumps(value)}")
    if result:
        Path(result).write_text(json.dumps(seen, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
