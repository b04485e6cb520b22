"""The agent on a GPU host: what it says of a start that compiles and of a GPU that is full, and how fast it feeds.

    . .gpu/env.sh && python3 tests/bench/gpu_host.py [--out DIR] [--prompts N]

The real SGLang packed in `.gpu`, 8 layers of Kimi-K2.5's width with random weights, under the agent as an operator
runs it. On a machine where nothing is compiled yet the first start is the slow one. Recordings stay in DIR.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Any

CHECKOUT = Path(__file__).parents[2]
sys.path[:0] = [str(CHECKOUT / room) for room in ("agents", "console", "tests")]

import numpy as np  # noqa: E402 - the path is set above

from bench.capture_lane import Server as Engine  # noqa: E402
from bench.capture_lane import gpu_lane, prefill, prefill_body  # noqa: E402
from bench.capture_report import describe  # noqa: E402
from kimi_agent.host.gpu import sample_once  # noqa: E402
from kimi_agent.model.reduce import reduce  # noqa: E402
from kimi_agent.model.state import State  # noqa: E402
from kimi_agent.wire.codec import decode_event  # noqa: E402

GIB = 1 << 30
LEFT_FREE = 4 * GIB
"""What the process that fills the GPU leaves: less than the model's weights."""
HOG = """
import sys, torch
free = torch.cuda.mem_get_info()[0]
kept = torch.empty(free - int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("full", flush=True)
sys.stdin.read()
"""
PORT = 31_000


class Host:
    """An agent with a home and one profile a dump root."""

    def __init__(self, work: Path, out: Path) -> None:
        self.work, self.out = work, out
        self._env = os.environ | {"KIMI_AGENT_HOME": str(work / "home"), "PYTHONPATH": os.pathsep.join(
            [str(CHECKOUT / "agents"), os.environ.get("PYTHONPATH", "")])}  # fmt: skip

    def agent(self, *arguments: object, **options: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "kimi_agent", *map(str, arguments)]
        return subprocess.Popen(command, env=self._env, text=True, stdout=subprocess.PIPE, **options)

    def say(self, *arguments: object) -> int:
        """Run one command and show what it says."""
        process = self.agent(*arguments, stderr=subprocess.STDOUT)
        print(f"$ kimi-agent {' '.join(map(str, arguments))}\n{process.communicate()[0].rstrip()}", flush=True)
        return process.returncode

    def profile(self, dumps: Path) -> Path:
        """The lane's model, dumping below `dumps`."""
        lane = gpu_lane("kimi-8l")
        shell = 'printf "%s\\n" "${GPU_FLAGS[@]}"'
        packed = subprocess.check_output(["bash", "-c", f". .gpu/env.sh && {shell}"], cwd=CHECKOUT, text=True).split()
        path = self.work / f"{dumps.name}.toml"
        path.write_text("\n".join([
            'name = "kimi-8l"', "[server]", f'model = "{CHECKOUT}/.gpu/models/kimi-8l"', f'python = "{sys.executable}"',
            f"port = {PORT}", f"flags = {json.dumps([*packed, *lane.flags, '--disable-radix-cache'])}",
            "[capture]", f"layers = {list(lane.layers)}", f'directory = "{dumps}"', "[limits]", "stop_grace = 5",
        ]))  # fmt: skip
        return path

    def launch(self, label: str, profile: Path, *more: str) -> bool:
        """Launch, tell what changes as an operator sees it until READY or the end; whether it is READY."""
        print(f"\n## {label}\n", flush=True)
        state, shown, began = State(), "", time.monotonic()
        run = self.agent("run", profile, "--until", "ready", "--json", "--record", self.out / f"{label}.kimirec", *more)
        for line in run.stdout or ():
            state = reduce(state, decode_event(line.encode()))
            if (now := looks(state)) != shown:
                print(f"{time.monotonic() - began:6.1f} s  {now}{gpus(state)}", flush=True)
                shown = now
        print(f"exit {run.wait()} after {time.monotonic() - began:.0f} s", flush=True)
        if state.run and state.run.verdict and state.run.verdict.kind != "none":
            verdict = state.run.verdict
            print("\n".join([verdict.summary, *verdict.evidence[:12], *(f"→ {line}" for line in verdict.advice)]))
        return state.run is not None and state.run.status == "READY"

    def feed(self, label: str, dump: Path, dataset: Path) -> dict[str, Any]:
        """Feed a dataset into a new dump; what the command said in the end."""
        process = self.agent("feed", dataset, "--dump", dump, "--json", stderr=subprocess.STDOUT)
        lines = process.communicate()[0].splitlines()
        (self.out / f"feed-{label}.ndjson").write_text("\n".join(lines) + "\n")
        found: dict[str, Any] = json.loads(lines[-1])
        return found


