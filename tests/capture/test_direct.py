"""Files written past the page cache: a few at a time, so that the disk is busy while others are hashed or synced."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import xxhash

from kimi_capture.direct import WINDOW, WRITERS, Windows, write_direct


@pytest.mark.parametrize("sizes", [(), (1,), (4096, 4096), (WINDOW - 1, 2), (100, WINDOW, 5 << 20, 7)])
def test_a_file_has_the_bytes_and_the_hash_of_its_buffers(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    source = np.random.default_rng(0)
    buffers = [source.integers(0, 256, size, np.uint8) for size in sizes]
    whole = b"".join(buffer.tobytes() for buffer in buffers)
    assert write_direct(tmp_path / "f", buffers, Windows()) == (len(whole), xxhash.xxh3_64_hexdigest(whole))
    assert (tmp_path / "f").read_bytes() == whole


def test_while_files_are_synced_others_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, syncing, all_sync = os.fsync, threading.Semaphore(0), threading.Event()

    def held(fd: int) -> None:
        syncing.release()
        assert all_sync.wait(30)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", held)
    windows, buffers, files = Windows(), [np.zeros(5000, np.uint8)], 2 * WRITERS
    with ThreadPoolExecutor(files) as pool:
        written = [pool.submit(write_direct, tmp_path / str(number), buffers, windows) for number in range(files)]
        for _ in range(files):
            assert syncing.acquire(timeout=30), "a file waits for another's fsync"
        all_sync.set()
        assert {future.result()[0] for future in written} == {5000}


def test_no_more_files_are_written_at_a_time_than_the_disk_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, writing, go_on = os.pwrite, threading.Semaphore(0), threading.Event()

    def held(fd: int, data: memoryview, offset: int) -> int:
        writing.release()
        assert go_on.wait(30)
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", held)
    windows, buffers, files = Windows(), [np.zeros(5000, np.uint8)], 3 * WRITERS
    with ThreadPoolExecutor(files) as pool:
        written = [pool.submit(write_direct, tmp_path / str(number), buffers, windows) for number in range(files)]
        for _ in range(WRITERS):
            assert writing.acquire(timeout=30)
        one_more = writing.acquire(timeout=0.5)
        go_on.set()
        assert {future.result()[0] for future in written} == {5000}
    assert not one_more


def test_a_file_that_cannot_be_written_lets_the_next_one_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows, buffers, pwrite = Windows(), [np.zeros(5000, np.uint8)], os.pwrite

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for number in range(WRITERS):
        with pytest.raises(OSError, match="No space left"):
            write_direct(tmp_path / str(number), buffers, windows)
    monkeypatch.setattr(os, "pwrite", pwrite)
    assert write_direct(tmp_path / "next", buffers, windows)[0] == 5000
