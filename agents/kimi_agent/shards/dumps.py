"""Dump directories: what is there and what is committed, without opening a shard."""

import json
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
from kimi_capture.format import COMMITS, MANIFEST, Commit, FormatError, Manifest, read_commits, read_manifest

SEARCH_DEPTH: Final = 3
"""Levels below a root at which dumps are looked for."""
T = TypeVar("T")


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
    if not directory.is_dir():
        what = "is a file" if directory.exists() else "does not exist"
        raise UsageError(f"{directory} {what}", "Give the directory of a dump")
    if not is_dump(directory):
        raise UsageError(
            f"{directory} is not a dump: it has no {MANIFEST}", "Give a dump's directory, or the one that dumps are in"
        )
    manifest, problems = _manifest(directory)
    commits, torn, found = _commits(directory)
    return Dump(directory, manifest, tuple(commits), (*problems, *found), torn)


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
        commits, unreadable = read_commits(directory)
        file = directory / COMMITS
        *lines, rest = file.read_bytes().split(b"\n") if file.exists() else [b""]
    except OSError as error:
        advice = "Check the file's permissions and the disk"
        return [], False, [Problem("commits", COMMITS, f"cannot be read: {error.strerror}", advice)]
    good: list[Commit] = []
    for commit in commits:
        try:
            good.append(validated(directory / COMMITS, commit))
        except FormatError:
            unreadable += 1
    if unreadable:
        text = f"{unreadable} of {len(lines)} lines cannot be read, what they commit is not checked"
        problems.append(Problem("commits", COMMITS, text, "Copy it again from the host that wrote it"))
    for name, count in _names(lines).items():
        if count > 1:
            text = f"is committed {count} times"
            problems.append(Problem("duplicate shard", clean(name), text, "Keep one of its lines in commits.jsonl"))
    return good, bool(rest), problems


def _names(lines: list[bytes]) -> Counter[str]:
    names: Counter[str] = Counter()
    for line in lines:
        try:
            names[str(json.loads(line)["shard"])] += 1
        except (ValueError, TypeError, KeyError, RecursionError):
            continue  # counted as unreadable by read_commits
    return names
