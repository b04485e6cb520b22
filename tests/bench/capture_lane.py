"""The real SGLang for the capture benchmark: on a GPU host or on a CPU, with and without the plugin."""

import contextlib
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.capture_bare import WHOLE
from kimi_agent.bundle import ensure_bundle
from kimi_console.demo.profile import free_port

REPOSITORY = Path(__file__).parents[2]
GPU_SHELL = '. .gpu/env.sh && exec python3 -m sglang.launch_server "${GPU_FLAGS[@]}" "$@"'
RAW_MEMORY = 1 << 30
RAW_WINDOW = 8 << 20
START_LIMIT = 420.0
PAUSE = 1.0
"""Seconds before each batch: a GPU that rested is faster, so all rest alike."""
AUX = ["--disable-radix-cache", "--enable-return-aux-hidden-states", "--speculative-algorithm", "EAGLE3"]


@dataclass(frozen=True)
class Lane:
    """Where the engine runs, and how large the work is."""

    name: str
    model: str
    layers: tuple[int, ...]
    flags: tuple[str, ...]
    prompts: int
    rows: int
    """Prompt tokens of a request."""
    together: bool
    """Whether the servers fit beside each other, so that rounds can alternate between them."""
    vocabulary: int = 160_000
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, port: int, flags: tuple[str, ...]) -> list[str]:
        common = [
            "--host", "127.0.0.1", "--port", str(port), *AUX, "--return-aux-hidden-state-layer-ids",
            *map(str, self.layers), *self.flags, *flags,
        ]  # fmt: skip
        if self.name == "gpu":
            return ["bash", "-c", GPU_SHELL, "bash", "--model-path", f".gpu/models/{self.model}", *common]
        engine = REPOSITORY / ".engine"
        model = str(engine / "models" / self.model)
        return [str(engine / "bin/python"), "-m", "sglang.launch_server", "--model-path", model, *common]


def gpu_lane(model: str) -> Lane:
    """One GPU with the packed SGLang in `.gpu`, random weights of Kimi-K2.5's width."""
    small = model == "kimi-8l"
    flags = (
        "--load-format", "dummy", "--skip-tokenizer-init", "--cuda-graph-max-bs-decode", "4",
        "--context-length", "8192", "--max-total-tokens", "140000", "--mem-fraction-static", "0.5" if small else "0.8",
    )  # fmt: skip
    return Lane("gpu", model, (2, 4, 5) if small else (3, 31, 59), flags, 24 if small else 16, 2048, together=small)


def cpu_lane() -> Lane:
    """The CPU engine in `.engine`, a tiny Kimi model."""
    flags = (
        "--device", "cpu", "--attention-backend", "torch_native", "--max-total-tokens", "4096", "--context-length",
        "2048", "--dtype", "bfloat16", "--trust-remote-code",
    )  # fmt: skip
    environment = {
        "SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "SGLANG_NCCL_SO_PATH": "/nonexistent", "SGLANG_CPU_OMP_THREADS_BIND": "0",
        "PYTHONPATH": str(REPOSITORY / ".engine/shims"),
    }  # fmt: skip
    return Lane("cpu", "tiny-kimi25", (2, 3, 4), flags, 4, 64, True, 500, environment)


