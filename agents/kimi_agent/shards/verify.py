"""Verify a dump: every committed shard against its commit, its own metadata and the manifest, one at a time."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any, Final

from kimi_agent.counts import many
from kimi_agent.shards.content import check_content
from kimi_agent.shards.dumps import Dump, Problem, open_dump, validated
from kimi_agent.shards.inspect.index import FILE as INDEX
from kimi_agent.shards.masks import FEED
from kimi_agent.shards.model import ModelResult, verify_with_model
from kimi_agent.text import clean
from kimi_capture.directory import QUARANTINE, RUNS, lock_files
from kimi_capture.format import (
    COMMITS,
    MANIFEST,
    STATE_DTYPES,
    Commit,
    FormatError,
    Manifest,
    Shard,
    file_xxh3,
    read_shard,
)

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all and the shard that is next."""
COPY_AGAIN: Final = "Copy it again from the host that wrote it, or leave its samples out of the training"
UNREADABLE: Final = frozenset({"missing", "unreadable", "format", "duplicate shard"})
"""Kinds of problems after which a shard's rows are not looked at."""
CAPTURE_AGAIN: Final = "Leave its samples out of the training and capture them again"


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What was found of one committed shard."""

    shard: str
    bytes: int
    rows: int
    samples: int
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Uncommitted:
    """A file of the directory that no commit names: never reported durable, so never counted."""

    file: str
    bytes: int
    kind: str
    """`being written` (tmp), `not committed` (a shard) or `foreign`."""


@dataclass(frozen=True, slots=True)
class DumpResult:
    """A verified dump."""

    dump: Dump
    shards: tuple[ShardResult, ...]
    problems: tuple[Problem, ...]
    """Of the manifest and the commits."""
    uncommitted: tuple[Uncommitted, ...]
    seconds: float
    model: ModelResult | None = None
    """What the model's weights say; None when no model was given."""

    @property
    def bad(self) -> int:
        """How many shards have problems."""
        return sum(1 for shard in self.shards if shard.problems)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with the dump."""
        return not self.problems and not self.bad

    def as_json(self) -> dict[str, Any]:
        """The result as `shards verify --json` prints it."""
        good = [shard for shard in self.shards if not shard.problems]
        return {
            "dump": self.dump.name,
            "directory": str(self.dump.directory),
            "ok": self.ok,
            "checked": len(self.shards),
            "bad": self.bad,
            "rows": sum(shard.rows for shard in good),
            "samples": sum(shard.samples for shard in good),
            "bytes": sum(shard.bytes for shard in self.shards),
            "torn_commit": self.dump.torn,
            "problems": [_plain(problem) for problem in self.problems],
            "shards": [
                {"shard": clean(shard.shard), "problems": [_plain(problem) for problem in shard.problems]}
                for shard in self.shards
            ],
            "uncommitted": [
                {"file": clean(entry.file), "bytes": entry.bytes, "kind": entry.kind} for entry in self.uncommitted
            ],
            "model": self.model
            and {
                "directory": clean(str(self.model.directory)),
                "checks": [check.as_json() for check in self.model.checks],
            },
            "seconds": round(self.seconds, 3),
        }


@dataclass(slots=True)
class _Seen:
    """What the shards before this one held."""

    rids: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    rows: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Shards by the hashes of their states and tokens."""


def verify(
    directory: Path, progress: Progress | None = None, model: Path | None = None, python: str = sys.executable
) -> DumpResult:
    """Verify the dump in a directory; memory stays bounded by one shard's map.

    With `model`, the directory of the weights that made the dump, the states themselves are checked too; `python`
    runs the model's forward pass then.

    Raises:
        UsageError: the directory is not a dump, or `model` is not its model.
    """
    began = monotonic()
    dump = open_dump(directory)
    total, done, seen = sum(commit.bytes for commit in dump.commits), 0, _Seen()
    results = []
    for commit in dump.commits:
        if progress is not None:
            progress(done, total, commit.shard)
        problems = tuple(_named(commit.shard, _check_shard(dump, commit, seen)))
        results.append(ShardResult(commit.shard, commit.bytes, commit.rows, commit.samples, problems))
        done += commit.bytes
    if progress is not None:
        progress(done, total, "")
    result = DumpResult(dump, tuple(results), dump.problems, tuple(_uncommitted(dump)), monotonic() - began)
    return result if model is None else _with_model(result, model, python, began)


def _with_model(result: DumpResult, directory: Path, python: str, began: float) -> DumpResult:
    """The result with what the model's weights say of every shard that could be opened."""
    readable = [shard.shard for shard in result.shards if not {problem.kind for problem in shard.problems} & UNREADABLE]
    model = verify_with_model(result.dump, readable, directory, python)
    shards = tuple(
        replace(shard, problems=(*shard.problems, *(p for p in model.problems if p.file == clean(shard.shard))))
        for shard in result.shards
    )
    return replace(result, shards=shards, model=model, seconds=monotonic() - began)


