"""What a shard says of itself, out of its first bytes: some forty microseconds a shard, no tensor is mapped.

`kimi_capture.format.read_shard` checks all of a file's layout; an index of twenty thousand shards needs their metadata
only, and learns of a truncated file from its size.
"""

import os
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from kimi_capture.format import MAX_HEADER, VERSION, Commit, FormatError, Sample
from kimi_capture.statistics import Statistics

FIRST: Final = 32 << 10
"""Bytes that are read at once; most headers end in them."""


class Head(msgspec.Struct, frozen=True):
    """The metadata of a shard; unlike `ShardMeta` without what only its tensors need."""

    version: int
    samples: list[Sample]
    statistics: dict[str, Statistics]


class _Metadata(msgspec.Struct, frozen=True):
    kimi: str
    kimi_xxh3: str


class _Header(msgspec.Struct, frozen=True):
    metadata: _Metadata = msgspec.field(name="__metadata__")


_header = msgspec.json.Decoder(_Header)
_head = msgspec.json.Decoder(Head)


def read_head(directory: Path, commit: Commit) -> Head:
    """The metadata of a committed shard.

    Raises:
        FormatError: the file has another size than was committed, or its header is damaged or a newer version's.
        OSError: it cannot be read.
    """
    path = directory / commit.shard
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size != commit.bytes:
            raise FormatError(path, f"has {size} bytes, {commit.bytes} were committed")
        data = os.pread(fd, FIRST, 0)
        length = int.from_bytes(data[:8], "little")
        if not 2 <= length <= min(MAX_HEADER, size - 8):
            raise FormatError(path, f"a header of {length} bytes does not fit a file of {size}")
        if len(data) < 8 + length:
            data += os.pread(fd, 8 + length - len(data), len(data))
    finally:
        os.close(fd)
    return _parse(path, data[8 : 8 + length], commit)


def _parse(path: Path, text: bytes, commit: Commit) -> Head:
    try:
        metadata = _header.decode(text).metadata
        kimi = metadata.kimi.encode()
        if metadata.kimi_xxh3 != xxhash.xxh3_64_hexdigest(kimi):
            raise FormatError(path, "the metadata is damaged: its hash does not match")
        head = _head.decode(kimi)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise FormatError(path, f"the header is damaged: {error}") from error
    if head.version != VERSION:
        raise FormatError(path, f"shard version {head.version}, this console reads {VERSION}")
    rows = [sample.rows for sample in head.samples]
    if min(rows, default=0) < 0 or (sum(rows), len(rows)) != (commit.rows, commit.samples):
        raise FormatError(path, "holds other rows or samples than were committed")
    return head
