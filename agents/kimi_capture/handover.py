"""Rows handed from one process to another: where they lie in shared memory, or their bytes where they lie elsewhere.

A message is its header's and its tail's length (two little-endian uint64), the header as JSON, and the tail's bytes.
Descriptors of shared memory travel with it.
"""

import json
import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from kimi_capture.format import Array

PREFIX: Final = struct.Struct("<QQ")
MAX_DESCRIPTORS: Final = 64
Place = tuple[int | None, int, str, tuple[int, ...]]
"""Region, None for the tail; first byte there; dtype; shape."""


class Packing:
    """Places of arrays, and the tail that those outside shared memory make up."""

    def __init__(self, locate: Callable[[Array], tuple[int, int] | None]) -> None:
        self.tail: list[Array] = []
        self._locate = locate
        self._size = 0

    def place(self, array: Array) -> Place:
        """Where the receiver finds an array."""
        whole = np.ascontiguousarray(array)
        found = self._locate(whole)
        region, first = found or (None, self._size)
        if found is None:
            self.tail.append(whole)
            self._size += whole.nbytes
        return region, first, whole.dtype.str, whole.shape


class Regions:
    """Shared memory that another process' messages name by number. Thread-safe."""

    def __init__(self) -> None:
        self._maps: list[Array] = []
        self._lock = threading.Lock()

    def add(self, first: int, descriptors: Sequence[int]) -> None:
        """Map those from number `first` on that are not mapped yet, and close them all."""
        for number, fd in enumerate(descriptors, first):
            try:
                with self._lock:
                    if number == len(self._maps):  # one map for all threads: its pages are looked up once
                        self._maps.append(np.frombuffer(mmap.mmap(fd, 0, prot=mmap.PROT_READ), np.uint8))
            finally:
                os.close(fd)

    def array(self, place: Sequence[Any], tail: Array) -> Array:
        """The array at a place, read-only."""
        region, first, dtype, shape = place
        memory = tail if region is None else self._maps[region]
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        found: Array = memory[first : first + size].view(dtype).reshape(shape)
        return found


def send(
    connection: socket.socket, header: dict[str, Any], tail: Sequence[Array] = (), descriptors: Sequence[int] = ()
) -> None:
    """Send one message. Raises OSError."""
    text = json.dumps(header).encode()
    start = PREFIX.pack(len(text), sum(array.nbytes for array in tail)) + text
    sent = socket.send_fds(connection, [start], list(descriptors)) if descriptors else 0
    connection.sendall(memoryview(start)[sent:])
    for array in tail:
        if array.nbytes:
            connection.sendall(array.reshape(-1).view(np.uint8).data)


def receive(connection: socket.socket) -> tuple[dict[str, Any], Array, list[int]] | None:
    """One message: header, tail [bytes] uint8, descriptors; None when the other end is gone. Raises OSError."""
    prefix, descriptors, _, _ = socket.recv_fds(connection, PREFIX.size, MAX_DESCRIPTORS, socket.MSG_WAITALL)
    if len(prefix) < PREFIX.size:
        return None
    length, size = PREFIX.unpack(prefix)
    text, tail = _exactly(connection, length), _exactly(connection, size)
    if text is None or tail is None:
        return None
    header: dict[str, Any] = json.loads(bytes(text))
    return header, np.frombuffer(tail, np.uint8), list(descriptors)


def _exactly(connection: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view.nbytes:
        count = connection.recv_into(view)
        if not count:
            return None
        view = view[count:]
    return data
