"""Commits in a process of its own: SGLang's loop spins on the interpreter's lock, and writers in its process starve.

The rows stay where they are, in shared memory; a message says where. The process ends when its dump does, or when the
engine's process does: then it still commits what it has, and holds the dump's locks until that is done.
"""

import contextlib
import errno
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from kimi_capture.arena import Arena
from kimi_capture.claim import Claim
from kimi_capture.format import Array, Commit, Sample, SelfCheck, read_manifest
from kimi_capture.handover import Packing, Regions, receive, send
from kimi_capture.store import COMMITTERS, Committer, Parts

PATIENCE: Final = 10.0
"""Seconds that the process gets to end by itself."""
STARTING: Final = 60.0
"""Seconds that it gets to start: its libraries may come from a slow disk."""


class Scribe:
    """The engine's end: one connection for each shard that is written at a time."""

    def __init__(self, arena: Arena, claim: Claim) -> None:
        """Start the process for a claimed directory, and wait until it can write. Raises OSError."""
        self._arena = arena
        self._known: dict[int, int] = {}
        """By connection, how many of the arena's regions its other end has."""
        self._idle: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        pairs = [socket.socketpair() for _ in range(COMMITTERS)]
        theirs = [str(there.fileno()) for _, there in pairs]
        paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kimi_capture.scribe", claim.directory, *theirs],
                stdin=subprocess.DEVNULL, pass_fds=[*map(int, theirs), *claim.descriptors],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip
        finally:
            for here, there in pairs:
                there.close()
                self._idle.put(here)
        self._await(pairs[0][0])

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def commit(
        self, name: str, parts: Parts, samples: tuple[Sample, ...], moments: Sequence[Array | None],
        self_check: SelfCheck | None,
    ) -> Commit:  # fmt: skip
        """See `Committing`. Raises OSError, also when the process is gone."""
        packing = Packing(self._arena.locate)
        header = {
            "name": name,
            "parts": {tensor: [packing.place(part) for part in pieces] for tensor, pieces in parts.items()},
            "samples": [asdict(sample) for sample in samples],
            "moments": [None if part is None else packing.place(part) for part in moments],
            "self_check": self_check and asdict(self_check),
        }
        connection = self._idle.get()
        try:
            answer = self._ask(connection, header, packing.tail)
        finally:
            self._idle.put(connection)
        if "errno" in answer:
            raise OSError(answer["errno"], answer["problem"])
        if "problem" in answer:
            raise ValueError(answer["problem"])
        return Commit(**answer["commit"] | {"rids": tuple(answer["commit"]["rids"])})

    def close(self) -> None:
        """End the process; what it was told to commit is committed."""
        for _ in range(COMMITTERS):
            self._idle.get().close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _await(self, connection: socket.socket) -> None:
        """Wait until the process says that it is ready. Raises OSError, and ends it, when it does not."""
        connection.settimeout(STARTING)
        try:
            self._listen(connection)
        except OSError:
            self._process.kill()
            self.close()
            raise
        connection.settimeout(None)

    def _ask(self, connection: socket.socket, header: dict[str, Any], tail: list[Array]) -> dict[str, Any]:
        regions = self._arena.regions
        known = self._known.get(connection.fileno(), 0)
        fresh = [region.fd for region in regions[known:]]
        with contextlib.suppress(OSError):  # whose end is found out by listening
            send(connection, header | {"known": known}, tail, fresh)
            self._known[connection.fileno()] = known + len(fresh)
        return self._listen(connection)

    def _listen(self, connection: socket.socket) -> dict[str, Any]:
        try:
            message = receive(connection)
        except OSError:
            message = None
        if message is None:
            raise OSError(errno.EPIPE, f"the process that writes shards, {self.pid}, {self._fate()}")
        return message[0]

    def _fate(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(PATIENCE)
            return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return "does not answer"


def serve(connection: socket.socket, committer: Committer, regions: Regions) -> None:
    """The other end of one connection: commit what it asks for until it is closed."""
    with contextlib.suppress(ConnectionError):  # the engine's process is gone: what it asked for is done all the same
        while (message := receive(connection)) is not None:
            header, tail, descriptors = message
            regions.add(header["known"], descriptors)
            send(connection, answer(header, tail, regions, committer))


def answer(header: dict[str, Any], tail: Array, regions: Regions, committer: Committer) -> dict[str, Any]:
    """Commit one shard; what came of it."""
    parts = {name: [regions.array(place, tail) for place in pieces] for name, pieces in header["parts"].items()}
    moments = [None if place is None else regions.array(place, tail) for place in header["moments"]]
    samples = tuple(Sample(**sample) for sample in header["samples"])
    check = header["self_check"] and SelfCheck(**header["self_check"])
    try:
        commit = committer.commit(header["name"], parts, samples, moments, check)
    except OSError as error:
        return {"errno": error.errno or errno.EIO, "problem": error.strerror or str(error)}
    except ValueError as error:
        return {"problem": str(error)}
    return {"commit": asdict(commit)}


def main(directory: str, *descriptors: str) -> None:
    """Serve the connections until all are closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine decides when the dump ends
    committer, regions = Committer(Path(directory), read_manifest(Path(directory))), Regions()
    connections = [socket.socket(fileno=int(fd)) for fd in descriptors]
    send(connections[0], {"ready": os.getpid()})
    threads = [threading.Thread(target=serve, args=(connection, committer, regions)) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0)  # all is durable: nothing is left to tidy up, least of all gigabytes of maps


if __name__ == "__main__":
    main(*sys.argv[1:])
