"""Run by the engine's Python with the trainers' packages: what each one's own loader makes of an export.

`python reading.py OUT.npz FORMAT=DIRECTORY…`: arrays by `format/sample/key`, bf16 as its bits in int16.
"""
# ruff: noqa: PLC0415 - each trainer is imported only when its export is read

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

MAX_TOKENS = 4096


def specforge(directory: Path) -> Iterator[dict[str, Any]]:
    from specforge.algorithms.eagle3.data import build_offline_normalizer, build_offline_reader
    from specforge.runtime.data_plane.feature_store import LocalFeatureStore

    reader = build_offline_reader(str(directory), run_id="test", ttt_length=7, max_len=MAX_TOKENS)
    reader.validate_files = True
    normalise, store = build_offline_normalizer(MAX_TOKENS), LocalFeatureStore()
    for ref in sorted(reader.read(), key=lambda ref: int(Path(ref.feature_store_uri).stem.split("_")[1])):
        raw, _ = store.get(ref)
        yield {f"raw_{key}": value for key, value in raw.items()} | normalise(raw)


def speculators(directory: Path) -> Iterator[dict[str, Any]]:
    from hs_connectors import FileTransfer
    from speculators.data_generation.offline import check_hidden_states
    from speculators.train.data import ArrowDataset, CollateFn

    dataset = ArrowDataset(MAX_TOKENS, directory, on_missing="raise")
    cached = FileTransfer(directory / "hidden_states")
    for number in range(len(dataset)):
        held = cached.get_cached(number)
        check_hidden_states(held, dataset.data[number]["input_ids"].tolist())
        item = dataset[number]
        assert dataset.approx_lengths[number] == len(item["input_ids"])
        width = item["verifier_last_hidden_states"].shape[1]
        layers = item["hidden_states"].shape[1] // width
        batch = CollateFn(MAX_TOKENS, width, layers)([item])
        assert batch["hidden_states"].shape == (1, MAX_TOKENS, layers * width)
        yield item


def modelopt(directory: Path) -> Iterator[dict[str, Any]]:
    from modelopt.torch.speculative.eagle.utils import EagleOfflineDataCollator, OfflineSupervisedDataset

    dataset = OfflineSupervisedDataset(sorted(directory.glob("*.pt")), answer_only_loss=True)
    batch = EagleOfflineDataCollator(64)([dataset[number] for number in range(len(dataset))])
    assert batch["base_model_outputs"]["base_hidden_prenorm"] is False
    yield from (dataset[number] for number in range(len(dataset)))


def plain(value: torch.Tensor) -> Any:
    return (value.view(torch.int16) if value.dtype == torch.bfloat16 else value).numpy()


def main(out: str, *exports: str) -> None:
    readers = {"specforge": specforge, "speculators": speculators, "modelopt": modelopt}
    arrays: dict[str, Any] = {}
    for export in exports:
        name, _, directory = export.partition("=")
        for number, item in enumerate(readers[name](Path(directory))):
            tensors = {key: value for key, value in item.items() if isinstance(value, torch.Tensor)}
            arrays |= {f"{name}/{number}/{key}": plain(value) for key, value in tensors.items()}
    np.savez(out, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
