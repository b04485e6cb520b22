"""The shard format, and the one place that knows it. Needs the standard library, numpy and xxhash only.

A dump directory holds `manifest.json`, `commits.jsonl` and shards. A shard is a safetensors file of N rows of S
samples, with K boundaries of hidden size H:

    token_ids [N] int64 · positions [N] int64 · sample_offsets [S+1] int64
    aux_hidden_states [N, K, H] · last_hidden_state [N, H]      BF16, F16 or F32; BF16 is uint16 in numpy
    last_pre_norm_rms [N] float32: of the state before the final norm, NaN where unknown; only if the manifest has it

`__metadata__["kimi"]` is the JSON of `ShardMeta`; `__metadata__["kimi_xxh3"]` is its own hash. A shard exists if and
only if `commits.jsonl` has a line, ended by a newline, that names it.
"""

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from kimi_capture.statistics import Statistics

Array = npt.NDArray[Any]
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
COMMITS: Final = "commits.jsonl"
MAX_HEADER: Final = 100_000_000
"""Bytes of JSON header that are believed; the limit of the safetensors format itself."""
ALIGNMENT: Final = 64
DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
}
STATE_DTYPES: Final = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""The manifest's `dtype` (torch's spelling) to the shard's."""
TENSORS: Final = ("token_ids", "positions", "sample_offsets", "aux_hidden_states", "last_hidden_state")
"""Order in the file: 8-byte elements first keeps every tensor aligned without holes."""
PRE_NORM_RMS: Final = "last_pre_norm_rms"
"""The tensor that may follow these."""


