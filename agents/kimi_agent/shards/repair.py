"""Repair a dump after a crash: what is committed and whole stays, what is damaged is set aside, what is lost is told.

Nothing that was committed is deleted: damaged shards and unreadable lines go into the dump's quarantine. Every step is
durable before the next, and each leaves a directory that another repair can finish.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from kimi_agent.errors import KimiError
from kimi_agent.shards.content import check_content
from kimi_agent.shards.dumps import Dump, Problem
from kimi_agent.shards.verify import CAPTURE_AGAIN, Progress, ShardResult, verify
from kimi_agent.text import clean
from kimi_capture.directory import (
    QUARANTINE,
    RUNS,
    HeldError,
    append_durably,
    cut_torn_line,
    fsync_directory,
    hold_directory,
    holders,
    lock_files,
    orphans,
    quarantine,
    settle,
    temporary_files,
)
from kimi_capture.format import COMMITS, Commit, FormatError, Manifest, encode_commit, read_shard, write_durably

DAMAGE: Final = frozenset({"missing", "size", "hash", "format", "tensor hash", "counts"})
"""Kinds of problems of a shard that is not what was committed. Others are faults of the capture, and stay in view."""
LOST: Final = "lost.jsonl"
"""In the quarantine: one line for each committed shard that is not part of the dump any more."""
LINES: Final = "lines.jsonl"
"""In the quarantine: commit lines that were taken out."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A committed shard that is missing or damaged."""

    shard: str
    rows: int
    samples: int
    rids: tuple[str, ...]
    """Its requests, as far as the commit or the file still says."""
    problem: str


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What a repair found and did; all file names are of the dump's directory."""

    dump: str
    directory: str
    killed: tuple[str, ...] = ()
    """Writers that were killed, in words."""
    removed: tuple[str, ...] = ()
    """Files that were never complete."""
    committed: tuple[str, ...] = ()
    """Whole shards that lacked only their commit."""
    quarantined: tuple[str, ...] = ()
    lines: int = 0
    """Commit lines taken out: torn, unreadable, double, or a lost shard's."""
    lost: tuple[Lost, ...] = ()
    left: tuple[Problem, ...] = ()
    """What no repair can mend."""
    shards: int = 0
    rows: int = 0
    """Of the dump as it is now."""
    held: str | None = None
    """Who is writing into the dump, which was not touched then."""

    @property
    def ok(self) -> bool:
        """Whether the dump verifies now."""
        return not self.left and self.held is None

    def as_json(self) -> dict[str, Any]:
        """The result as `shards repair --json` prints it."""
        fields = asdict(self)
        fields["lost"] = [entry | {"problem": clean(entry["problem"])} for entry in fields["lost"]]
        return {"ok": self.ok, **fields}


def repair(directory: Path, progress: Progress | None = None) -> RepairResult:
    """Bring a dump to a state that verifies; reads every shard once.

    Raises:
        UsageError: the directory is not a dump.
        KimiError: the directory cannot be written or read.
    """
    try:
        hold = hold_directory(directory, exclusive=True)
    except HeldError as error:
        return RepairResult(clean(directory.resolve().name), str(directory), held=clean(str(error)))
    except FileNotFoundError:
        result = verify(directory, progress)  # a dump without a manifest: say so, as verify does
        return RepairResult(result.dump.name, str(directory), left=result.problems)
    except OSError as error:
        raise _cannot(directory, error) from error
    try:
        return _repair(directory, progress)
    except OSError as error:
        raise _cannot(directory, error) from error
    finally:
        os.close(hold)


def _cannot(directory: Path, error: OSError) -> KimiError:
    return KimiError(
        f"{directory} cannot be repaired: {error.strerror or error}",
        "Check its permissions and its disk, then repair it again.",
    )


