"""The other ways to get hidden states out of the same engine, for the benchmark."""

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
from orjson import loads

from bench.capture_lane import Server, prefill, prefill_body

DUMPER_FILTER = r"search('(layers\\.({0})|model\\.norm)\\.output', name or '') is not None"


def http(bench: Any, server: Server, rows: int, rounds: int) -> None:
    """SGLang's own way out: hidden states in the JSON of the answer, the values parsed by the client."""
    for _ in range(rounds):
        body = json.loads(prefill_body(bench.lane, bench.name("http"), 1))
        body["input_ids"] = [body["input_ids"][0][:rows]]
        body["return_hidden_states"] = True
        began = time.perf_counter()
        answer = server.post("/generate", json.dumps(body).encode())
        states = loads(answer)[0]["meta_info"]["hidden_states"]
        seconds = time.perf_counter() - began
        bench.check("http rows", len(np.asarray(states[0])) == rows, f"{len(states[0])} rows of {rows}")
        bench.numbers["http"].append(rows / seconds)
        bench.numbers["http bytes a token"].append(len(answer) / rows)


def contender(bench: Any, server: Server, mode: str, rounds: int) -> None:
    """One file a sample, by a thread pool inside the engine; durable means after a sync of its directory."""
    for number in range(rounds + 1):
        directory = bench.disk / bench.name(mode)
        directory.mkdir()
        (directory / "done").touch()
        body, tokens = (
            prefill_body(bench.lane, directory.name, bench.lane.prompts),
            bench.lane.prompts * bench.lane.rows,
        )
        bench.fleet.order(mode, directory)
        began = time.perf_counter()
        seconds = prefill(server, body)
        while (directory / "done").stat().st_size < bench.lane.prompts:
            if time.perf_counter() - began > 120:
                raise RuntimeError(f"{(directory / 'done').stat().st_size} of {bench.lane.prompts} samples in 120 s")
            time.sleep(0.01)
        written = time.perf_counter() - began
        subprocess.run(["sync", "-f", str(directory)], check=True)
        durable = time.perf_counter() - began
        bench.fleet.order("")
        shutil.rmtree(directory)
        if number:
            bench.numbers[f"{mode} prefill"].append(tokens / seconds)
            bench.numbers[f"{mode} written"].append(tokens / written)
            bench.numbers[f"{mode} durable"].append(tokens / durable)


def dumper(bench: Any, server: Server, place: Path, prompts: int, rounds: int) -> None:
    """SGLang's debug dumper, told to keep only what makes up the same boundaries."""
    expression = DUMPER_FILTER.format("|".join(str(layer - 1) for layer in bench.boundaries))
    for _ in range(rounds + 1):
        server.post("/dumper/configure", json.dumps({"enable": True, "filter": expression}).encode())
        seconds = prefill(server, prefill_body(bench.lane, bench.name("dumper"), prompts))
        server.post("/dumper/configure", json.dumps({"enable": False}).encode())
        size = sum(path.stat().st_size for path in place.rglob("*.pt"))
        bench.check("dumper files", size > 0, "nothing was written")
        bench.numbers["dumper"].append(prompts * bench.lane.rows / seconds)
        bench.numbers["dumper bytes a token"].append(size / prompts / bench.lane.rows)
        shutil.rmtree(place)
        place.mkdir()
    bench.numbers["dumper"].pop(0)