class FormatError(ValueError):
    """A file is not what the format says: which file, and what is wrong with it."""

    def __init__(self, path: os.PathLike[str] | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = str(path)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Sample:
    """One request of a shard. `rows` = prompt_tokens + output_tokens − 1 − all that is `missing`."""

    rid: str
    prompt_tokens: int
    output_tokens: int
    """Tokens the engine sampled; at least 1."""
    rows: int
    finish_reason: str
    missing: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """The head applied to captured rows, held against the logits that the engine itself computed there."""

    checked: int
    """Rows, since the dump began."""
    max_error: float
    """Largest difference of a log-probability."""
    mean_error: float
    """Of the rows' largest differences."""
    failed: int
    """Rows whose difference was more than rounding explains."""


@dataclass(frozen=True, slots=True)
class ShardMeta:
    """What a shard says about itself."""

    dump: str
    samples: tuple[Sample, ...]
    xxh3: dict[str, str]
    """xxh3-64 of each tensor's bytes, hex."""
    statistics: dict[str, Statistics]
    """By physical boundary, in column order, and `last`."""
    self_check: SelfCheck | None = None
    """As it stood when the shard was written; None when nothing was checked yet."""
    version: int = VERSION

    @property
    def boundaries(self) -> tuple[int, ...]:
        return tuple(int(name) for name in self.statistics if name != "last")


@dataclass(frozen=True, slots=True)
class Shard:
    """An open shard. Arrays are read-only views of a memory map; bf16 ones are uint16 (see `to_float32`)."""

    path: Path
    meta: ShardMeta
    dtype: str
    """BF16, F16 or F32."""
    aux_hidden_states: Array
    last_hidden_state: Array
    token_ids: Array
    positions: Array
    sample_offsets: Array
    last_pre_norm_rms: Array | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that it has, in the file's order."""
        return TENSORS if self.last_pre_norm_rms is None else (*TENSORS, PRE_NORM_RMS)

    @property
    def rows(self) -> int:
        return len(self.token_ids)

    def tensor(self, name: str) -> Array:
        """The tensor of that name of `names`."""
        array: Array = getattr(self, name)
        return array

    def corrupt(self) -> list[str]:
        """Names of the tensors whose bytes are not those that were written."""
        return [name for name in self.names if _hash(self.tensor(name)) != self.meta.xxh3[name]]


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed shard: a line of `commits.jsonl`."""

    shard: str
    bytes: int
    rows: int
    samples: int
    xxh3: str
    """xxh3-64 of the whole file, hex."""
    time: float
    rids: tuple[str, ...] = ()
    """The requests in it, so that a shard that is lost can still be named; empty where the writer did not say."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was captured, from what, and how: `manifest.json`, durable before the first shard."""

    dump: str
    run: str
    """The launch that wrote the dump."""
    created: float
    boundaries: tuple[int, ...]
    """Physical, in column order: boundary b is the residual stream after b blocks."""
    conventions: dict[str, dict[str, int]]
    """Each boundary's spelling: sglang_flag (of this launch), sglang_internal, vllm, specforge (0-based output)."""
    dtype: str
    """bfloat16, float16 or float32."""
    hidden_size: int
    num_layers: int
    last_hidden_norm: str
    """`post`: last_hidden_state is after the final norm."""
    model: dict[str, str | None]
    """path, class, config (xxh3 of config.json), weights (xxh3 of index, file names and sizes)."""
    tokenizer: str | None
    """xxh3 of the tokenizer's files."""
    sglang: str
    plugin: str
    argv: tuple[str, ...]
    """The server's command line; keys and passwords are taken out."""
    parallel: dict[str, int]
    """tp, dp, pp, attn_tp, attn_dp, attn_cp, ep sizes."""
    pre_norm: str | None = None
    """`rms`: shards have `last_pre_norm_rms`, which makes the state before the final norm recoverable."""
    pre_norm_reason: str | None = None
    """Why it is not recoverable, if so."""
    final_norm: dict[str, float] | None = None
    """eps, and offset: 1 where the norm multiplies by 1 + weight."""
    version: int = VERSION

    def encode(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode() + b"\n"


def conventions(boundaries: tuple[int, ...], flag_offset: int) -> dict[str, dict[str, int]]:
    """Every spelling of each boundary; `flag_offset` is what this launch's model class added to the flag's ids."""
    return {
        str(b): {"sglang_flag": b - flag_offset, "sglang_internal": b, "vllm": b, "specforge": b - 1}
        for b in boundaries
    }


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a dump directory. Raises FormatError when it is damaged, OSError when it is not there."""
    path = directory / MANIFEST
    value = _parse_object(path, path.read_bytes(), "manifest")
    if value.get("version") != VERSION:
        raise FormatError(path, f"manifest version {value.get('version')}, this console reads {VERSION}")
    try:
        manifest = Manifest(**value)
        return replace(
            manifest, boundaries=tuple(int(b) for b in manifest.boundaries), argv=tuple(map(str, manifest.argv))
        )
    except (TypeError, ValueError) as error:
        raise FormatError(path, f"the manifest lacks or has too much of something: {error}") from error


def to_float32(array: Array) -> npt.NDArray[np.float32]:
    """The values of a state array as float32; uint16 is taken as bf16. Same shape."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def file_xxh3(path: Path) -> str:
    """xxh3-64 of a whole file, hex."""
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return str(digest.hexdigest())


def write_durably(path: Path, buffers: list[memoryview]) -> int:
    """Create or replace a file with the buffers and fsync it; returns its size. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        for buffer in buffers:
            rest = buffer
            while rest.nbytes:
                rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    return sum(buffer.nbytes for buffer in buffers)


def read_shard(path: Path) -> Shard:
    """Open a shard by memory map, after checking its header, sizes, offsets and samples (not the tensors' hashes).

    Raises FormatError when the file is truncated, foreign or damaged, OSError when it cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            raise FormatError(path, f"{size} bytes are too few for a shard")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(MAX_HEADER, size - 8):
        raise FormatError(path, f"a header of {length} bytes does not fit a file of {size}")
    header = _parse_object(path, data[8 : 8 + length], "header")
    meta = _parse_meta(path, header.pop("__metadata__", None))
    if set(header) - {PRE_NORM_RMS} != set(TENSORS):
        raise FormatError(path, f"tensors are {sorted(header)}, expected {sorted(TENSORS)}")
    arrays = _map_tensors(path, header, memoryview(data)[8 + length :])
    shard = Shard(path, meta, header["aux_hidden_states"]["dtype"], **arrays)
    _check_shard(shard, header)
    return shard


def read_commits(path: Path) -> tuple[list[Commit], int]:
    """The commits of a dump directory in order, and how many lines could not be read.

    A line that a crash tore (no newline at its end) is no commit, and not counted. A shard named twice counts once.
    Raises OSError when `commits.jsonl` exists and cannot be read; a directory without one has no commits.
    """
    file = path / COMMITS
    if not file.exists():
        return [], 0
    lines = file.read_bytes().split(b"\n")[:-1]
    commits: dict[str, Commit] = {}
    unreadable = 0
    for line in filter(None, lines):
        commit = _parse_commit(line)
        if commit is None:
            unreadable += 1
        else:
            commits[commit.shard] = commit
    return list(commits.values()), unreadable


def encode_commit(commit: Commit) -> bytes:
    """The line of `commits.jsonl`, with its newline."""
    return json.dumps(asdict(commit), separators=(",", ":")).encode() + b"\n"


def _hash(array: Array) -> str:
    return str(xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data))


def encode_header(tensors: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], meta: ShardMeta, dtype: str) -> bytes:
    """The beginning of a shard file, up to the first tensor; `tensors` are (dtype, shape) in order.

    Raises ValueError when a tensor has another dtype than the format wants.
    """
    kimi = json.dumps(asdict(meta), separators=(",", ":"))
    header: dict[str, Any] = {"__metadata__": {"kimi": kimi, "kimi_xxh3": xxhash.xxh3_64_hexdigest(kimi.encode())}}
    offset = 0
    for name, (held, shape) in tensors.items():
        spelled = {"aux_hidden_states": dtype, "last_hidden_state": dtype, PRE_NORM_RMS: "F32"}.get(name, "I64")
        if held != DTYPES[spelled]:
            raise ValueError(f"{name} is {held}, expected {DTYPES[spelled]} for {spelled}")
        size = prod(shape) * held.itemsize
        header[name] = {"dtype": spelled, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _parse_object(path: Path, text: bytes | str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(path, f"the {what} is not JSON") from error
    if not isinstance(value, dict):
        raise FormatError(path, f"the {what} is not a JSON object")
    return value


def _parse_meta(path: Path, metadata: object) -> ShardMeta:
    kimi = metadata.get("kimi") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(kimi, str):
        raise FormatError(path, "a safetensors file, but not a shard of this console: its metadata has no kimi")
    if metadata.get("kimi_xxh3") != xxhash.xxh3_64_hexdigest(kimi.encode("utf-8", "surrogatepass")):
        raise FormatError(path, "the metadata is damaged: its hash does not match")
    value = _parse_object(path, kimi, "metadata")
    if value.get("version") != VERSION:
        raise FormatError(path, f"shard version {value.get('version')}, this console reads {VERSION}")
    try:
        samples = tuple(Sample(**sample) for sample in value["samples"])
        if not all(isinstance(sample.rows, int) and sample.rows >= 0 for sample in samples):
            raise FormatError(path, "a sample's rows are not a count")
        numbers = {name: Statistics(**entry) for name, entry in value["statistics"].items()}
        check = value.get("self_check")
        hashes = {name: str(value["xxh3"][name]) for name in (*TENSORS, *({PRE_NORM_RMS} & set(value["xxh3"])))}
        return ShardMeta(str(value["dump"]), samples, hashes, numbers, check and SelfCheck(**check))
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(path, f"the metadata lacks or has too much of something: {error}") from error


def _map_tensors(path: Path, header: dict[str, Any], data: memoryview) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    end = 0
    for name in (*TENSORS, *({PRE_NORM_RMS} & set(header))):
        try:
            dtype = DTYPES[header[name]["dtype"]]
            shape = tuple(int(extent) for extent in header[name]["shape"])
            first, last = (int(offset) for offset in header[name]["data_offsets"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FormatError(path, f"the header's entry of {name} is damaged") from error
        count = int(np.prod(shape, dtype=np.float64)) if min(shape, default=0) >= 0 else -1
        if first != end or last - first != count * dtype.itemsize:
            raise FormatError(path, f"{name} {list(shape)} does not fit its offsets {first} to {last}")
        if last > data.nbytes:
            raise FormatError(path, f"truncated: {name} ends at {last}, the file has {data.nbytes} bytes of data")
        arrays[name] = np.frombuffer(data[first:last], dtype).reshape(shape)
        end = last
    if end != data.nbytes:
        raise FormatError(path, f"{data.nbytes - end} bytes follow the last tensor")
    return arrays


def _check_shard(shard: Shard, header: dict[str, Any]) -> None:
    rows, samples = shard.rows, shard.meta.samples
    aux, last, offsets = shard.aux_hidden_states, shard.last_hidden_state, shard.sample_offsets
    integers = all(header[name]["dtype"] == "I64" for name in TENSORS[:3])
    states = header["last_hidden_state"]["dtype"] == shard.dtype != "I64"
    flat = all(shard.tensor(name).ndim == 1 for name in TENSORS[:3])
    if not (integers and states and flat and aux.ndim == 3 and last.shape == (rows, aux.shape[2])):
        raise FormatError(shard.path, "the tensors' shapes or types do not belong together")
    if aux.shape[0] != rows or len(shard.positions) != rows or aux.shape[1] != len(shard.meta.boundaries):
        raise FormatError(shard.path, f"the tensors disagree on {rows} rows or {aux.shape[1]} boundaries")
    ends = np.cumsum([0, *(sample.rows for sample in samples)])
    rms = shard.last_pre_norm_rms
    if rms is not None and (rms.shape != (rows,) or rms.dtype != DTYPES["F32"] or PRE_NORM_RMS not in shard.meta.xxh3):
        raise FormatError(shard.path, f"{PRE_NORM_RMS} does not belong to {rows} rows")
    if len(offsets) != len(samples) + 1 or not np.array_equal(offsets, ends) or ends[-1] != rows:
        raise FormatError(shard.path, "sample_offsets do not fit the samples")


def _parse_commit(line: bytes) -> Commit | None:
    try:
        commit = Commit(**json.loads(line))
        commit = replace(commit, rids=tuple(commit.rids))
    except (ValueError, TypeError, RecursionError):
        return None
    plain = isinstance(commit.shard, str) and Path(commit.shard).name == commit.shard
    return commit if plain and isinstance(commit.rows, int) and isinstance(commit.bytes, int) else None
