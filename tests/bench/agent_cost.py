"""What the agent costs beside a ready server: CPU of one core and memory, with nobody and with one client watching.

    python tests/bench/agent_cost.py [SECONDS]

One real run (the demo's server, two ranks) in the engine's Python; CPU is the agent's own user and system time, with
its children's, over the wall time; memory is the resident set of the agent and its children.
"""

import contextlib
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from kimi_agent import __version__
from kimi_agent.bundle import ensure_bundle
from kimi_agent.errors import KimiError
from kimi_agent.paths import Home
from kimi_agent.wire.client import Client
from kimi_console.demo.engine import Engine
from kimi_console.demo.profile import demo_profile, free_port

CHECKOUT = Path(__file__).parents[2]
READY_LIMIT = 300.0


def cost(agent: psutil.Process, seconds: float) -> tuple[float, float]:
    """(percent of one core, MiB resident) of a process and its children."""

    server = {child.pid for child in agent.children() if "launch_server" in " ".join(child.cmdline())}
    own = [agent, *(child for child in agent.children() if child.pid not in server)]

    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in own)

    before, began = used(), time.monotonic()
    time.sleep(seconds)
    return 100 * (used() - before) / (time.monotonic() - began), sum(p.memory_info().rss for p in own) / 2**20


def watch(home: Home) -> Client:
    """A client that reads every event and throws it away."""
    client = Client(home.socket, timeout=None)
    client.request("subscribe", epoch=None, after=0)

    def read() -> None:
        with contextlib.suppress(KimiError):
            for _ in client.events():
                pass

    threading.Thread(target=read, daemon=True).start()
    return client


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    engine = Engine((CHECKOUT / ".engine").absolute())
    with tempfile.TemporaryDirectory(prefix="kimi-bench-") as directory:
        home = Home(Path(directory))
        subprocess.run(
            [engine.python, "-m", "kimi_agent", "serve", "--detach", "--home", home.root],
            env=os.environ | {"PYTHONPATH": str(ensure_bundle())}, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        client = Client(home.socket)
        agent = psutil.Process(client.hello["pid"])
        rows = [("no run", *cost(agent, seconds))]
        client.request("launch", profile=demo_profile(engine, free_port()))
        try:
            deadline = time.monotonic() + READY_LIMIT
            while client.request("status")["status"] != "READY" and time.monotonic() < deadline:
                time.sleep(1)
            rows.append(("READY, nobody watches", *cost(agent, seconds)))
            watcher = watch(home)
            rows.append(("READY, one console", *cost(agent, seconds)))
            watcher.fileno()
        finally:
            client.request("stop")
            client.request("shutdown")
    print(f"{platform.platform()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"kimi-agent {__version__}, {seconds:.0f} s a row, two ranks")
    print(f"{'':24}{'% of a core':>12}{'MiB':>8}")
    for name, percent, memory in rows:
        print(f"{name:24}{percent:12.2f}{memory:8.1f}")


if __name__ == "__main__":
    main()
