"""Real dumps, written by the plugin's own writer format into temporary directories."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kimi_capture.format import (
    COMMITS,
    MANIFEST,
    Commit,
    Manifest,
    Sample,
    conventions,
    encode_commit,
)
from kimi_capture.parts import write_shard
from kimi_console.demo.engine import Engine

from .trainers import install

BOUNDARIES = (2, 3, 4)
HIDDEN = 16
Change = Callable[[dict[str, npt.NDArray[Any]]], None]

MANIFEST_OF_TESTS = Manifest(
    dump="d1", run="run-a", created=1.7e9, boundaries=BOUNDARIES, conventions=conventions(BOUNDARIES, 0),
    dtype="bfloat16", hidden_size=HIDDEN, num_layers=6, last_hidden_norm="post",
    model={"path": "/nowhere/tiny", "class": "KimiK25ForConditionalGeneration", "config": None, "weights": None},
    tokenizer=None, sglang="0.5.23", plugin="0.1.0", argv=("python", "-m", "sglang.launch_server"), parallel={"tp": 2},
)  # fmt: skip


class DumpWriter:
    """A dump directory that grows by committed shards."""

    def __init__(self, directory: Path, **manifest: Any) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.manifest = replace(MANIFEST_OF_TESTS, dump=directory.name, **manifest)
        (directory / MANIFEST).write_bytes(self.manifest.encode())
        self.count = 0

    def samples(self, lengths: tuple[tuple[int, int], ...] = ((5, 3), (4, 1))) -> tuple[Sample, ...]:
        """Samples of (prompt, output) tokens with request ids that no other shard has."""
        return tuple(
            Sample(f"r{self.count}-{place}", prompt, output, prompt + output - 1, "stop")
            for place, (prompt, output) in enumerate(lengths)
        )

    def add(
        self, samples: tuple[Sample, ...] | None = None, change: Change | None = None, *, commit: bool = True,
        boundaries: tuple[int, ...] = BOUNDARIES, hidden: int = HIDDEN, dtype: str = "BF16", dump: str | None = None,
        rows: int | None = None,
    ) -> Path:  # fmt: skip
        """Write a shard of random states, changed by `change`, and commit it."""
        samples = self.samples() if samples is None else samples
        tensors = states(samples, len(boundaries), hidden, dtype, seed=self.count)
        if change is not None:
            change(tensors)
        path = self.directory / f"shard-TP0-{self.count:06}.safetensors"
        size, digest = write_shard(
            path, tensors, dump=dump or self.manifest.dump, dtype=dtype, boundaries=boundaries, samples=samples
        )
        total = sum(sample.rows for sample in samples) if rows is None else rows
        if commit:
            self.commit(Commit(path.name, size, total, len(samples), digest, 1.7e9 + self.count))
        self.count += 1
        return path

    def commit(self, commit: Commit) -> None:
        """Append one commit line."""
        with (self.directory / COMMITS).open("ab") as file:
            file.write(encode_commit(commit))


def states(
    samples: tuple[Sample, ...], boundaries: int, hidden: int, dtype: str, seed: int
) -> dict[str, npt.NDArray[Any]]:
    """Tensors of a shard as the engine would give them: random states, positions from 0 within each sample."""
    random = np.random.default_rng(seed)
    rows = sum(sample.rows for sample in samples)
    aux: npt.NDArray[Any] = random.normal(size=(rows, boundaries, hidden)).astype(np.float32)
    last: npt.NDArray[Any] = random.normal(size=(rows, hidden)).astype(np.float32)
    if dtype == "BF16":
        aux, last = ((values.view(np.uint32) >> 16).astype(np.uint16) for values in (aux, last))
    return {
        "aux_hidden_states": aux,
        "last_hidden_state": last,
        "token_ids": random.integers(0, 500, rows),
        "positions": np.concatenate([np.arange(sample.rows) for sample in samples] or [np.zeros(0, np.int64)]),
        "sample_offsets": np.cumsum([0, *(sample.rows for sample in samples)]),
    }


@pytest.fixture
def make_dump(tmp_path: Path) -> Callable[..., DumpWriter]:
    """Makes dump directories below tmp_path/dumps."""

    def make(name: str = "d1", **manifest: Any) -> DumpWriter:
        return DumpWriter(tmp_path / "dumps" / name, **manifest)

    return make


@pytest.fixture
def dump(make_dump: Callable[..., DumpWriter]) -> DumpWriter:
    """A dump of three good shards."""
    writer = make_dump()
    for _ in range(3):
        writer.add()
    return writer


@pytest.fixture(scope="session")
def trainers(engine: Engine) -> Path:
    """The trainers' own packages, for the engine's PYTHONPATH; the first time they come over the network."""
    try:
        return install(engine)
    except RuntimeError as error:
        pytest.fail(str(error), pytrace=False)
