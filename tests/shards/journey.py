"""From a dataset to a trained drafter through a real server: launched, fed, killed, resumed, exported, trained."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kimi_agent.bundle import ensure_bundle
from kimi_agent.shards.samples import Samples
from kimi_capture.format import to_float32
from kimi_console.demo.engine import Engine
from kimi_console.demo.profile import demo_profile, free_port

HERE = Path(__file__).parent
MODEL = "tiny-kimi"
WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "engines",
    "hum",
    "and",
    "tensors",
)
TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
ROOMY = {"--chunked-prefill-size": "512", "--max-total-tokens": "16384"}
"""Of the demo's flags, those that are there to make it slow."""
SLOWLY = ("--concurrency", 1)
"""So that a feed is not done before it is killed."""
STEPS = 50


def conversations(count: int) -> Iterator[dict[str, Any]]:
    """Synthetic ones of one to three turns, each another; every fourth is left to the server to answer."""
    dice = random.Random(11)
    for number in range(count):
        turns = []
        for turn in range(dice.randint(1, 3)):
            asked = " ".join(dice.choices(WORDS, k=dice.randint(2, 10)))
            turns.append({"role": "user", "content": f"{number}.{turn} {asked}"})
            turns.append({"role": "assistant", "content": " ".join(dice.choices(WORDS, k=dice.randint(2, 10)))})
        yield {"messages": turns[:-1] if number % 4 == 0 else turns}