def _named(shard: str, found: Iterator[tuple[str, str, str]]) -> Iterator[Problem]:
    for kind, text, advice in found:
        yield Problem(kind, clean(shard), clean(text), advice)


def _check_shard(dump: Dump, commit: Commit, seen: _Seen) -> Iterator[tuple[str, str, str]]:
    path = dump.directory / commit.shard
    try:
        size = path.stat().st_size
        digest = file_xxh3(path)
    except FileNotFoundError:
        yield "missing", "is committed, but the file is not there", COPY_AGAIN
        return
    except (OSError, ValueError) as error:
        yield "unreadable", f"cannot be read: {error}", "Check the file's permissions and the disk"
        return
    if size != commit.bytes:
        yield "size", f"has {size} bytes, {commit.bytes} were committed", COPY_AGAIN
    elif digest != commit.xxh3:
        yield "hash", f"has the hash {digest}, {commit.xxh3} was committed: its bytes changed", COPY_AGAIN
    twin = seen.hashes.setdefault(digest, commit.shard)
    if twin != commit.shard:
        yield "duplicate shard", f"has the same bytes as {twin}", "Leave one of the two out of the training"
        return
    try:
        shard = read_shard(path)
        validated(path, shard.meta)
    except FormatError as error:
        yield "format", error.problem, COPY_AGAIN
        return
    except (OSError, ValueError) as error:
        yield "unreadable", f"cannot be read: {error}", COPY_AGAIN
        return
    yield from _check_opened(dump, commit, seen, shard)


def _check_opened(dump: Dump, commit: Commit, seen: _Seen, shard: Shard) -> Iterator[tuple[str, str, str]]:
    for name in shard.corrupt():
        yield "tensor hash", f"{name} is damaged: its bytes are not those that were written", COPY_AGAIN
    if (shard.rows, len(shard.meta.samples)) != (commit.rows, commit.samples):
        held = f"{many(shard.rows, 'row')} of {many(len(shard.meta.samples), 'sample')}"
        yield "counts", f"holds {held}, {commit.rows} of {commit.samples} were committed", CAPTURE_AGAIN
    if dump.manifest is not None:
        yield from _check_manifest(dump.manifest, shard)
    content = tuple(shard.meta.xxh3[name] for name in ("aux_hidden_states", "last_hidden_state", "token_ids"))
    twin = seen.rows.setdefault(content, commit.shard) if shard.rows else commit.shard
    if twin != commit.shard:
        yield "duplicate shard", f"has the same rows as {twin}, under other names", "Leave one of the two out"
    for sample in shard.meta.samples:
        first = seen.rids.setdefault(sample.rid, commit.shard)
        if first != commit.shard:
            yield "duplicate request", f"request {sample.rid} is also in {first}", "Leave one of the two out"
    for kind, text in check_content(shard):
        yield kind, text, CAPTURE_AGAIN


def _check_manifest(manifest: Manifest, shard: Shard) -> Iterator[tuple[str, str, str]]:
    advice = "It belongs to another dump or its manifest was replaced: do not train on it together with the others"
    pairs: list[tuple[str, object, object]] = [
        ("dump name", shard.meta.dump, manifest.dump),
        ("boundaries", list(shard.meta.boundaries), list(manifest.boundaries)),
        ("hidden size", shard.last_hidden_state.shape[1], manifest.hidden_size),
        ("dtype", shard.dtype, STATE_DTYPES.get(manifest.dtype, manifest.dtype)),
    ]
    for kind, held, expected in pairs:
        if held != expected:
            yield kind, f"{kind} {held}, the manifest says {expected}", advice


def _uncommitted(dump: Dump) -> Iterator[Uncommitted]:
    known = {MANIFEST, COMMITS, RUNS, QUARANTINE, FEED, INDEX, *(commit.shard for commit in dump.commits)}
    locks = set(lock_files(dump.directory))
    for path in sorted(dump.directory.iterdir()):
        if path.name in known or path in locks:
            continue
        kind = "foreign"
        if path.name.startswith("shard-") and path.suffix == ".safetensors":
            kind = "not committed"
        elif ".tmp" in path.suffixes:
            kind = "being written"
        with suppress(FileNotFoundError):  # a live writer renames its files
            yield Uncommitted(path.name, path.lstat().st_size, kind)


def _plain(problem: Problem) -> dict[str, str]:
    return {"kind": problem.kind, "file": problem.file, "text": problem.text, "advice": problem.advice}
