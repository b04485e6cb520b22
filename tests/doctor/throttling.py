"""A throttled disk, a full file system, a small cgroup: made by root, where the kernel has them."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MEMORY = Path("/sys/fs/cgroup/memory")
BLOCKS = Path("/sys/fs/cgroup/blkio")
LIMIT = "memory.limit_in_bytes"
READS = "blkio.throttle.read_bps_device"


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def need(path: Path, what: str) -> None:
    """Skip the test where this machine does not allow what it needs."""
    if os.geteuid() != 0 or not path.exists():
        pytest.skip(f"this machine allows no {what} ({path}, as root)")


@contextmanager
def cgroup(root: Path, setting: str, value: str) -> Iterator[tuple[str, ...]]:
    """A cgroup with one setting; yields the command prefix that runs something in it."""
    place = root / f"kimi-test-{os.getpid()}"
    place.mkdir()
    try:
        (place / setting).write_text(value)
        yield ("sh", "-c", f'echo $$ > {place / "cgroup.procs"}; exec "$@"', "sh")
    finally:
        for _ in range(100):
            try:
                place.rmdir()
                break
            except OSError:
                subprocess.run(["sleep", "0.1"], check=False)


@contextmanager
def slow_disk(model: Path, rate: int) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """A copy of a model on a disk of its own, and a prefix for which that disk gives `rate` bytes a second."""
    need(BLOCKS / READS, "throttled block device")
    with tempfile.TemporaryDirectory() as directory:
        image, mount = Path(directory) / "disk.img", Path(directory) / "mount"
        mount.mkdir()
        with image.open("wb") as file:
            file.truncate(256 << 20)
        _run("mkfs.ext4", "-q", str(image))
        loop = _run("losetup", "--find", "--show", str(image))
        try:
            _run("mount", loop, str(mount))
            shutil.copytree(model, mount / "model")
            _run("umount", str(mount))
            _run("mount", "-o", "ro,noatime", loop, str(mount))
            number = Path(loop).stat().st_rdev
            with cgroup(BLOCKS, READS, f"{os.major(number)}:{os.minor(number)} {rate}") as prefix:
                yield mount / "model", prefix
        finally:
            subprocess.run(["umount", str(mount)], check=False, capture_output=True)
            _run("losetup", "--detach", loop)


@contextmanager
def full_disk(directory: Path) -> Iterator[Path]:
    """A file system that takes no more files and no more bytes."""
    need(Path("/proc/mounts"), "mount")
    place = directory / "full"
    place.mkdir()
    _run("mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=3", "tmpfs", str(place))
    try:
        (place / "a").write_bytes(b"x" * 65_536)
        (place / "b").touch()
        yield place
    finally:
        _run("umount", "--lazy", str(place))
