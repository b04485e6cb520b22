"""A directory of recordings: a new file when one grows large, the oldest gone when all are too many or too old."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kimi_agent.record.format import SUFFIX

MIB: Final = 1 << 20
DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a shelf keeps."""

    part_bytes: int = 256 * MIB
    """A recording that has grown to this goes on in another file."""
    total_bytes: int = 4096 * MIB
    age: float = 30 * DAY
    """Seconds since a file was last written to."""


class Shelf:
    """Names recordings and lets old ones go."""

    def __init__(self, directory: Path, limits: Limits | None = None) -> None:
        self.directory = directory
        self.limits = limits or Limits()

    def parts(self, name: str) -> list[Path]:
        """The files of one recording, in order."""
        found = [path for path in self.directory.glob(f"{name}*{SUFFIX}") if _name(path) == name]
        return sorted(found, key=_part)

    def current(self, name: str) -> Path:
        """The file to go on writing to: the last part, or the next one when that is full."""
        parts = self.parts(name)
        if not parts:
            return self.directory / f"{name}{SUFFIX}"
        last = parts[-1]
        if last.stat().st_size < self.limits.part_bytes:
            return last
        return self.directory / f"{name}.{_part(last) + 1}{SUFFIX}"

    def prune(self, keep: Path | None = None) -> list[Path]:
        """Remove what is too old, then the oldest until the rest is within the limit; `keep` always stays."""
        files = [(path.stat(), path) for path in self.directory.glob(f"*{SUFFIX}") if path != keep]
        files.sort(key=lambda one: one[0].st_mtime)
        total = sum(stat.st_size for stat, _ in files) + (keep.stat().st_size if keep and keep.exists() else 0)
        gone: list[Path] = []
        for stat, path in files:
            if time.time() - stat.st_mtime < self.limits.age and total <= self.limits.total_bytes:
                break
            for tail in ("", "-wal", "-shm"):
                path.with_name(path.name + tail).unlink(missing_ok=True)
            gone.append(path)
            total -= stat.st_size
        return gone


def _name(path: Path) -> str:
    stem = path.name.removesuffix(SUFFIX)
    head, _, tail = stem.rpartition(".")
    return head if head and tail.isdigit() else stem


def _part(path: Path) -> int:
    tail = path.name.removesuffix(SUFFIX).rpartition(".")[2]
    return int(tail) if _name(path) != path.name.removesuffix(SUFFIX) else 1
