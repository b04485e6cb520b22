"""Claiming a dump directory for one rank: a new one, or one that an earlier run began."""

import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from kimi_capture.directory import (
    RUNS,
    SHARD,
    HeldError,
    WriterLock,
    append_durably,
    fsync_directory,
    hold_directory,
    next_number,
    orphans,
    runs_line,
    settle,
    shard_prefix,
    temporary_files,
)
from kimi_capture.format import (
    MANIFEST,
    FormatError,
    Manifest,
    read_commits,
    read_manifest,
    read_shard,
    write_durably,
)

OWN_DIRECTORY: Final = "give the dump a directory of its own"
PER_RUN: Final = frozenset({"run", "created", "conventions", "sglang", "plugin", "argv", "parallel"})
"""Fields of a manifest that another run may have otherwise: they do not change what a row is."""


class StoreError(Exception):
    """The directory cannot take this dump: message, what to do, and a stable slug."""

    def __init__(self, message: str, hint: str, slug: str = "directory-taken") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.slug = slug


class Claim:
    """One rank's right to add shards to a dump, until `release` or the end of the process."""

    def __init__(self, directory: Path, rank: str, manifest: Manifest, *, resume: bool) -> None:
        """Claim a directory: a new one, one that this launch began, or, with `resume`, one of an earlier run.

        Files that a killed writer left are taken in or moved away, never those of a writer that lives. Raises
        StoreError when the directory holds anything else, OSError when it cannot be written.
        """
        self.directory = directory
        self.prefix = shard_prefix(rank)
        self.manifest = found = _manifest(directory, manifest, resume=resume)
        self._stack = contextlib.ExitStack()
        try:
            with self._stack:
                self._hold(found, manifest.run)
                if not resume:
                    self._refuse_shards()
                self.rids = _committed_rids(directory)
                self._clean(found)
                self.first = next_number(directory, self.prefix)
                append_durably(directory / RUNS, runs_line(manifest, rank, self.first))
                self._stack = self._stack.pop_all()
        except HeldError as error:
            raise StoreError(str(error), "wait until it has ended, or give the dump another name", "held") from error

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What holds the locks: a process that has them holds the directory as well."""
        return self._descriptors

    def release(self) -> None:
        """Let others have the directory; nothing may be written after."""
        self._stack.close()

    def _hold(self, found: Manifest, run: str) -> None:
        directory = hold_directory(self.directory, exclusive=False)
        self._stack.callback(os.close, directory)
        lock = WriterLock(self.directory, self.prefix, run)
        self._stack.callback(lock.release)
        self._descriptors = directory, lock.fd

    def _refuse_shards(self) -> None:
        if any(self.directory.glob(f"{self.prefix}*.safetensors")):
            raise StoreError(f"{self.directory} already has shards of this rank", "resume the dump, or name another")

    def _clean(self, manifest: Manifest) -> None:
        """See to what killed writers left, this rank's and others'."""
        for prefix in sorted(self._left() - {self.prefix}):
            with contextlib.suppress(HeldError):  # its writer lives: none of ours
                lock = WriterLock(self.directory, prefix)
                try:
                    self._clean_prefix(prefix, manifest)
                finally:
                    lock.release()
        self._clean_prefix(self.prefix, manifest)
        for path in temporary_files(self.directory):
            if path.name.startswith(f".{MANIFEST}"):  # the manifest is there, so it is nobody's any more
                path.unlink(missing_ok=True)

    def _left(self) -> set[str]:
        names = [path.name for path in (*temporary_files(self.directory), *orphans(self.directory))]
        return {name.lstrip(".").rpartition("-")[0] + "-" for name in names if name.lstrip(".").startswith(SHARD)}

    def _clean_prefix(self, prefix: str, manifest: Manifest) -> None:
        for path in temporary_files(self.directory):
            if path.name.startswith(f".{prefix}"):
                path.unlink()
        for path in orphans(self.directory):
            if path.name.startswith(prefix):
                settle(path, manifest, self.rids)


def differences(found: Manifest, wanted: Manifest) -> list[str]:
    """What keeps one manifest's rows from being the other's, field by field with both values."""
    one, other = _identity(found), _identity(wanted)
    return [
        f"{name} is {one.get(name)} there and {other.get(name)} here"
        for name in sorted({*one, *other})
        if one.get(name) != other.get(name)
    ]


def _identity(manifest: Manifest) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(json.dumps(asdict(manifest)))
    model = fields.pop("model")
    if model.get("config") and model.get("weights"):
        model.pop("path", None)  # the same files may lie elsewhere
    flat = {name: value for name, value in fields.items() if name not in PER_RUN}
    return flat | {f"model.{name}": value for name, value in model.items()}


def _manifest(directory: Path, manifest: Manifest, *, resume: bool) -> Manifest:
    """The directory's manifest, which is `manifest` if there was none."""
    if resume and not directory.is_dir():
        raise StoreError(f"there is no dump in {directory} to resume", "start it without resume", "nothing-to-resume")
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / MANIFEST).exists():
        _write_manifest(directory, manifest)
    try:
        found = read_manifest(directory)
    except FormatError as error:
        raise StoreError(str(error), OWN_DIRECTORY) from error
    if not resume and (found.dump, found.run, found.boundaries) != (manifest.dump, manifest.run, manifest.boundaries):
        raise StoreError(
            f"{directory} already holds dump {found.dump} of run {found.run}",
            "resume it, or give the dump another name",
        )
    if resume and (problems := differences(found, manifest)):
        hint = "launch the server as for that dump, or give the dump another name"
        raise StoreError(f"{directory} cannot be resumed: {'; '.join(problems)}", hint, "differs")
    return found


def _write_manifest(directory: Path, manifest: Manifest) -> None:
    if any(not path.name.startswith(f".{MANIFEST}") for path in directory.iterdir()):
        raise StoreError(f"{directory} has files but no manifest", OWN_DIRECTORY)
    temporary = directory / f".{MANIFEST}.{os.getpid()}.tmp"
    try:
        write_durably(temporary, [memoryview(manifest.encode())])
        os.link(temporary, directory / MANIFEST)
    except (FileExistsError, FileNotFoundError):
        pass  # another rank of this launch was first, and cleaned up; whose it is is checked by the caller
    finally:
        temporary.unlink(missing_ok=True)
    fsync_directory(directory)
    fsync_directory(directory.parent)


def _committed_rids(directory: Path) -> set[str]:
    """The requests in committed shards, each of which is opened."""
    commits, unreadable = read_commits(directory)
    hint = f"run kimi-agent shards repair {directory}"
    if unreadable:
        raise StoreError(f"{directory} has {unreadable} commit lines that cannot be read", hint, "damaged")
    rids: set[str] = set()
    for commit in commits:
        try:
            shard = read_shard(directory / commit.shard)
            size = shard.path.stat().st_size
            if size != commit.bytes:
                raise FormatError(shard.path, f"has {size} bytes, {commit.bytes} were committed")
        except FileNotFoundError as error:
            raise StoreError(f"{commit.shard} of {directory} is committed but gone", hint, "damaged") from error
        except FormatError as error:
            raise StoreError(str(error), hint, "damaged") from error
        rids.update(sample.rid for sample in shard.meta.samples)
    return rids
