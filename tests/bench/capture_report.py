"""The capture benchmark's table: what was measured, on which machine, and how it relates."""

import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.capture_lane import Lane
from kimi_capture.format import Commit

MANY = 40
"""Shards from which on their pace in the middle of a dump says something."""
COMPARED = ("none", "none again", "idle", "memory", "disk", "other server")


def table(lane: Lane, numbers: Mapping[str, list[float]], notes: Sequence[str]) -> str:
    """The results as markdown, the method and the machine above them."""
    middle = {name: statistics.median(values) for name, values in numbers.items() if values}
    lines = [*machine(lane), "", "| | median | of the same round without the plugin | spread (min to max) | rounds |"]
    lines.append("|---|---:|---:|---:|---:|")
    for name, values in numbers.items():
        if name.startswith(("check", "warm")) or not values:
            continue
        group = "decode none" if name.startswith("decode") else "none"
        compared = name in COMPARED or name.startswith("decode ")
        ratio = relative(values, numbers.get(group, [])) if compared else ""
        spread = f"{min(values):,.5g} to {max(values):,.5g}"
        lines.append(f"| {name} | {middle[name]:,.5g} | {ratio} | {spread} | {len(values)} |")
    lines += ["", *derived(middle)]
    for name, values in numbers.items():
        if name.startswith("check"):
            lines.append(f"* {name}: {int(sum(values))} of {len(values)}")
    return "\n".join([*lines, *(f"* {note}" for note in notes)]) + "\n"


def relative(values: list[float], base: list[float]) -> str:
    """The median of the rounds' ratios, or of the medians where the rounds were not the same."""
    if not base:
        return "–"
    if len(values) == len(base):
        ratio = statistics.median(one / other for one, other in zip(values, base, strict=True))
    else:
        ratio = statistics.median(values) / statistics.median(base)
    return f"{100 * ratio:.2f} %"


def steady(commits: Sequence[Commit]) -> float:
    """Rows a second from a tenth to nine tenths of a dump's shards, in the order of their times.

    As many are being written at the one end as at the other: what a short round costs until its first rows are there,
    and while its last shards are hashed and synced, is not in it.
    """
    begin, end = len(commits) // 10, len(commits) * 9 // 10
    return sum(commit.rows for commit in commits[begin + 1 : end + 1]) / (commits[end].time - commits[begin].time)


def derived(middle: dict[str, float]) -> list[str]:
    lines = []
    for one, other, text in (
        ("decode none", "decode graphs off", "decode with graphs to without, no capture"),
        ("decode disk", "decode graphs off", "decode with graphs while dumping to decode without graphs"),
        ("sustained durable", "http", "durable tokens a second to return_hidden_states over HTTP"),
        ("disk durable", "http", "durable tokens a second (burst) to return_hidden_states over HTTP"),
        ("disk durable", "torch durable", "durable tokens a second (burst) to torch.save in a pool"),
        ("disk durable", "safetensors durable", "durable tokens a second (burst) to one safetensors file a sample"),
    ):
        if one in middle and other in middle:
            lines.append(f"* {text}: {middle[one] / middle[other]:.4g} times")
    return lines


def machine(lane: Lane) -> list[str]:
    return [
        f"# Capture, {lane.name} lane, {lane.model}",
        "",
        f"{describe()}. {lane.prompts} prompts of {lane.rows} tokens a batch; layers {lane.layers}; "
        "rates are tokens a second.",
        "none/idle/memory/disk: prefill with the plugin's hooks taken out, with it idle, dumping to memory-backed "
        "storage, to disk, rounds interleaved in one server; other server: one that never had the plugin, "
        + ("beside it. " if lane.together else "after it. ")
        + "durable: until every shard is fsynced, renamed and listed; steady: from a tenth of them on to nine tenths.",
    ]  # fmt: skip


def describe() -> str:
    """The machine and the versions in one line."""
    gpu = ""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        gpu = subprocess.run(query, check=False, capture_output=True, text=True).stdout.strip() + ", "
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    names = []
    for name in ("torch", "sglang", "triton", "numpy", "xxhash"):
        try:
            names.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?: ?")
    return (
        f"{time.strftime('%Y-%m-%d')}, {gpu}{os.cpu_count()} × {cpu.split(': ')[1]}, {memory:.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}, {', '.join(names)}"
    )
