"""Record three hangs of one real server, as the console ships them: recording.py DIRECTORY

The demo's server under the real agent; rank TP1 is stopped while it loads, while the server is idle, and while it is
busy, each time named, then resumed. The second and third begin with the state so far. Paths and the host's name are
those of an example host, so that a recording says nothing about the machine that it was made on.
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
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psutil

from kimi_agent.bundle import ensure_bundle
from kimi_agent.errors import KimiError
from kimi_agent.model.reduce import fold, resume
from kimi_agent.model.state import State
from kimi_agent.paths import Home
from kimi_agent.record.format import SLOW_LEVEL, SUFFIX
from kimi_agent.record.writer import RecordingWriter
from kimi_agent.wire.client import Client
from kimi_agent.wire.codec import decode_event
from kimi_agent.wire.snapshot import snapshot_line
from kimi_console.demo.engine import Engine
from kimi_console.demo.profile import demo_profile, free_port

sys.path.insert(0, str(Path(__file__).parents[1]))

from doctor.test_live import ask

CHECKOUT: Final = Path(__file__).parents[2]
HOST: Final = "gpu-07"
START: Final = 600.0
"""Seconds that a start may take on a crowded machine."""
SHOWN: Final = 12.0
"""Seconds for which a hang is left standing, so that both looks at the stacks are in the recording."""
AROUND: Final = 5.0
"""Seconds before and after a hang."""


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


def hang(client: Client, run: dict[str, Any], name: str) -> None:
    """Stop TP1, wait for its name, leave it so for a while, and let it go on."""
    pid, began = pid_of(run, "TP1"), time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(client, lambda run: bool(run["status"] == "HUNG" and run["verdict"]["rank"] == "TP1"), 10)
        print(f"{name}: named after {time.monotonic() - began:.1f} s", flush=True)
        time.sleep(SHOWN)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(client, lambda run: bool(run["status"] == "READY"), START)
    time.sleep(AROUND)


def three_hangs(client: Client, profile: dict[str, Any], seen: list[bytes]) -> list[int]:
    """Launch and hang three times; how many events there were before each, and at the end."""
    client.request("launch", profile=profile)
    run = wait_for(client, lambda run: bool(run["ranks"]["TP1"]["phase"] == "load weights"), START)
    cuts = [0]
    hang(client, run, "startup")
    cuts.append(len(seen))
    time.sleep(AROUND)
    hang(client, run, "idle")
    cuts.append(len(seen))
    client_of_it = threading.Thread(target=ask, args=(profile["server"]["port"],), daemon=True)
    client_of_it.start()
    time.sleep(AROUND / 2)
    hang(client, run, "busy")
    return [*cuts, len(seen)]


def write(path: Path, lines: list[bytes], before: list[bytes]) -> None:
    """One recording, begun with the state that the lines `before` made."""
    events = [decode_event(line) for line in lines]
    state = State()
    if before:
        state = fold(decode_event(line) for line in before)
        snapshot = snapshot_line(state, state.run.log_lines if state.run else 0, [])
        if snapshot is None:
            raise ValueError("the state is too long for one line")
        events.insert(0, decode_event(snapshot))
        state = State()
    path.unlink(missing_ok=True)
    with closing(RecordingWriter(path, level=SLOW_LEVEL)) as writer:
        for event in events:
            writer.append([event], state)
            state = resume(state, event)
    print(f"{path.name}: {len(events)} events, {path.stat().st_size} bytes", flush=True)


def main(target: Path) -> None:
    engine = Engine((CHECKOUT / ".engine").absolute())
    with tempfile.TemporaryDirectory(prefix="kimi-rec-", ignore_cleanup_errors=True) as directory:
        home = Home(Path(directory))
        env = os.environ | {"PYTHONPATH": str(ensure_bundle())}
        command = [str(engine.python), "-m", "kimi_agent", "serve", "--detach", "--home", str(home.root)]
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        client, watcher = Client(home.socket), Client(home.socket, timeout=None)
        seen: list[bytes] = []
        watcher.request("subscribe", epoch=None, after=0)

        def collect() -> None:
            try:
                seen.extend(watcher.events())
            except KimiError:
                return  # the agent has ended

        threading.Thread(target=collect, daemon=True).start()
        profile = demo_profile(engine, free_port()) | {"name": "Kimi-K2.5"}
        try:
            cuts = three_hangs(client, profile, seen)
        finally:
            client.request("stop")
            client.request("shutdown")
        example = {
            str((CHECKOUT / ".engine").resolve()): "/opt/sglang", str(engine.python.parents[1]): "/opt/sglang",
            str(home.root): "/var/lib/kimi-agent", str(ensure_bundle()): "/opt/kimi-agent", str(CHECKOUT): "/opt/kimi",
            f'"host":"{socket.gethostname()}"': f'"host":"{HOST}"',
        }  # fmt: skip
        lines = [_shown(line, example) for line in seen]
        for name, begin, end in zip(("startup", "idle", "busy"), cuts, cuts[1:], strict=False):
            write(target / f"{name}{SUFFIX}", lines[begin:end], lines[:begin])


def _shown(line: bytes, example: dict[str, str]) -> bytes:
    text = line.decode()
    for found, shown in example.items():
        text = text.replace(found, shown)
    return text.encode()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
