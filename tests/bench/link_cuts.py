"""Cuts of the link and deaths of the agent while a log grows by 5,000 lines a second: what is lost, what is doubled.

    python tests/bench/link_cuts.py [CUTS] [AGENT_KILLS] [STALL_SECONDS]

As root: the real sshd stands in a network namespace, whose packets can be dropped. Ends with one line of JSON; exit 1
when an event was lost or doubled, or when a client that stopped reading cost the agent memory or stalled another.
"""

import asyncio
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import stop_agent
from kimi_agent.daemon import connect
from kimi_agent.wire.client import Client
from remote.conftest import Sshd, running_sshd
from remote.storm import FarNetwork, Storm, far_network, storm, talk, whole_lines

RATE = 5000
POINTS = 12
"""Of the agent's memory over the session, told beside its last value."""
SHARES = (("killed", 0.55), ("dropped", 0.25), ("restarted", 0.2))


@contextmanager
def far_host(directory: Path) -> Iterator[tuple[Sshd, FarNetwork]]:
    os.environ["HOME"] = str(directory / "near")
    for name in ("SSH_AUTH_SOCK", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "KIMI_AGENT_HOME"):
        os.environ.pop(name, None)
    with far_network() as network, running_sshd(directory) as sshd:
        sshd.move(network.name, network.address)
        yield sshd, network
    stop_agent(sshd.agent)


def told(weather: Storm) -> dict[str, object]:
    times = {
        kind: {"cuts": len(found), "median_s": round(statistics.median(found), 2), "max_s": round(max(found), 2)}
        for kind, found in weather.back_after.items()
    }
    written, memory = whole_lines(weather.home), weather.memory or [0.0]
    course = [round(memory[len(memory) * part // POINTS], 1) for part in range(POINTS)]
    kept = {"agent_mib": [*course, round(memory[-1], 1)]}
    lines = {"written": written, "missing": written - weather.ledger.lines}
    return {**asdict(weather.ledger), **lines, **kept, "back": times}


def cuts(count: int) -> list[str]:
    kinds = [kind for kind, share in SHARES for _ in range(round(count * share))]
    random.Random(7).shuffle(kinds)
    return kinds


def stalled(sshd: Sshd, seconds: float) -> dict[str, object]:
    """A client that subscribes and reads nothing, beside one that reads on: the agent's memory, the other's delay."""
    weather = Storm(sshd, None, random.Random(1))
    run = talk(weather.home, RATE)
    try:
        reader, lazy = connect(weather.home, start=True), Client(weather.home.socket)
        agent = psutil.Process(reader.hello["pid"])
        lazy.send(b'{"id":1,"method":"subscribe","params":{"epoch":null,"after":0}}\n')
        before, pauses, end = agent.memory_info().rss, [], time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.monotonic()
            reader.request("ping")
            pauses.append(time.monotonic() - begun)
            lazy.send(b'{"id":2,"method":"ping","params":{}}\n' if len(pauses) < 200 else b"")
            time.sleep(0.05)
        return {
            "seconds": seconds, "grown_mib": round((agent.memory_info().rss - before) / 2**20, 1),
            "ping_ms_median": round(1000 * statistics.median(pauses), 1),
            "ping_ms_max": round(1000 * max(pauses), 1),
        }  # fmt: skip
    finally:
        run.kill()
        run.wait(10)


def main() -> int:
    count, kills, seconds = (int(word) for word in [*sys.argv[1:], "200", "50", "60"][:3])
    found: dict[str, Any] = {"machine": f"{platform.platform()}, {os.cpu_count()} cores", "lines_a_second": RATE}
    for name, kinds in (("link", cuts(count)), ("agent", ["agent"] * kills)):
        with tempfile.TemporaryDirectory(prefix="kimi-cuts-") as directory, far_host(Path(directory)) as (sshd, net):
            begun = time.monotonic()
            weather = asyncio.run(storm(sshd, net, kinds, RATE))
            found[name] = {"seconds": round(time.monotonic() - begun), **told(weather)}
            print(name, found[name], file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="kimi-cuts-") as directory, far_host(Path(directory)) as (sshd, _):
        found["stalled"] = stalled(sshd, seconds)
    print(json.dumps(found))
    bad = any(found[name][key] for name in ("link", "agent") for key in ("lost", "doubled", "gaps", "missing", "wrong"))
    return int(bad or found["stalled"]["grown_mib"] > 8)


if __name__ == "__main__":
    sys.exit(main())