@dataclass
class Server:
    """A running server, and the plugin's socket if it has one."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    sockets: Path | None
    state: tuple[bool, tuple[str, ...]] = (False, WHOLE)
    """Whether the plugin's hooks are taken out, and what capture does with rows."""

    def bare(self, wanted: bool, parts: tuple[str, ...] = WHOLE) -> None:
        """Take the plugin's hooks out, or put them back; let capture do these parts of its work alone."""
        if (wanted, parts) != self.state:
            self._say("bare.sock", 30.0, {"op": "switch", "bare": wanted, "parts": parts})
            self.state = wanted, parts

    def post(self, path: str, body: bytes, timeout: float = 300.0) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            text: bytes = answer.read()
        return text

    def ask(self, timeout: float = 300.0, **request: Any) -> dict[str, Any]:
        """One request to the plugin."""
        return self._say("cap-*.sock", timeout, request)

    def _say(self, name: str, timeout: float, request: dict[str, Any]) -> dict[str, Any]:
        assert self.sockets is not None
        (path,) = self.sockets.glob(name)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer: dict[str, Any] = json.loads(connection.makefile("rb").readline())
        if not answer["ok"]:
            raise RuntimeError(f"{request} was refused: {answer}")
        return answer

    def stop(self) -> None:
        """End its whole process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


class Fleet:
    """The servers of one run; leaving it ends them."""

    def __init__(self, lane: Lane, root: Path) -> None:
        self.lane = lane
        self.root = root
        self._stack = contextlib.ExitStack()
        self._plugins = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="kimi-bench-")))
        self.control = self._plugins / "control.json"
        self.order("")
        make_plugin(self._plugins / "contenders", "capture_contenders")
        make_plugin(self._plugins / "bare", "capture_bare")

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def order(self, mode: str, directory: Path | None = None) -> None:
        """Tell the contenders' plugin what to do."""
        part = self.control.with_suffix(".part")
        part.write_text(json.dumps({"mode": mode, "directory": str(directory), "rows": self.lane.rows}))
        part.rename(self.control)

    def start(
        self, label: str, *flags: str, plugin: bool = False, contenders: bool = False, **environment: str
    ) -> Server:
        """Start a server; does not wait until it is ready."""
        paths = [str(self._plugins / "contenders")] if contenders else []
        extra = dict(self.lane.environment)
        if self.lane.name == "gpu":
            extra |= {"KIMI_CAPTURE_WAITING_MIB": "4096", "KIMI_CAPTURE_MEMORY_MIB": "16384"}
        sockets = None
        if plugin:
            paths += [str(ensure_bundle()), str(self._plugins / "bare")]
            sockets = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="kimi-")))
            extra |= {"KIMI_CAPTURE_SOCKETS": str(sockets), "KIMI_CAPTURE_RUN": label, "KIMI_CAPTURE_ROOT": "/"}
            extra["BENCH_BARE"] = str(sockets / "bare.sock")
        if contenders:
            extra["BENCH_CONTENDERS"] = str(self.control)
        paths += [extra.pop("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
        extra["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        port, log = free_port(), self.root / f"{label}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.lane.command(port, flags), stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=REPOSITORY,
                start_new_session=True, env=os.environ | extra | environment,
            )  # fmt: skip
        server = Server(process, port, log, sockets)
        self._stack.callback(server.stop)
        return server

    def ready(self, server: Server, limit: float, said: bytes = b"fired up") -> float:
        """Wait until the server's log says so; the seconds that took. Raises RuntimeError when it does not."""
        began = time.monotonic()
        while said not in server.log.read_bytes():
            if server.process.poll() is not None or time.monotonic() - began > limit:
                raise RuntimeError(f"{server.log.stem} did not start:\n" + server.log.read_text()[-3000:])
            threading.Event().wait(0.25)
        return time.monotonic() - began


@dataclass(frozen=True)
class Variant:
    """What a round measures."""

    server: Server
    place: Path | None = None
    """Where it dumps."""
    bare: bool = False
    """Without the plugin, in a server that has it."""
    parts: tuple[str, ...] = WHOLE
    """Of capture's work with the rows."""

    def take_up(self) -> None:
        """Bring the server into this state."""
        self.server.bare(self.bare, self.parts)


def in_turn(variants: dict[str, Variant], number: int) -> Iterator[tuple[str, Variant]]:
    """The variants in another order each round, each brought about when its turn comes."""
    order = list(variants.items())
    first = number % len(order)
    for kind, variant in (*order[first:], *order[:first]):
        variant.take_up()
        yield kind, variant


def make_plugin(directory: Path, name: str) -> None:
    """A module beside this one as a plugin that SGLang finds: with the metadata of a distribution."""
    directory.mkdir()
    shutil.copy(Path(__file__).with_name(f"{name}.py"), directory)
    info = directory / f"{name}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {name}:register\n")


def prefill_body(lane: Lane, tag: str, prompts: int) -> bytes:
    """A batch of prompts without output beyond the first token."""
    source = np.random.default_rng(zlib.crc32(tag.encode()))
    return json.dumps(
        {
            "rid": [f"{tag}-{number:04}" for number in range(prompts)],
            "input_ids": source.integers(3, lane.vocabulary, (prompts, lane.rows)).tolist(),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
        }
    ).encode()


def prefill(server: Server, *bodies: bytes) -> float:
    """Seconds for batches that are asked for at once."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        began = time.perf_counter()
        list(pool.map(partial(server.post, "/generate"), bodies))
        return time.perf_counter() - began


def decode(server: Server, tag: str, tokens: int, streams: int = 4) -> float:
    """Output tokens a second of a few streams with short prompts."""
    body = json.dumps(
        {
            "rid": [f"{tag}-{number}" for number in range(streams)],
            "input_ids": [[7 + number] * 16 for number in range(streams)],
            "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
        }
    ).encode()
    return streams * tokens / prefill(server, body)


@contextlib.contextmanager
def dumping(server: Server, directory: Path) -> Iterator[dict[str, Any]]:
    """A dump around what is inside; afterwards the dict has the plugin's status."""
    result: dict[str, Any] = {}
    server.ask(op="start", dump=directory.name, directory=str(directory))
    yield result
    result |= server.ask(op="stop", drain=60)["status"]


def raw_disk(directory: Path, size: int, threads: int = 6) -> float:
    """Bytes a second that the disk takes: 8 MiB O_DIRECT writes by several threads, each with one fsync at its end.

    Of more memory than processors cache, as rows are: one window written again and again is a fifth faster on a VM.
    """
    directory.mkdir()
    memory = mmap.mmap(-1, RAW_MEMORY)
    part = np.random.default_rng(0).bytes(64 << 20)
    for first in range(0, RAW_MEMORY, len(part)):
        memory[first : first + len(part)] = part
    count = size // threads // RAW_WINDOW + 1

    def write(number: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT
        try:
            fd = os.open(directory / str(number), flags | os.O_DIRECT)
        except OSError:
            fd = os.open(directory / str(number), flags)
        for index in range(count):
            first = (number * count + index) * RAW_WINDOW % RAW_MEMORY
            with memoryview(memory)[first : first + RAW_WINDOW] as window:
                os.pwrite(fd, window, index * RAW_WINDOW)
        os.fsync(fd)
        os.close(fd)

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(threads)))
    rate = threads * count * RAW_WINDOW / (time.perf_counter() - began)
    shutil.rmtree(directory)
    memory.close()
    return rate
