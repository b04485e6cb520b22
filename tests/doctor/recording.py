"""Record a hang of a real server, as the console ships it: recording.py {start|busy|idle} FILE.ndjson.zst

The demo's server, under the real agent; rank TP1 is stopped, named, resumed. Paths and the host's name are replaced by
those of an example host, so that a recording says nothing about the machine it was made on.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil
import zstandard

from kimi_agent.bundle import ensure_bundle
from kimi_agent.errors import KimiError
from kimi_agent.paths import Home
from kimi_agent.wire.client import Client
from kimi_console.demo.engine import Engine
from kimi_console.demo.profile import demo_profile, free_port

sys.path.insert(0, str(Path(__file__).parents[1]))

from doctor.test_live import ask

CHECKOUT: Final = Path(__file__).parents[2]
HOST: Final = "gpu-07"
SHOWN: Final = 14.0
"""Seconds for which the hang is left standing, so that both looks at the stacks are in the recording."""


def wait_for(client: Client, holds: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
    """Ask for the run until it `holds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run: dict[str, Any] = client.request("status")["run"]
        if holds(run):
            return run
        time.sleep(0.1)
    raise TimeoutError(f"still {run}")


def pid_of(run: dict[str, Any], rank: str) -> int:
    """The process of a rank, by its title."""
    for child in psutil.Process(run["pid"]).children(recursive=True):
        if child.cmdline()[:1] == [f"sglang::scheduler_{rank}"]:
            return int(child.pid)
    raise LookupError(rank)


def hang(client: Client, profile: dict[str, Any], when: str) -> float:
    """Launch, hang, resume; seconds from the stop to the verdict."""
    client.request("launch", profile=profile)
    if when == "start":
        run = wait_for(client, lambda run: bool(run["ranks"]["TP1"]["phase"] == "load weights"), 200)
    else:
        run = wait_for(client, lambda run: bool(run["status"] == "READY"), 200)
        time.sleep(4)
    busy = threading.Event()
    if when == "busy":
        busy.set()
        threading.Thread(target=_keep_busy, args=(profile["server"]["port"], busy), daemon=True).start()
        time.sleep(5)
    pid, began = pid_of(run, "TP1"), time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    wait_for(client, lambda run: bool(run["status"] == "HUNG" and run["verdict"]["rank"] == "TP1"), 10)
    took = time.monotonic() - began
    time.sleep(SHOWN)
    os.kill(pid, signal.SIGCONT)
    wait_for(client, lambda run: bool(run["status"] == "READY"), 120)
    time.sleep(4)
    busy.clear()
    return took


def _keep_busy(port: int, busy: threading.Event) -> None:
    while busy.is_set():
        ask(port)


def main(when: str, target: Path) -> None:
    engine = Engine((CHECKOUT / ".engine").absolute())
    with tempfile.TemporaryDirectory(prefix="kimi-rec-") as directory:
        home = Home(Path(directory))
        env = os.environ | {"PYTHONPATH": str(ensure_bundle())}
        command = [str(engine.python), "-m", "kimi_agent", "serve", "--detach", "--home", str(home.root)]
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        client, watcher = Client(home.socket), Client(home.socket, timeout=None)
        lines: list[bytes] = []
        watcher.request("subscribe", epoch=None, after=0)

        def collect() -> None:
            try:
                lines.extend(watcher.events())
            except KimiError:
                return  # the agent has ended

        for_events = threading.Thread(target=collect, daemon=True)
        for_events.start()
        profile = demo_profile(engine, free_port()) | {"name": "Kimi-K2.5"}
        try:
            print(f"{when}: named after {hang(client, profile, when):.1f} s")
        finally:
            client.request("stop")
            client.request("shutdown")
            for_events.join(20)
        replaced = {
            str(engine.python.parents[1]): "/opt/sglang", str((CHECKOUT / ".engine").resolve()): "/opt/sglang",
            str(home.root): "/var/lib/kimi-agent", str(ensure_bundle()): "/opt/kimi-agent", str(CHECKOUT): "/opt/kimi",
            f'"host":"{socket.gethostname()}"': f'"host":"{HOST}"',
        }  # fmt: skip
        text = "".join(line.decode().rstrip("\n") + "\n" for line in lines)
        for found, shown in replaced.items():
            text = text.replace(found, shown)
        target.write_bytes(zstandard.ZstdCompressor(level=19).compress(text.encode()))
        print(f"{len(lines)} events, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
