"""A shard out of rows that lie in many pieces of memory: its header and its bytes in order, with nothing copied."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import xxhash

from kimi_capture.format import (
    PRE_NORM_RMS,
    TENSORS,
    Array,
    Sample,
    SelfCheck,
    ShardMeta,
    encode_header,
    write_durably,
)
from kimi_capture.statistics import Statistics, shard_moments, shard_statistics


def encode_parts(
    tensors: Mapping[str, Sequence[Array]], moments: Sequence[Array | None], *, dump: str, dtype: str,
    boundaries: tuple[int, ...], samples: tuple[Sample, ...], self_check: SelfCheck | None = None,
) -> list[Array]:  # fmt: skip
    """The bytes of a shard file as [bytes] uint8 arrays, in order.

    `tensors` has the pieces of each tensor, `moments` [rows, K+1, 4] those of the states' pieces or None. Raises
    ValueError when a tensor has the wrong dtype.
    """
    names = (*TENSORS, *({PRE_NORM_RMS} & set(tensors)))
    flat = {name: [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in tensors[name]] for name in names}
    numbers = _statistics(tensors["aux_hidden_states"], tensors["last_hidden_state"], moments, boundaries)
    meta = ShardMeta(dump, samples, {name: _hash(parts) for name, parts in flat.items()}, numbers, self_check)
    shapes = {name: (parts[0].dtype, _shape(parts)) for name, parts in ((name, tensors[name]) for name in names)}
    header = np.frombuffer(encode_header(shapes, meta, dtype), np.uint8)
    return [header, *(part for parts in flat.values() for part in parts)]


def write_shard(
    path: Path, tensors: Mapping[str, Array], *, dump: str, dtype: str, boundaries: tuple[int, ...],
    samples: tuple[Sample, ...],
) -> tuple[int, str]:  # fmt: skip
    """Write a shard whose tensors are whole, and fsync it; its size and xxh3-64. Does not commit. Raises OSError."""
    whole = {name: [np.ascontiguousarray(tensor)] for name, tensor in tensors.items()}
    buffers = encode_parts(whole, [None], dump=dump, dtype=dtype, boundaries=boundaries, samples=samples)
    return write_durably(path, [buffer.data for buffer in buffers]), _hash(buffers)


def _shape(parts: Sequence[Array]) -> tuple[int, ...]:
    return (sum(len(part) for part in parts), *parts[0].shape[1:])


def _hash(parts: Sequence[Array]) -> str:
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part.data)
    return str(digest.hexdigest())


def _statistics(
    aux: Sequence[Array], last: Sequence[Array], moments: Sequence[Array | None], boundaries: tuple[int, ...]
) -> dict[str, Statistics]:
    starts = [0, *accumulate(len(part) for part in last)]

    def row(number: int, column: int) -> Array:
        part = int(np.searchsorted(starts, number, side="right")) - 1
        place = number - starts[part]
        found: Array = aux[part][place, column] if column < len(boundaries) else last[part][place]
        return found

    held = [
        shard_moments(states, final) if known is None else known
        for states, final, known in zip(aux, last, moments, strict=True)
    ]
    return shard_statistics(np.concatenate(held), [*map(str, boundaries), "last"], row)
