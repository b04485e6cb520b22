"""Large files written past the page cache where the file system can, with their hash taken on the way."""

import contextlib
import errno
import fcntl
import mmap
import os
import queue
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from kimi_capture.format import Array

WINDOW: Final = 16 << 20
"""Bytes of one write."""
WRITERS: Final = 6
"""Files written at a time. Were all that are committed, they would end together, and the disk would rest meanwhile."""
HUGE: Final = 2 << 20
"""Bytes of a huge page. A request to a disk takes a few hundred pieces of memory: of small pages, about a megabyte."""
SECTOR: Final = 4096
"""What O_DIRECT wants addresses, offsets and lengths to be multiples of; enough for every disk there is."""


class Windows:
    """Page-aligned buffers, one for each file that may be written at a time: who finds none waits. Thread-safe."""

    def __init__(self) -> None:
        self._free: queue.LifoQueue[Array] = queue.LifoQueue()  # no more of them take memory than are needed
        for _ in range(WRITERS):
            self._free.put(_window())

    @contextlib.contextmanager
    def lend(self) -> Iterator[Array]:
        """[WINDOW] uint8. Blocks until one is free."""
        window = self._free.get()
        try:
            yield window
        finally:
            self._free.put(window)


def write_direct(path: Path, buffers: Iterable[Array], windows: Windows) -> tuple[int, str]:
    """Create or replace a file with the buffers ([bytes] uint8) and fsync it; its size and xxh3-64 in hex.

    Raises OSError.
    """
    fd = _open(path)
    try:
        with windows.lend() as window:
            size, digest = _write_all(fd, buffers, window)
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)
    return size, digest


def _window() -> Array:
    """[WINDOW] uint8 in huge pages where the kernel has them."""
    memory = mmap.mmap(-1, WINDOW + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    window = np.frombuffer(memory, np.uint8)
    first = -window.ctypes.data % HUGE
    return window[first : first + WINDOW]


def _write_all(fd: int, buffers: Iterable[Array], window: Array) -> tuple[int, str]:
    """Write the buffers, and zeros up to a whole sector; their size and xxh3-64 in hex."""
    digest = xxhash.xxh3_64()
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
