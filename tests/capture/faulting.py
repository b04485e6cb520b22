"""A real dump with one fault in its content: hashes, counts and commits are made anew, so that only the rows tell."""

import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kimi_capture.format import (
    COMMITS,
    MANIFEST,
    STATE_DTYPES,
    TENSORS,
    Commit,
    Manifest,
    Sample,
    Shard,
    conventions,
    encode_commit,
    read_commits,
    read_manifest,
    read_shard,
    to_float32,
)
from kimi_capture.parts import write_shard
from kimi_console.demo.profile import free_port

from .conftest import ENGINE, PYTHON, Server, environment, stop, wait_ready

Array = npt.NDArray[Any]
MODEL: Final = ENGINE / "models" / "tiny-kimi25"
LAYERS: Final = 6
KEPT: Final = (2, 3, 4)
"""Boundaries of the dumps that faults are put into; the real dump has all, so that wrong ones are at hand."""
CHUNK: Final = 32
SHAPES: Final = ((40, 24), (40, 24), (12, 30), (70, 20), (25, 16), (33, 12), (9, 40), (48, 8))
"""Prompt and output tokens of the requests."""


@dataclass
class Part:
    """One shard in memory: its tensors by name, one axis the row, and its samples."""

    tensors: dict[str, Array]
    samples: list[Sample]

    def rows(self, place: int) -> slice:
        """Where a sample's rows are."""
        first = sum(sample.rows for sample in self.samples[:place])
        return slice(first, first + self.samples[place].rows)


@dataclass(frozen=True)
class Real:
    """The real dump, cut into two shards, and states that it has no tensor for."""

    manifest: Manifest
    shards: tuple[Part, ...]
    """With all boundaries."""
    before_norm: Mapping[str, Array]
    """[rows, hidden] of each request before the final norm, in the dump's type."""


Fault = Callable[[Real, list[Part]], None]


def capture(directory: Path) -> Path:
    """Dump every boundary of the tiny model by a real server, in `directory`; the dump's directory."""
    sockets = Path(tempfile.mkdtemp(prefix="kimi-"))
    port, log, root = free_port(), directory / "server.log", directory / "dumps"
    root.mkdir(parents=True)
    command = [
        str(PYTHON), "-m", "sglang.launch_server", "--model-path", str(MODEL), "--device", "cpu",
        "--attention-backend", "torch_native", "--host", "127.0.0.1", "--port", str(port), "--tp", "1",
        "--max-total-tokens", "4096", "--context-length", "2048", "--disable-radix-cache",
        "--chunked-prefill-size", str(CHUNK), "--enable-return-aux-hidden-states", "--speculative-algorithm", "EAGLE3",
        "--return-aux-hidden-state-layer-ids", *map(str, range(LAYERS)),
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            env=environment(1, sockets, root, 1),
        )  # fmt: skip
    try:
        server = Server(process, port, sockets, root, log)
        wait_ready(server)
        made = server.start_dump("real")
        source = random.Random(7)
        requests = [
            (f"request-{place}", [source.randrange(3, 500) for _ in range(prompt)], new)
            for place, (prompt, new) in enumerate(SHAPES)
        ]
        server.generate_all(requests)
        server.stop_dump()
    finally:
        stop(process)
        shutil.rmtree(sockets)
    return made


