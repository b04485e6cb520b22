"""Dump directories: what is there and what is committed, without opening a shard."""

import os
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from kimi_agent.errors import UsageError
from kimi_agent.host.procfs import starttime
from kimi_agent.text import clean
from kimi_capture.directory import holders
from kimi_capture.format import COMMITS, MANIFEST, Commit, FormatError, Manifest, read_manifest

SEARCH_DEPTH: Final = 3
"""Levels below a root at which dumps are looked for."""
MOST_SAMPLES: Final = 50_000_000
"""A commit that claims more samples than this is damaged."""
T = TypeVar("T")
_commit = msgspec.json.Decoder(Commit)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with one file, and what to do about it."""

    kind: str
    file: str
    text: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.text}. {self.advice}" if self.advice else f"{self.file}: {self.text}"


@dataclass(frozen=True, slots=True)
class Dump:
    """One dump directory as its manifest and its commits describe it."""

    directory: Path
    manifest: Manifest | None
    commits: tuple[Commit, ...]
    problems: tuple[Problem, ...] = ()
    torn: bool = False
    """Whether a crash cut the last commit line; what it named was never reported durable."""

    @property
    def name(self) -> str:
        """The directory's name, by which the dump is found again even after it was copied."""
        return clean(self.directory.resolve().name)

    def summary(self) -> dict[str, Any]:
        """The dump as one row of a list; `time` is the last commit's, or the manifest's."""
        times = [commit.time for commit in self.commits] + [self.manifest.created if self.manifest else 0.0]
        return {
            "dump": self.name,
            "directory": str(self.directory),
            "samples": sum(commit.samples for commit in self.commits),
            "rows": sum(commit.rows for commit in self.commits),
            "shards": len(self.commits),
            "bytes": sum(commit.bytes for commit in self.commits),
            "time": max(times) or None,
            "problems": [clean(str(problem)) for problem in self.problems],
            "writers": [clean(writer) for writer in writers(self.directory)],
        }


def is_dump(directory: Path) -> bool:
    """Whether the directory looks like a dump: it has a manifest or commits."""
    return (directory / MANIFEST).is_file() or (directory / COMMITS).is_file()


def open_dump(directory: Path) -> Dump:
    """Read a dump's manifest and commits; what is damaged becomes a problem of the dump.

    Raises:
        UsageError: the path is not a dump directory.
    """
    _require(directory)
    manifest, problems = _manifest(directory)
    commits, torn, found = _commits(directory)
    return Dump(directory, manifest, tuple(commits), (*problems, *found), torn)


def find_manifest(directory: Path) -> tuple[Manifest | None, list[Problem]]:
    """A dump's manifest, or what is wrong with it.

    Raises:
        UsageError: the path is not a dump directory.
    """
    _require(directory)
    return _manifest(directory)


def writers(directory: Path) -> list[str]:
    """Who writes into a dump, or was killed while it did, in words; nobody once its writers were stopped."""
    found = []
    for holder in holders(directory):
        here = holder.host == socket.gethostname()
        killed = here and (holder.pid is None or starttime(holder.pid) is None)
        found.append(f"{holder} was killed while it wrote" if killed else f"{holder} writes into it")
    return found


def find_dumps(root: Path) -> list[Dump]:
    """The dumps in a directory and below it, by path; the directory itself when it is one.

    Raises:
        UsageError: the path is not a directory.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory", "Give a dump's directory, or the one that dumps are in")
    return [open_dump(directory) for directory in sorted(_dump_directories(root, SEARCH_DEPTH))]


def validated(path: Path, value: T) -> T:
    """A dataclass of `kimi_capture.format` with the types of all its fields checked.

    Raises:
        FormatError: a field has the wrong type.
    """
    try:
        return msgspec.convert(msgspec.to_builtins(value), type(value))
    except msgspec.ValidationError as error:
        raise FormatError(path, f"a field has the wrong type: {error}") from error


def parse_commit(line: bytes) -> Commit | None:
    """A line of commits.jsonl with the types of all its fields checked; None when it is none."""
    try:
        commit = _commit.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    plain = commit.shard not in ("", ".", "..") and "/" not in commit.shard and "\0" not in commit.shard
    sane = 0 <= commit.samples <= MOST_SAMPLES and commit.rows >= 0 and commit.bytes >= 0
    return commit if plain and sane else None


def _require(directory: Path) -> None:
    if not directory.is_dir():
        what = "is a file" if directory.exists() else "does not exist"
        raise UsageError(f"{directory} {what}", "Give the directory of a dump")
    if not is_dump(directory):
        raise UsageError(
            f"{directory} is not a dump: it has no {MANIFEST}", "Give a dump's directory, or the one that dumps are in"
        )


def _dump_directories(directory: Path, depth: int) -> Iterator[Path]:
    if is_dump(directory):
        yield directory
    elif depth:
        try:
            below = [Path(entry.path) for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
        except OSError:  # a directory that may not be read holds no dump of ours
            return
        for child in below:
            yield from _dump_directories(child, depth - 1)


def _manifest(directory: Path) -> tuple[Manifest | None, list[Problem]]:
    try:
        return validated(directory / MANIFEST, read_manifest(directory)), []
    except FileNotFoundError:
        text, advice = "is missing", "Without it nothing says which layers the shards hold; copy it from the host"
    except OSError as error:
        text, advice = f"cannot be read: {error.strerror}", "Check the file's permissions and the disk"
    except FormatError as error:
        text = error.problem
        newer = "version" in text
        advice = "Update kimi-console" if newer else "Copy it again from the host that wrote it"
    return None, [Problem("manifest", MANIFEST, text, advice)]


def _commits(directory: Path) -> tuple[list[Commit], bool, list[Problem]]:
    problems: list[Problem] = []
    try:
        file = directory / COMMITS
        *lines, rest = file.read_bytes().split(b"\n") if file.exists() else [b""]
    except OSError as error:
        advice = "Check the file's permissions and the disk"
        return [], False, [Problem("commits", COMMITS, f"cannot be read: {error.strerror}", advice)]
    found = [parse_commit(line) for line in lines if line]
    names = Counter(commit.shard for commit in found if commit is not None)
    unreadable = sum(1 for commit in found if commit is None)
    good = {commit.shard: commit for commit in found if commit is not None}
    if unreadable:
        text = f"{unreadable} of {len(lines)} lines cannot be read, what they commit is not checked"
        problems.append(Problem("commits", COMMITS, text, "Copy it again from the host that wrote it"))
    for name, count in names.items():
        if count > 1:
            text = f"is committed {count} times"
            problems.append(Problem("duplicate shard", clean(name), text, "Keep one of its lines in commits.jsonl"))
    return list(good.values()), bool(rest), problems