def looks(state: State) -> str:
    """The words that change: status, phase, verdict, compilers, and where a bar stands."""
    run = state.run
    if run is None:
        return "no run yet"
    compilers = sorted({name for sample in run.samples for name in sample.compiling})
    bar = f", {run.progress.what} {run.progress.done}/{run.progress.total}" if run.progress else ""
    verdict = f", verdict {run.verdict.kind} ({run.verdict.summary})" if run.verdict else ""
    below = f", below it {' '.join(compilers)}" if compilers else ""
    return f"{run.status}, {run.front}{bar}{below}{verdict}"


def gpus(state: State) -> str:
    """What NVML shows, or why nothing."""
    host = state.host
    if host is None:
        return ""
    return "".join(
        f"  [GPU {gpu.index}: {(gpu.memory_used or 0) / GIB:.1f} GiB, {gpu.utilisation} %, {gpu.power:.0f} W]"
        for gpu in host.gpus
    ) or f"  [{host.no_gpu}]"  # fmt: skip


def write_dataset(path: Path, prompts: int, rows: int) -> int:
    """Prompts of token ids; how many tokens they are."""
    source = np.random.default_rng(3)
    with path.open("w") as file:
        for _ in range(prompts):
            file.write(json.dumps({"input_ids": source.integers(3, 160_000, rows).tolist()}) + "\n")
    return prompts * rows


def feed_rates(host: Host, label: str, dumps: Path, prompts: int) -> None:
    """Feed one dataset twice, with the same work without a dump before, between and after."""
    lane, ids = gpu_lane("kimi-8l"), host.work / "ids.jsonl"
    tokens = write_dataset(ids, prompts, lane.rows)
    engine = Engine(subprocess.Popen(["true"]), PORT, host.work, None)
    numbers = count()

    def alone() -> float:
        return tokens / prefill(engine, prefill_body(lane, f"{label}-{next(numbers)}", prompts))

    alone()
    for name in ("first", "second"):  # the first takes memory and compiles the statistics' kernel
        before, done = alone(), host.feed(f"{label}-{name}", dumps / name, ids)
        after = alone()
        rate = done["tokens"] / done["seconds"]
        print(f"feed to {label}, {name}: {json.dumps(done)}")
        print(f"prefill alone {before:,.0f} before, {after:,.0f} tok/s after; the whole feed until all is durable "
              f"{rate:,.0f} tok/s, {200 * rate / (before + after):.1f} % of it", flush=True)  # fmt: skip
        if name == "first":
            rmtree(dumps / name)
    host.say("status")
    host.say("shards", "stats", dumps / "second")
    rmtree(dumps)


@contextmanager
def full_gpu() -> Iterator[None]:
    """Another process holds nearly all of the GPU."""
    hog = subprocess.Popen(
        [sys.executable, "-c", HOG, str(LEFT_FREE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        if hog.stdout is None or hog.stdout.readline() != "full\n":
            raise RuntimeError("the GPU could not be filled")
        yield
    finally:
        hog.kill()
        hog.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    parser.add_argument("--prompts", type=int, default=240)
    arguments = parser.parse_args()
    if not (CHECKOUT / ".gpu" / "env.sh").exists() or shutil.which("nvidia-smi") is None:
        sys.exit("gpu_host: no .gpu/env.sh or no NVIDIA driver here. Pack SGLang into .gpu; run this on a GPU host.")
    print(describe())
    print(f"NVML: {asyncio.run(sample_once())}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="kimi-gpu-") as work,
        tempfile.TemporaryDirectory(prefix="kimi-gpu-", dir="/dev/shm") as memory,
    ):
        host = Host(Path(work), arguments.out)
        places = {"memory": Path(memory) / "memory", "disk": Path(work) / "disk"}
        try:
            host.say("preflight", host.profile(places["memory"]))
            for start, (label, dumps) in zip(("first-start", "second-start"), places.items(), strict=True):
                if host.launch(start, host.profile(dumps)):
                    feed_rates(host, label, dumps, arguments.prompts)
                host.say("stop")
            with full_gpu():
                host.say("preflight", host.profile(places["disk"]))
                host.launch("full-gpu", host.profile(places["disk"]), "--force")
        finally:
            host.say("stop", "--agent")


if __name__ == "__main__":
    main()
