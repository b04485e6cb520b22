"""Which state of the model a sample's rows are, whatever they are called: its own tokens go through the model.

That takes the model's weights and the memory for them in float32, and a Python with transformers; the weights are
looked for where the manifest says the server loaded them, or in the directory that is given.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from kimi_agent.shards.dumps import Dump
from kimi_agent.shards.match import FITS, distances, judge
from kimi_agent.shards.model import SEQUENCE, CannotRun, expected_of, rows_of_sample, runner_for
from kimi_agent.shards.tokens import model_directory
from kimi_agent.shards.weights import Weights
from kimi_agent.text import clean
from kimi_capture.format import Shard


def best_boundaries(
    dump: Dump, shard: Shard, place: int, model: Path | None = None, python: str = sys.executable
) -> dict[str, Any]:
    """What `shards match` says of one sample; `columns` is empty and `why` says why when it cannot be told.

    Each column has its claimed `layer`, the `best` state in words, the medians of the rows' relative distances from
    both, and whether the best one `fits`.

    Raises:
        UsageError: the given directory holds no model, or another one than the dump's.
    """
    sample = shard.meta.samples[place]
    told: dict[str, Any] = {
        "rid": clean(sample.rid, 200), "shard": clean(shard.path.name), "model": None, "rows": 0, "columns": [],
        "findings": [], "why": "",
    }  # fmt: skip
    named = dump.manifest.model.get("path") if dump.manifest else None
    directory = model or model_directory(named)
    if directory is None:
        looked = f"{clean(named)}, as the manifest says, is not on this host" if named else "the manifest names none"
        return told | {"why": f"the model's weights are needed: {looked}. Give their directory with --model DIR"}
    told["model"] = clean(str(directory))
    rows = rows_of_sample(shard, place, SEQUENCE)
    if rows is None:
        return told | {"why": "its first rows are missing: the model would see another text"}
    weights = Weights(directory)
    expected = expected_of(dump, weights)
    try:
        reference = runner_for(weights, python).states([rows.tokens])[0]
    except CannotRun as reason:
        return told | {"why": f"the model cannot be run here: {reason}"}
    names = [*map(str, expected.boundaries), "last"]
    for name, column, claimed in zip(names, rows.columns, expected.columns, strict=True):
        medians = np.median(distances(column, reference), axis=1)
        best = int(medians.argmin())
        told["columns"].append({
            "layer": name, "claimed": expected.name(claimed), "best": expected.name(best),
            "best_distance": _finite(medians[best]), "claimed_distance": _finite(medians[claimed]),
            "right": best == claimed, "fits": bool(medians[best] <= FITS),
        })  # fmt: skip
    told["rows"] = len(rows.tokens)
    told["findings"] = [clean(f"{found.kind}: {found.text}") for found in judge(rows, reference, expected, [])]
    return told


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
