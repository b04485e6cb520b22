"""A model hub on this machine that gives its weights slowly: what `HF_ENDPOINT` may point to."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "a" * 40
CHUNK = 65_536


class _Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, model: Path, rate: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model, self.rate = model, rate


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Hub

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = urlsplit(self.path).path
        if "/resolve/" in path:
            self._file(self.server.model / path.rsplit("/", 1)[1], body=body)
            return
        files = sorted(file for file in self.server.model.iterdir() if file.is_file())
        names = [{"rfilename": file.name, "size": file.stat().st_size} for file in files]
        tree = [{"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "b" * 40} for file in files]
        info = {"id": "kimi/tiny", "sha": COMMIT, "private": False, "siblings": names, "tags": [], "downloads": 0}
        data = json.dumps(tree if "/tree/" in path else info).encode()
        self._head(len(data), {"Content-Type": "application/json"})
        if body:
            self.wfile.write(data)

    def _file(self, file: Path, *, body: bool) -> None:
        if not file.is_file():
            self.send_error(404)
            return
        size = file.stat().st_size
        name = hashlib.sha256(file.name.encode()).hexdigest()
        self._head(size, {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT})
        slow = file.suffix == ".safetensors"
        with file.open("rb") as source, suppress(OSError):
            while body and (data := source.read(CHUNK)):
                self.wfile.write(data)
                time.sleep(CHUNK / self.server.rate if slow else 0)

    def _head(self, length: int, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


@contextmanager
def hub(model: Path, rate: int) -> Iterator[str]:
    """Serve one model's files; `.safetensors` at `rate` bytes a second. Yields the endpoint's URL."""
    server = _Hub(model, rate)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
