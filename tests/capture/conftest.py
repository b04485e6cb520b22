"""A real SGLang server with the plugin in it, on the CPU engine in `.engine`."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kimi_agent.bundle import ensure_bundle
from kimi_agent.host.procfs import run_processes, shm_segments
from kimi_console.demo.profile import free_port

ENGINE = Path(__file__).parents[2] / ".engine"
PYTHON = ENGINE / "bin" / "python"
AGENTS = Path(__file__).parents[2] / "agents"
START_LIMIT = 480.0


def ask(path: Path, request: dict[str, Any], timeout: float = 30.0) -> dict[str, Any]:
    """One request to a plugin's socket, and its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as lines:
            answer: dict[str, Any] = json.loads(lines.readline())
    return answer


@dataclass
class Server:
    """A running server: its HTTP side and the plugin's sockets."""

    process: subprocess.Popen[bytes]
    port: int
    sockets: Path
    root: Path
    log: Path

    def post(self, path: str, body: dict[str, Any], timeout: float = 120.0) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith((b"{", b"[")) else text

    def get(self, path: str, timeout: float = 30.0) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=timeout) as answer:
            return int(answer.status)

    def generate(self, rid: str, prompt: list[int], new: int, **sampling: Any) -> list[int]:
        """The output tokens of one greedy request."""
        answer = self.post(
            "/generate",
            {
                "rid": rid,
                "input_ids": prompt,
                "sampling_params": {"max_new_tokens": new, "temperature": 0, "ignore_eos": True, **sampling},
            },
        )
        return list(answer["output_ids"])

    def generate_all(self, requests: Sequence[tuple[str, list[int], int]]) -> dict[str, list[int]]:
        """Several requests at once; their output tokens by request id."""
        with ThreadPoolExecutor(len(requests)) as pool:
            outputs = pool.map(lambda request: self.generate(*request), requests)
            return {rid: output for (rid, _, _), output in zip(requests, outputs, strict=True)}

    def ranks(self) -> dict[str, Path]:
        """The plugin's socket of every rank."""
        found = {}
        for path in self.sockets.glob("cap-*.sock"):
            found[ask(path, {"op": "status"})["status"]["rank"]] = path
        return found

    def writers(self) -> list[Path]:
        return [path for path in self.ranks().values() if ask(path, {"op": "status"})["status"]["writer"]]

    def start_dump(self, name: str) -> Path:
        """Start a dump on every writer rank; its directory."""
        directory = self.root / name
        for path in self.writers():
            answer = ask(path, {"op": "start", "dump": name, "directory": str(directory)})
            assert answer["ok"], answer
        return directory

    def stop_dump(self, drain: float = 10.0) -> list[dict[str, Any]]:
        """Stop the dump on every writer rank; the `dump` part of their statuses."""
        answers = [ask(path, {"op": "stop", "drain": drain}, drain + 60) for path in self.writers()]
        assert all(answer["ok"] for answer in answers), answers
        return [answer["status"]["dump"] for answer in answers]


def environment(tp: int, sockets: Path, root: Path, shard_mib: int) -> dict[str, str]:
    path = os.pathsep.join(map(str, (ensure_bundle(), ENGINE / "shims")))
    return os.environ | {
        "PYTHONPATH": path,
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "SGLANG_NCCL_SO_PATH": "/nonexistent",
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, range(tp))),
        "KIMI_CAPTURE_SOCKETS": str(sockets),
        "KIMI_CAPTURE_RUN": "test",
        "KIMI_CAPTURE_ROOT": str(root),
        "KIMI_CAPTURE_SHARD_MIB": str(shard_mib),
    }


def by_engine(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """What came of a script of this folder that the engine's Python ran, with the agent's packages."""
    return subprocess.run(
        [PYTHON, Path(__file__).with_name(script), *map(str, arguments)],
        check=False, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(AGENTS), "OMP_NUM_THREADS": "1"} | environment,
    )  # fmt: skip


def wait_ready(server: Server) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        if server.process.poll() is not None or "fired up" in server.log.read_text(errors="replace"):
            break
        time.sleep(0.5)
    text = server.log.read_text(errors="replace")
    assert "fired up" in text, text[-4000:]


def stop(process: subprocess.Popen[bytes], segments: Iterable[str] = ()) -> None:
    """End the server's whole process group, wait for it, and remove the shared memory that a kill makes it leave.

    Args:
        process: the server's main process.
        segments: those that it is known to have had, for one that a test has killed itself.
    """
    left = {*segments, *shm_segments(run_processes(process.pid))}
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    for segment in left:
        Path(segment).unlink(missing_ok=True)


Launch = Callable[..., Server]


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """Start a server: launch(model, tp, layers, *flags, dtype=…). One at a time: a new one ends the last."""
    running: list[subprocess.Popen[bytes]] = []
    segments: set[str] = set()
    sockets = Path(tempfile.mkdtemp(prefix="kimi-"))

    def start(
        model: str,
        tp: int,
        layers: Sequence[int],
        *flags: str,
        dtype: str,
        shard_mib: int = 1,
        root: Path | None = None,
    ) -> Server:
        while running:
            stop(running.pop(), segments)
        for left in sockets.iterdir():
            left.unlink()
        home = tmp_path_factory.mktemp("server")
        port, log, root = free_port(), home / "server.log", root or home / "dumps"
        root.mkdir(exist_ok=True)
        command = [
            str(PYTHON), "-m", "sglang.launch_server", "--model-path", str(ENGINE / "models" / model),
            "--device", "cpu", "--attention-backend", "torch_native", "--host", "127.0.0.1", "--port", str(port),
            "--max-total-tokens", "4096", "--context-length", "2048", "--tp", str(tp), "--dtype", dtype,
            "--enable-return-aux-hidden-states", "--speculative-algorithm", "EAGLE3",
            "--return-aux-hidden-state-layer-ids", *map(str, layers), *flags,
        ]  # fmt: skip
        with log.open("wb") as out:
            running.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    env=environment(tp, sockets, root, shard_mib),
                )
            )
        server = Server(running[0], port, sockets, root, log)
        wait_ready(server)
        segments.update(shm_segments(run_processes(server.process.pid)))
        return server

    yield start
    while running:
        stop(running.pop(), segments)
    for left in sockets.iterdir():
        left.unlink()
    sockets.rmdir()
