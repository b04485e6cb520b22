"""Large files written past the page cache where the file system can, with their hash taken on the way."""

import errno
import fcntl
import mmap
import os
import queue
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from kimi_capture.format import Array

WINDOW: Final = 16 << 20
"""Bytes of one write: large for the disk, small enough for one a committer."""
SECTOR: Final = 4096
"""What O_DIRECT wants addresses, offsets and lengths to be multiples of; enough for every disk there is."""


class Windows:
    """Page-aligned buffers that are used again. Thread-safe."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[Array] = queue.SimpleQueue()

    def take(self) -> Array:
        """[WINDOW] uint8."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            return np.frombuffer(mmap.mmap(-1, WINDOW), np.uint8)

    def give(self, window: Array) -> None:
        self._free.put(window)


def write_direct(path: Path, buffers: Iterable[Array], windows: Windows) -> tuple[int, str]:
    """Create or replace a file with the buffers ([bytes] uint8) and fsync it; its size and xxh3-64 in hex.

    Raises OSError.
    """
    digest = xxhash.xxh3_64()
    fd = _open(path)
    window = windows.take()
    try:
        offset, fill = 0, 0
        for buffer in buffers:
            rest = buffer
            while rest.size:
                count = min(rest.size, WINDOW - fill)
                window[fill : fill + count] = rest[:count]
                fill, rest = fill + count, rest[count:]
                if fill == WINDOW:
                    digest.update(window.data)
                    offset, fill = _write(fd, window, offset), 0
        digest.update(window[:fill].data)
        whole = -(-fill // SECTOR) * SECTOR
        window[fill:whole] = 0
        _write(fd, window[:whole], offset)
        os.ftruncate(fd, offset + fill)
        os.fsync(fd)
    finally:
        os.close(fd)
        windows.give(window)
    return offset + fill, digest.hexdigest()


def _open(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o644)


def _write(fd: int, data: Array, offset: int) -> int:
    """Write all of it; the offset behind it."""
    rest = data.data
    while rest.nbytes:
        try:
            count = os.pwrite(fd, rest, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not _buffered(fd):
                raise
            continue
        offset, rest = offset + count, rest[count:]
        if rest.nbytes and count % SECTOR:
            _buffered(fd)  # the rest no longer begins where O_DIRECT may write
    return offset


def _buffered(fd: int) -> bool:
    """Go on through the page cache; whether that changed anything."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    return bool(flags & os.O_DIRECT)
