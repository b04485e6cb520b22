"""Downloads in progress: partial files that grow, held open by the server or lying where its model goes."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kimi_agent.host.procfs import open_files

PARTIAL: Final = (".incomplete", ".part", ".partial", ".download", ".crdownload", ".aria2", "_tmp", ".tmp")
"""How tools name a file that is not complete yet."""
INDEX: Final = "model.safetensors.index.json"


def partial_files(tree: Iterable[int], model: str) -> set[Path]:
    """Partial files that these processes are writing, and those in the model's directory."""
    found = {Path(target) for pid in tree for target in open_files(pid) if target.endswith(PARTIAL)}
    place = Path(model)
    if place.is_dir():
        for directory in (place, place / ".cache" / "huggingface" / "download"):
            found |= _partial_in(directory)
    return {path for path in found if path.is_file()}


def _partial_in(directory: Path) -> set[Path]:
    try:
        with os.scandir(directory) as entries:
            return {Path(entry.path) for entry in entries if entry.name.endswith(PARTIAL)}
    except OSError:
        return set()


def sizes(paths: Iterable[Path]) -> dict[Path, int]:
    """Bytes that each file has on its disk, not what was set aside for it; one that is gone is left out."""
    found = {}
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        found[path] = min(status.st_size, status.st_blocks * 512)
    return found


def progress(path: Path, model: str) -> tuple[int | None, int | None]:
    """(bytes in all, bytes present) of the download that a partial file belongs to, by the model's own index.

    `None` where no index is there yet.
    """
    for place in _places(path, model):
        index = next(iter(sorted(place.rglob(INDEX))), None)
        if index is None:
            continue
        try:
            total = int(json.loads(index.read_text("utf-8"))["metadata"]["total_size"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        complete = sum(sizes({file.resolve() for file in index.parent.glob("*.safetensors")}).values())
        return total, complete + sum(sizes(_partial_in(path.parent)).values())
    return None, None


def _places(path: Path, model: str) -> list[Path]:
    """Where the index may lie: the model's directory, or the snapshots beside a Hugging Face blob."""
    beside = path.parent.parent / "snapshots" if path.parent.name == "blobs" else path.parent
    return [place for place in (beside, Path(model)) if place.is_dir()]
