"""Host memory for rows, taken once and used again: a first-fit allocator over a few large regions.

The regions are shared memory without a name, so that the process that writes the shards reads the rows where they are.
One thread takes; memory comes back by itself, from whatever thread, when the last user of an extent lets go of it.
"""

import mmap
import os
import queue
from typing import TYPE_CHECKING, Final

from kimi_capture.format import Array

if TYPE_CHECKING:
    import torch

PAGE: Final = 4096


class Region:
    """Shared memory that goes with the last process that has it."""

    def __init__(self, size: int) -> None:
        """Raises OSError when the kernel has not that much."""
        import torch  # noqa: PLC0415 - the writer of shards works without it

        self.fd = os.memfd_create("kimi-capture", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        self.memory: torch.Tensor = torch.frombuffer(mmap.mmap(self.fd, size), dtype=torch.uint8)
        """[bytes] uint8."""
        self.first: int = self.memory.data_ptr()


class Extent:
    """A piece of a region. Freed when nothing refers to it any more."""

    __slots__ = ("_returned", "_where", "memory")

    def __init__(
        self, memory: "torch.Tensor", where: tuple[int, int, int], returned: "queue.SimpleQueue[tuple[int, int, int]]"
    ) -> None:
        self.memory = memory
        """[bytes] uint8."""
        self._where = where
        self._returned = returned

    def __del__(self) -> None:
        self._returned.put(self._where)  # the one queue whose put may run inside any other call


class Arena:
    """Regions of host memory. `take`, `wait` and `add` are for one thread at a time, `locate` for any."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes of all regions."""
        self.regions: list[Region] = []
        """They stay for the life of the process."""
        self._free: list[list[tuple[int, int]]] = []
        """For each region its free ranges (start, end), in order, none next to another."""
        self._returned: queue.SimpleQueue[tuple[int, int, int]] = queue.SimpleQueue()

    def add(self, region: Region) -> None:
        """Take over a region."""
        self._free.append([(0, len(region.memory) // PAGE * PAGE)])
        self.regions.append(region)
        self.size += len(region.memory)

    def locate(self, array: Array) -> tuple[int, int] | None:
        """In which region a contiguous array lies, and its first byte there; None when it lies elsewhere."""
        address: int = array.__array_interface__["data"][0]
        for number, region in enumerate(self.regions):
            if region.first <= address and address + array.nbytes <= region.first + len(region.memory):
                return number, address - region.first
        return None

    def take(self, size: int) -> Extent | None:
        """`size` bytes that begin at a page, or None when no region has that much in one piece."""
        while not self._returned.empty():
            self._give(*self._returned.get())
        need = -(-size // PAGE) * PAGE
        for number, ranges in enumerate(self._free):
            for index, (start, end) in enumerate(ranges):
                if end - start >= need:
                    ranges[index : index + 1] = [(start + need, end)] if end - start > need else []
                    memory = self.regions[number].memory[start : start + size]
                    return Extent(memory, (number, start, start + need), self._returned)
        return None

    def wait(self, seconds: float) -> bool:
        """Block until memory came back, at most so long; whether some did."""
        try:
            self._give(*self._returned.get(timeout=seconds))
        except queue.Empty:
            return False
        return True

    def _give(self, number: int, start: int, end: int) -> None:
        ranges = sorted([*self._free[number], (start, end)])
        merged = ranges[:1]
        for first, last in ranges[1:]:
            if first == merged[-1][1]:
                merged[-1] = (merged[-1][0], last)
            else:
                merged.append((first, last))
        self._free[number] = merged