def _repair(directory: Path, progress: Progress | None) -> RepairResult:
    killed = tuple(clean(str(holder)) for holder in holders(directory))
    torn = cut_torn_line(directory / COMMITS)
    cut_torn_line(directory / RUNS)
    result = verify(directory, progress)
    manifest, unfit = result.dump.manifest, [one for one in result.problems if one.kind not in _MENDED]
    if manifest is None or unfit:
        return RepairResult(result.dump.name, str(directory), killed, left=tuple(result.problems))
    removed = _remove_unfinished(directory)
    bad = [shard for shard in result.shards if any(problem.kind in DAMAGE for problem in shard.problems)]
    lost = tuple(_lost(directory, shard, result.dump) for shard in bad)
    gone = {shard.shard for shard in bad}
    kept = [commit for commit in result.dump.commits if commit.shard not in gone]
    lines = _set_aside(directory, kept, lost) if bad or result.problems else 0
    files = [quarantine(directory / name).name for name in sorted(gone) if (directory / name).exists()]
    left = [problem for shard in result.shards if shard.shard not in gone for problem in shard.problems]
    found, more = _settle_orphans(directory, manifest, kept)
    left += [problem for commit in found for problem in _faults(directory / commit.shard)]
    return RepairResult(
        result.dump.name, str(directory), killed, removed, tuple(commit.shard for commit in found),
        (*files, *more), lines + torn, lost, tuple(left),
        len(kept) + len(found), sum(commit.rows for commit in (*kept, *found)),
    )  # fmt: skip


_MENDED: Final = frozenset({"commits", "duplicate shard"})


def _remove_unfinished(directory: Path) -> tuple[str, ...]:
    """Remove what no living writer can be writing: the directory is held alone."""
    unfinished = sorted(temporary_files(directory))
    for path in (*unfinished, *lock_files(directory)):
        path.unlink()
    return tuple(path.name for path in unfinished)


def _lost(directory: Path, shard: ShardResult, dump: Dump) -> Lost:
    rids = next(commit.rids for commit in dump.commits if commit.shard == shard.shard) or _rids(directory / shard.shard)
    problems = "; ".join(problem.text for problem in shard.problems if problem.kind in DAMAGE)
    return Lost(shard.shard, shard.rows, shard.samples, tuple(clean(rid) for rid in rids), problems)


def _rids(path: Path) -> tuple[str, ...]:
    try:
        return tuple(sample.rid for sample in read_shard(path).meta.samples)
    except (OSError, FormatError):
        return ()


def _set_aside(directory: Path, kept: list[Commit], lost: tuple[Lost, ...]) -> int:
    """Replace the list of commits by `kept`, all else of it goes into the quarantine; returns the lines taken out."""
    place = directory / QUARANTINE
    place.mkdir(exist_ok=True)
    lines = (directory / COMMITS).read_bytes().splitlines(keepends=True)
    good = {encode_commit(commit) for commit in kept}
    out = [line for line in lines if line not in good]
    for entry in lost:
        append_durably(place / LOST, orjson.dumps(asdict(entry)) + b"\n")
    for line in out:
        append_durably(place / LINES, line)
    temporary = directory / f".{COMMITS}.tmp"
    write_durably(temporary, [memoryview(b"".join(map(encode_commit, kept)))])
    temporary.rename(directory / COMMITS)
    fsync_directory(directory)
    return len(lines) - len(kept)


def _settle_orphans(directory: Path, manifest: Manifest, kept: list[Commit]) -> tuple[list[Commit], list[str]]:
    """Shards without a commit: those that became part of the dump, and the names of those that did not."""
    rids: set[str] = set()
    for commit in kept:
        rids.update(commit.rids or _rids(directory / commit.shard))
    found: list[Commit] = []
    quarantined: list[str] = []
    for path in orphans(directory):
        settled = settle(path, manifest, rids)
        if settled is None:
            quarantined.append(path.name)
        else:
            found.append(settled)
    return found, quarantined


def _faults(path: Path) -> Iterator[Problem]:
    for kind, text in check_content(read_shard(path)):
        yield Problem(kind, path.name, clean(text), CAPTURE_AGAIN)