def load(directory: Path, before_norm: Mapping[str, Array]) -> Real:
    """The dump, its samples in order of their names, cut into two shards."""
    (commit,) = read_commits(directory)[0]
    shard = read_shard(directory / commit.shard)
    order = sorted(range(len(shard.meta.samples)), key=lambda place: shard.meta.samples[place].rid)
    halves = (order[: len(order) // 2], order[len(order) // 2 :])
    return Real(read_manifest(directory), tuple(_part(shard, half) for half in halves), before_norm)


def save(real: Real, directory: Path, fault: Fault | None = None) -> Path:
    """Write the dump with the kept boundaries, and with a fault in it, as the plugin would."""
    parts = [_with_boundaries(part, KEPT) for part in real.shards]
    if fault is not None:
        fault(real, parts)
    directory.mkdir(parents=True)
    manifest = replace(real.manifest, boundaries=KEPT, conventions=conventions(KEPT, 0), dump=directory.name)
    (directory / MANIFEST).write_bytes(manifest.encode())
    for number, part in enumerate(parts):
        rows = [sample.rows for sample in part.samples]
        path = directory / f"shard-TP0-{number:06}.safetensors"
        size, digest = write_shard(
            path, part.tensors | {"sample_offsets": np.cumsum([0, *rows])}, dump=directory.name,
            dtype=STATE_DTYPES[manifest.dtype], boundaries=KEPT, samples=tuple(part.samples),
        )  # fmt: skip
        commit = Commit(path.name, size, sum(rows), len(rows), digest, manifest.created + number)
        with (directory / COMMITS).open("ab") as file:
            file.write(encode_commit(commit))
    return directory


def one_layer_too_late(real: Real, parts: list[Part]) -> None:
    """Every column holds the boundary after the one it is labelled with."""
    late = tuple(boundary + 1 for boundary in KEPT)
    for part, whole in zip(parts, real.shards, strict=True):
        part.tensors["aux_hidden_states"] = _with_boundaries(whole, late).tensors["aux_hidden_states"]


def norm_swapped(real: Real, parts: list[Part]) -> None:
    """The last state is the one before the final norm."""
    for part in parts:
        part.tensors["last_hidden_state"] = np.concatenate([real.before_norm[sample.rid] for sample in part.samples])


def zero_rows(real: Real, parts: list[Part]) -> None:
    """A few rows of one boundary were never written."""
    parts[1].tensors["aux_hidden_states"][20:23, 1] = 0


def not_a_number(real: Real, parts: list[Part]) -> None:
    """One value of one row overflowed."""
    parts[0].tensors["aux_hidden_states"][31, 2, 5] = 0x7FC0


def tokens_shifted(real: Real, parts: list[Part]) -> None:
    """Each row is labelled with the token after its own."""
    for part in parts:
        for place in range(len(part.samples)):
            tokens = part.tensors["token_ids"][part.rows(place)]
            tokens[:] = np.roll(tokens, -1)


def order_swapped(real: Real, parts: list[Part]) -> None:
    """Two boundaries have each other's column."""
    for part in parts:
        part.tensors["aux_hidden_states"] = part.tensors["aux_hidden_states"][:, [1, 0, 2]]


def first_chunk_dropped(real: Real, parts: list[Part]) -> None:
    """The rows of one long prompt's first chunk are not there."""
    _drop_chunk(parts[0], 3, CHUNK)


def requests_swapped(real: Real, parts: list[Part]) -> None:
    """Two requests of the same length have each other's states."""
    part = parts[0]
    one, other = part.rows(0), part.rows(1)
    for name in ("aux_hidden_states", "last_hidden_state"):
        states = part.tensors[name]
        states[one], states[other] = states[other].copy(), states[one].copy()


def shard_duplicated(real: Real, parts: list[Part]) -> None:
    """A shard's rows are written again under the next name, for requests of another name."""
    again = [replace(sample, rid=f"again-{place}") for place, sample in enumerate(parts[0].samples)]
    parts.append(Part(dict(parts[0].tensors), again))


FAULTS: Final[dict[str, tuple[Fault, str]]] = {
    "one layer too late": (one_layer_too_late, "layer identity"),
    "pre/post-norm swapped": (norm_swapped, "final norm"),
    "zero rows": (zero_rows, "zero rows"),
    "NaN": (not_a_number, "non-finite"),
    "tokens shifted by one": (tokens_shifted, "token shift"),
    "aux order swapped": (order_swapped, "aux order"),
    "a dropped first chunk": (first_chunk_dropped, "first chunk"),
    "rows of two requests swapped": (requests_swapped, "swapped requests"),
    "a duplicated shard": (shard_duplicated, "duplicate shard"),
}
"""Each fault and the kind of problem that names it."""


def table(results: Mapping[str, tuple[str, list[dict[str, str]]]]) -> list[str]:
    """The faults with what was said of them: (kind that was expected, problems found)."""
    lines = []
    for name, (expected, problems) in results.items():
        kinds = {problem["kind"] for problem in problems}
        text = next((problem["text"] for problem in problems if problem["kind"] == expected), "–")
        lines.append(f"{'✓' if expected in kinds else '✖'} {name:30} {expected:18} {re.sub(r'; .*', '', text)}")
    caught = sum(line.startswith("✓") for line in lines)
    return [*lines, f"{caught} of {len(lines)} caught and named"]


def bits(values: Array, dtype: str) -> Array:
    """Float values in the dump's type; bf16 as uint16, rounded to nearest even."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    whole = values.astype(np.float32).view(np.uint32)
    rounded: Array = ((whole + 0x7FFF + ((whole >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def states(shard: Part, place: int) -> Array:
    """[boundaries + 1, rows, hidden] float32 of a sample."""
    rows = shard.rows(place)
    aux = to_float32(shard.tensors["aux_hidden_states"][rows]).transpose(1, 0, 2)
    return np.concatenate([aux, to_float32(shard.tensors["last_hidden_state"][rows])[None]])


def _part(shard: Shard, places: list[int]) -> Part:
    offsets = shard.sample_offsets.tolist()
    rows = np.concatenate([np.arange(offsets[place], offsets[place + 1]) for place in places])
    tensors = {name: shard.tensor(name)[rows].copy() for name in TENSORS if name != "sample_offsets"}
    return Part(tensors, [shard.meta.samples[place] for place in places])


def _with_boundaries(part: Part, boundaries: tuple[int, ...]) -> Part:
    tensors = {name: tensor.copy() for name, tensor in part.tensors.items()}
    tensors["aux_hidden_states"] = tensors["aux_hidden_states"][:, list(boundaries)]
    return Part(tensors, list(part.samples))


def _drop_chunk(part: Part, place: int, length: int) -> None:
    rows = part.rows(place)
    kept = np.ones(len(part.tensors["token_ids"]), bool)
    kept[rows.start : rows.start + length] = False
    part.tensors = {name: tensor[kept] for name, tensor in part.tensors.items()}
    part.samples[place] = replace(part.samples[place], rows=part.samples[place].rows - length)