@dataclass
class Host:
    """One agent with a home, a profile and a dump root below a directory."""

    work: Path
    engine: Engine
    clock: dict[str, float] = field(default_factory=dict)
    """Seconds by what took them."""

    def __post_init__(self) -> None:
        self.dumps, self.dump = self.work / "dumps", self.work / "dumps" / "fed"
        self.template = self.work / "template.jinja"
        self.template.write_text(TEMPLATE)
        tables = demo_profile(self.engine, free_port(), self.dumps)
        tables["server"]["model"] = str(self.engine.models / MODEL)
        flags = tables["server"]["flags"]
        for name, value in ROOMY.items():
            flags[flags.index(name) + 1] = value
        self.profile = self.work / "profile.toml"
        self.profile.write_text(_toml(tables))

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "kimi_agent", *map(str, arguments)]

    def run(self, *arguments: object, limit: float = 600) -> subprocess.CompletedProcess[str]:
        """One command of the agent's, to its end."""
        return subprocess.run(
            self.command(*arguments), env=self._env, capture_output=True, text=True, timeout=limit, check=False
        )

    def launch(self) -> None:
        """Start the server and wait until it is READY."""
        done = self.run("run", self.profile, "--until", "ready", "--json")
        assert done.returncode == 0, done.stderr

    def status(self) -> dict[str, Any]:
        run: dict[str, Any] = json.loads(self.run("status", "--json").stdout)["run"]
        return run

    def feed(self, dataset: Path, *more: object, dump: object = None) -> list[dict[str, Any]]:
        """Feed to the end: the JSON lines, the last of which gets `exit` and `stderr`."""
        done = self.run(*self._feed(dataset, dump, *more))
        lines = [json.loads(line) for line in done.stdout.splitlines()] or [{}]
        lines[-1] |= {"exit": done.returncode, "stderr": done.stderr}
        return lines

    @contextmanager
    def feeding(self, dataset: Path, share: float, *more: object) -> Iterator[subprocess.Popen[bytes]]:
        """A feed that has done this share of its pass and goes on."""
        command = self.command(*self._feed(dataset, None, *more))
        process = subprocess.Popen(command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            for line in process.stdout or ():
                told = json.loads(line)
                if told["event"] == "done" or (told["event"] == "progress" and told["done"] >= share * told["of"]):
                    break
            yield process
        finally:
            process.kill()
            process.communicate()

    def kill_server(self, pid: int) -> None:
        """SIGKILL for every process of the server, and wait until the agent knows."""
        os.killpg(pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while self.status()["alive"]:
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def close(self) -> None:
        self.run("stop")
        self.run("stop", "--agent")

    @property
    def _env(self) -> dict[str, str]:
        return os.environ | {"KIMI_AGENT_HOME": str(self.work / "home")}

    def _feed(self, dataset: Path, dump: object, *more: object) -> list[object]:
        given = ["--max-new-tokens", 8, "--chat-template", self.template, *more]
        return ["feed", dataset, "--dump", dump or self.dump, "--json", *given]

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.clock[what] = round(time.monotonic() - began, 1)


def travel(host: Host, trainers: Path, count: int) -> dict[str, Any]:
    """The whole way; what was seen on it. Fails where something is not as it should be."""
    dataset = host.work / "conversations.jsonl"
    dataset.write_text("".join(json.dumps(row) + "\n" for row in conversations(count)))
    seen: dict[str, Any] = {"conversations": count}
    with host.timed("first start"):
        host.launch()
    with host.timed("feed, killed"), host.feeding(dataset, 0.25, *SLOWLY) as process:
        process.kill()
    server = host.status()["pid"]
    with host.timed("feed, its server killed"), host.feeding(dataset, 0.35, *SLOWLY) as process:
        host.kill_server(server)
        out, err = process.communicate(timeout=120)
    ended = json.loads(out.splitlines()[-1])
    seen["after both kills"] = {"exit": process.returncode, "captured": ended["captured"], "missing": ended["missing"]}
    assert process.returncode == 5, err.decode()
    assert 0 < ended["captured"] < count
    with host.timed("second start"):
        host.launch()
    with host.timed("feed, resumed"):
        last = host.feed(dataset)[-1]
    seen["resumed"] = {name: last[name] for name in ("exit", "rows", "captured", "duplicates", "missing", "tokens")}
    assert (last["exit"], last["captured"], last["missing"]) == (0, count, {}), last
    host.run("stop")
    seen |= _verified(host)
    seen |= _exported(host, trainers)
    seen["drafter"] = _trained(host)
    return seen | {"seconds": host.clock}


def _verified(host: Host) -> dict[str, Any]:
    with host.timed("verify"):
        done = host.run("shards", "verify", host.dump, "--model", "--python", host.engine.python, "--json")
    told = json.loads(done.stdout)["dumps"][0]
    assert (done.returncode, told["ok"]) == (0, True), told
    return {"verify": {name: told[name] for name in ("ok", "checked", "bad", "rows", "samples", "bytes")}}


def _exported(host: Host, trainers: Path) -> dict[str, Any]:
    path = os.pathsep.join(map(str, (ensure_bundle(), trainers)))
    env = os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    outs = {name: host.work / name for name in ("specforge", "speculators")}
    told: dict[str, Any] = {}
    for name, out in outs.items():
        command = ["-m", "kimi_agent", "shards", "export", str(host.dump), str(out), "--format", name, "--json"]
        with host.timed(f"export to {name}"):
            done = _engine(host, env, *command)
        told[name] = {key: json.loads(done)[key] for key in ("samples", "tokens", "left_out", "loss_masks", "exact")}
    read = host.work / "read.npz"
    with host.timed("their own loaders"):
        _engine(host, env, str(HERE / "reading.py"), str(read), *(f"{name}={out}" for name, out in outs.items()))
    told["read back"] = _compare(host, read)
    return {"exports": told}


def _compare(host: Host, read: Path) -> dict[str, Any]:
    """Hold what the loaders gave against the dump, value by value."""
    worst = equal = values = 0.0
    with np.load(read) as held:
        for number, rows in enumerate(samples := Samples(host.dump)):
            flat = rows.aux_hidden_states.view(np.int16).reshape(len(rows.token_ids), -1)
            for name, key, wanted in (
                ("specforge", "hidden_state", flat[None]),
                ("specforge", "target", rows.last_hidden_state.view(np.int16)[None]),
                ("specforge", "raw_loss_mask", rows.loss_mask),
                ("specforge", "input_ids", rows.token_ids[None]),
                ("speculators", "hidden_states", flat),
                ("speculators", "loss_mask", rows.loss_mask),
                ("speculators", "input_ids", rows.token_ids),
            ):
                assert np.array_equal(held[f"{name}/{number}/{key}"], wanted), (name, number, key)
            before = to_float32(held[f"speculators/{number}/verifier_last_hidden_states"].view(np.uint16))
            rms = np.sqrt(np.square(before.astype(np.float64)).mean(axis=1))
            assert rows.last_pre_norm_rms is not None
            worst = max(worst, float(np.abs(rms / rows.last_pre_norm_rms - 1).max()))
            equal, values = equal + 1, values + flat.size
    assert equal == len(samples)
    assert worst < 0.01, "the reconstructed states are not of the size that the engine saw"
    return {"samples equal": int(equal), "values": int(values), "worst error of a pre-norm row's rms": round(worst, 5)}


def _trained(host: Host) -> dict[str, float]:
    env = os.environ | {"PYTHONPATH": str(ensure_bundle()), "CUDA_VISIBLE_DEVICES": ""}
    with host.timed(f"{STEPS} steps of training"):
        losses = json.loads(_engine(host, env, str(HERE / "drafting.py"), str(host.dump), str(STEPS)))
    assert len(losses) == STEPS
    first, last = float(np.mean(losses[:5])), float(np.mean(losses[-5:]))
    assert last < 0.9 * first, losses
    return {"steps": STEPS, "loss of the first five": round(first, 4), "of the last five": round(last, 4)}


def _engine(host: Host, env: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [str(host.engine.python), *arguments], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def _toml(tables: dict[str, Any]) -> str:
    lines = [f"name = {json.dumps(tables['name'])}"]
    for section in ("server", "env", "capture", "limits"):
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in tables[section].items())]
    return "\n".join(lines) + "\n"
