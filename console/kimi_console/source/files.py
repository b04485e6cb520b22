"""Bytes of a log or recording, whatever it is packed in, and the lines of one that still grows."""

import gzip
import io
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import zstandard

from kimi_agent.engine.loglines import split_lines
from kimi_agent.errors import UsageError
from kimi_agent.text import clean

CHUNK: Final = 1 << 20
GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
TAIL_PERIOD: Final = 0.25
"""Seconds between two looks at a file that is followed."""


def chunks_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file, unpacked when it is gzip or zstd.

    Raises:
        UsageError: it cannot be read, or is packed and damaged.
    """
    try:
        with path.open("rb") as raw:
            file = _unpacked(raw)
            while chunk := file.read(CHUNK):
                yield chunk
    except io.UnsupportedOperation as error:
        raise UsageError(f"{path} is a pipe", "Pipe it into: kimi-console replay -") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"cannot read {path}: {why}", "Check the path and its permissions.") from error
    except (EOFError, zstandard.ZstdError) as error:
        raise UsageError(f"{path} is packed and damaged: {clean(str(error))}", "Take another copy of it.") from error


def is_packed(path: Path) -> bool:
    """Whether a file is gzip or zstd.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(4).startswith((GZIP, ZSTD))


def _unpacked(raw: IO[bytes]) -> IO[bytes]:
    head = raw.read(4)
    raw.seek(0)
    if head.startswith(GZIP):
        return io.BufferedReader(gzip.GzipFile(fileobj=raw))
    if head == ZSTD:
        return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return raw


def followed_lines(path: Path) -> Iterator[list[str]]:
    """The lines of a file as they are written to it, for ever; nothing when none came for a while.

    A file that was cut or replaced is read again from its beginning.

    Raises:
        UsageError: it cannot be read.
    """
    carry = b""
    try:
        file = path.open("rb")
        while True:
            if chunk := file.read(CHUNK):
                lines, carry = split_lines(chunk, carry)
                yield lines
                continue
            yield []
            time.sleep(TAIL_PERIOD)
            found = path.stat()
            if found.st_ino != _inode(file) or found.st_size < file.tell():
                file.close()
                file, carry = path.open("rb"), b""
    except OSError as error:
        raise UsageError(f"cannot follow {path}: {error.strerror}", "Check the path and its permissions.") from error


def piped_lines(file: int) -> Iterator[list[str]]:
    """The lines of a pipe as they come; nothing when none came for a while."""
    carry = b""
    while True:
        if not select.select([file], [], [], TAIL_PERIOD)[0]:
            yield []
            continue
        chunk = os.read(file, CHUNK)
        if not chunk:
            yield split_lines(b"\n", carry)[0] if carry else []
            return
        lines, carry = split_lines(chunk, carry)
        yield lines


def _inode(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_ino
