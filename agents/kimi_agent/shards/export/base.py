"""What every export format says of itself, and what those have in common that write one file a sample."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from kimi_agent.errors import UsageError
from kimi_agent.shards.export.rows import ExportRows, runs
from kimi_capture.format import Manifest

EXACT: Final = "after the final norm, as captured"
RECONSTRUCTED: Final = (
    "before the final norm, reconstructed from the state after it and the row's RMS: "
    "off by up to one unit in the last place (0.8 % in bf16)"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One exported sample, as the export's journal keeps it."""

    place: int
    """Its number in its shard."""
    rid: str
    tokens: int
    mask: list[tuple[int, int]]
    """Positions from and up to that count."""
    source: str
    """Where the mask comes from."""
    offsets: tuple[int, ...] = ()
    """Where its tensors begin in a file that it shares."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One file that was written, and what is in it."""

    path: Path
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a format may write about the whole export."""

    out: Path
    boundaries: tuple[int, ...]
    manifest: Manifest
    dtype: str
    """BF16, F16 or F32."""


Source = tuple[int, ExportRows, str]
"""A sample's number in its shard, its rows, and where its mask comes from."""


class Format(ABC):
    """One consumer's layout."""

    name: ClassVar[str]
    consumer: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    """Python packages that writing it needs; SGLang depends on all of them."""
    pre_norm: ClassVar[bool] = False
    """Whether the consumer applies the final norm itself."""
    convention: ClassVar[str] = "physical boundaries"

    def layer_ids(self, boundaries: tuple[int, ...]) -> list[int]:
        """The boundaries as the consumer's configuration spells them."""
        return list(boundaries)

    def refusal(self, manifest: Manifest, boundaries: tuple[int, ...]) -> UsageError | None:
        """Why this dump's layers or dtype cannot be what the consumer expects; None when they can."""
        return None

    @abstractmethod
    def place(self, number: int) -> str:
        """Where, in the export, the file of that number lies."""

    @abstractmethod
    def write_shard(self, samples: Iterable[Source], directory: Path, dtype: str) -> Iterator[Piece]:
        """Write a shard's samples into files of `directory`; each is durable when it is yielded."""

    def finish(self, facts: Facts, pieces: Mapping[int, Piece]) -> tuple[str, ...]:
        """Write what the consumer needs beside the files, of all pieces by number; the names of what was written."""
        return ()


class PerSample(Format):
    """A format of one file a sample."""

    suffix: ClassVar[str]

    def place(self, number: int) -> str:
        return f"{number:08}{self.suffix}"

    def write_shard(self, samples: Iterable[Source], directory: Path, dtype: str) -> Iterator[Piece]:
        for place, rows, source in samples:
            path = directory / f"{place}{self.suffix}"
            self.write(rows, path, dtype)
            entry = Entry(place, rows.rid, len(rows.input_ids), runs(rows.loss_mask), source)
            yield Piece(path, (entry,))

    @abstractmethod
    def write(self, rows: ExportRows, path: Path, dtype: str) -> None:
        """Write one sample's file, durably."""


def block_outputs(name: str, boundaries: tuple[int, ...], lowest: int) -> list[int]:
    """Boundaries as 0-based outputs of blocks. Raises UsageError below `lowest`."""
    ids = [boundary - 1 for boundary in boundaries]
    if min(ids) < lowest:
        raise UsageError(
            f"boundary 0, the embedding, has no id in {name}'s spelling, which counts blocks by their output",
            "Leave it out with --layers.",
        )
    return ids


def describe(layout: Format, boundaries: tuple[int, ...], manifest: Manifest) -> dict[str, Any]:
    """What the export is, for a person and for a script that checks it before training."""
    return {
        "format": layout.name,
        "consumer": layout.consumer,
        "dump": manifest.dump,
        "model": manifest.model,
        "tokenizer": manifest.tokenizer,
        "boundaries": list(boundaries),
        "layer_ids": {"convention": layout.convention, "ids": layout.layer_ids(boundaries)},
        "last_hidden_state": RECONSTRUCTED if layout.pre_norm else EXACT,
        "exact": not layout.pre_norm,
    }
