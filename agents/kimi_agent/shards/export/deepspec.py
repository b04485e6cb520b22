"""DeepSpec's target cache, version 2: one binary file a shard, an index of fixed records, a manifest."""

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, ClassVar, Final

import numpy as np

from kimi_agent.errors import UsageError
from kimi_agent.shards.export.base import Entry, Facts, Format, Piece, Source, block_outputs
from kimi_agent.shards.export.rows import ExportRows, runs
from kimi_capture.format import Array, Manifest, write_durably

RECORD: Final = struct.Struct("<QIIQQQQQ")
"""Sample, shard, tokens, and where its ids, attention mask, loss mask, aux states and last states begin."""
VERSION: Final = 2


class DeepSpec(Format):
    """`shard-NNNNN.bin`, `samples.idx`, `manifest.json`."""

    name: ClassVar[str] = "deepspec"
    consumer: ClassVar[str] = "DeepSpec, target cache version 2"
    convention: ClassVar[str] = "0-based block outputs, −1 for the embedding"

    def layer_ids(self, boundaries: tuple[int, ...]) -> list[int]:
        return block_outputs("DeepSpec", boundaries, -1)

    def refusal(self, manifest: Manifest, boundaries: tuple[int, ...]) -> UsageError | None:
        if manifest.dtype == "bfloat16":
            return None
        return UsageError(
            f"DeepSpec's cache holds bfloat16 and the dump {manifest.dtype}: it would have to be rounded",
            "Export to another format.",
        )

    def place(self, number: int) -> str:
        return f"shard-{number:05}.bin"

    def write_shard(self, samples: Iterable[Source], directory: Path, dtype: str) -> Iterator[Piece]:
        path = directory / "shard.bin"
        with path.open("wb") as file:
            entries = tuple(_write(file, place, rows, source) for place, rows, source in samples)
            file.flush()
            os.fsync(file.fileno())
        if entries:
            yield Piece(path, entries)

    def finish(self, facts: Facts, pieces: Mapping[int, Piece]) -> tuple[str, ...]:
        index = bytearray()
        sample = 0
        for shard, piece in sorted(pieces.items()):
            for entry in piece.entries:
                index += RECORD.pack(sample, shard, entry.tokens, *entry.offsets)
                sample += 1
        manifest = {
            "version": VERSION,
            "num_samples": sample,
            "num_shards": len(pieces),
            "target_layer_ids": self.layer_ids(facts.boundaries),
            "hidden_dtype": "bfloat16",
            "token_dtype": "int32",
            "mask_dtype": "uint8",
            "index_record_size": RECORD.size,
            "hidden_size": facts.manifest.hidden_size,
            "shards": [{"shard_id": number, "file_name": self.place(number)} for number in sorted(pieces)],
            "target_model_name_or_path": facts.manifest.model.get("path"),
        }
        for name, data in (("samples.idx", bytes(index)), ("manifest.json", json.dumps(manifest, indent=2).encode())):
            temporary = facts.out / f".{name}.tmp"
            write_durably(temporary, [memoryview(data)])
            temporary.rename(facts.out / name)
        return "samples.idx", "manifest.json"


def _write(file: BinaryIO, place: int, rows: ExportRows, source: str) -> Entry:
    tokens = len(rows.input_ids)
    arrays: tuple[Array, ...] = (
        rows.input_ids.astype("<i4"), np.ones(tokens, np.uint8), rows.loss_mask, rows.aux, rows.last,
    )  # fmt: skip
    offsets = []
    for array in arrays:
        offsets.append(file.tell())
        file.write(np.ascontiguousarray(array).data)
    return Entry(place, rows.rid, tokens, runs(rows.loss_mask), source, tuple(offsets))
