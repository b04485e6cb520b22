"""An export from its plan to its end: shards over processes, in order, each file noted when it is durable."""

import json
import shutil
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any, Final

from kimi_agent.errors import KimiError, UsageError
from kimi_agent.shards.dumps import Dump
from kimi_agent.shards.export.base import Facts, Format, describe
from kimi_agent.shards.export.deepspec import DeepSpec
from kimi_agent.shards.export.journal import TEMPORARY, Journal, open_journal
from kimi_agent.shards.export.plain import Numpy, Safetensors
from kimi_agent.shards.export.rows import Norm
from kimi_agent.shards.export.trainers import ModelOpt, SpecForge, Speculators
from kimi_agent.shards.export.worker import Job, Outcome, Plan, Refused, begin, export_shard
from kimi_agent.shards.masks import read_masks
from kimi_agent.shards.meter import Meter
from kimi_agent.shards.model import expected_of
from kimi_agent.shards.samples import manifest_of, sound_dump
from kimi_agent.shards.weights import NoWeight, Weights
from kimi_agent.text import clean
from kimi_capture.format import STATE_DTYPES, Manifest, write_durably

FORMATS: Final[dict[str, Format]] = {
    layout.name: layout for layout in (SpecForge(), Speculators(), ModelOpt(), DeepSpec(), Safetensors(), Numpy())
}
AHEAD: Final = 2
"""Shards that wait in front of each process."""
LABELS: Final = "export.json"
"""In the export's directory: what it is, with layers, norm and counts."""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """An export that came to its end."""

    labels: dict[str, Any]
    out: Path
    samples: int
    """In the export now, those of earlier runs too."""
    new: int
    tokens: int
    sources: dict[str, int]
    """Samples by where their loss mask comes from."""
    refused: tuple[Refused, ...]
    seconds: float

    @property
    def left_out(self) -> int:
        """Samples that are not in the export."""
        return sum(entry.samples for entry in self.refused)

    def as_json(self) -> dict[str, Any]:
        """The result as `shards export --json` prints it and `export.json` keeps it."""
        return self.labels | {
            "ok": not self.refused,
            "directory": str(self.out),
            "samples": self.samples,
            "new": self.new,
            "tokens": self.tokens,
            "loss_masks": self.sources,
            "left_out": self.left_out,
            "refused": [
                {"shard": clean(one.shard), "rid": one.rid, "samples": one.samples, "why": one.why}
                for one in self.refused
            ],
            "seconds": round(self.seconds, 3),
        }


def make_plan(
    directory: Path, out: Path, name: str, layers: tuple[int, ...] | None = None, model: Path | None = None
) -> Plan:
    """Decide what is exported; `layers` are physical boundaries, `model` the weights' directory if not the dump's.

    Raises:
        UsageError: the dump cannot be read, or cannot be what the consumer expects.
    """
    dump, layout = sound_dump(directory), FORMATS[name]
    manifest = manifest_of(dump)
    boundaries = _boundaries(manifest, layers)
    if manifest.last_hidden_norm != "post":
        raise UsageError(
            f"the last state of {directory} is {clean(manifest.last_hidden_norm)}-norm, every export starts from post",
            "Capture it with this console's plugin.",
        )
    if (refusal := layout.refusal(manifest, boundaries)) is not None:
        raise refusal
    layout.layer_ids(boundaries)
    norm = _norm(dump, manifest, layout, model) if layout.pre_norm else None
    for package in layout.packages:
        if find_spec(package) is None:
            raise UsageError(
                f"the format {name} needs the Python package {package}, which this Python does not have",
                "Run it with SGLang's Python, or install the package there.",
            )
    columns = tuple(manifest.boundaries.index(boundary) for boundary in boundaries)
    return Plan(dump, out, layout, boundaries, columns, STATE_DTYPES[manifest.dtype], norm)


def run_export(plan: Plan, jobs: int, meter: Meter | None = None) -> ExportResult:
    """Export what is not exported yet; the same call again goes on where another ended, however it ended.

    Raises:
        UsageError: the directory holds something else.
        KimiError: it cannot be written.
    """
    began, manifest = monotonic(), manifest_of(plan.dump)
    labels = describe(plan.layout, plan.boundaries, manifest)
    refused: list[Refused] = []
    try:
        journal = open_journal(plan.out, json.loads(json.dumps(labels)), plan.layout.place)
        with closing(journal):
            before = len(journal.entries)
            for outcome in _outcomes(plan, _jobs(plan, journal), jobs, meter):
                _take(plan, journal, outcome)
                refused += outcome.refused
            plan.layout.finish(Facts(plan.out, plan.boundaries, manifest, plan.dtype), journal.pieces)
            shutil.rmtree(plan.out / TEMPORARY)
            entries = journal.entries
            result = ExportResult(
                labels, plan.out, len(entries), len(entries) - before, sum(entry.tokens for entry in entries),
                dict(Counter(entry.source for entry in entries)), tuple(refused), monotonic() - began,
            )  # fmt: skip
            _write_labels(result)
    except OSError as error:
        hint = "Free space or correct the permissions; the same command goes on where it stopped."
        raise KimiError(f"{plan.out} cannot be written: {error.strerror or error}", hint, slug="export") from error
    return result


def _write_labels(result: ExportResult) -> None:
    temporary = result.out / f".{LABELS}.tmp"
    write_durably(temporary, [memoryview(json.dumps(result.as_json(), indent=1).encode() + b"\n")])
    temporary.rename(result.out / LABELS)


def _boundaries(manifest: Manifest, layers: tuple[int, ...] | None) -> tuple[int, ...]:
    if layers is None:
        return manifest.boundaries
    if absent := [layer for layer in layers if layer not in manifest.boundaries]:
        raise UsageError(
            f"boundaries {' '.join(map(str, absent))} are not in the dump",
            f"It has {' '.join(map(str, manifest.boundaries))}; --layers takes physical boundaries.",
        )
    return tuple(sorted(set(layers)))


def _norm(dump: Dump, manifest: Manifest, layout: Format, model: Path | None) -> Norm:
    """What the state before the final norm is made from."""
    why = manifest.pre_norm_reason or "this dump was captured without it"
    if manifest.pre_norm != "rms" or manifest.final_norm is None:
        raise UsageError(
            f"{layout.consumer} takes the last state before the final norm, and {dump.directory} has no RMS to "
            f"reconstruct it from: {clean(why)}",
            "Capture it again where the final norm can be hooked, or export to a format that takes it after the norm.",
        )
    path = model or Path(manifest.model.get("path") or "")
    if not path.is_dir():
        raise UsageError(
            "the final norm's weight is needed, and the dump's model is not on this host",
            "Give its directory: --model DIR.",
        )
    weights = Weights(path)
    expected_of(dump, weights)
    try:
        weight = weights.final_norm()
    except NoWeight as error:
        raise UsageError(f"the final norm's weight cannot be had: {error}", "Give another --model DIR.") from error
    if zero := int((weight == 0).sum()):
        raise UsageError(
            f"the final norm multiplies {zero} channels by 0: what was in them before cannot be reconstructed",
            "Export to a format that takes the last state after the norm.",
        )
    return Norm(weight, float(manifest.final_norm["eps"]))


def _jobs(plan: Plan, journal: Journal) -> list[Job]:
    masks = read_masks(plan.dump.directory)
    jobs = []
    for commit in plan.dump.commits:
        skip = frozenset(journal.done.get(commit.shard, ()))
        if len(skip) < commit.samples:
            own = {rid: masks[rid] for rid in commit.rids if rid in masks} if commit.rids else masks
            jobs.append(Job(commit, skip, own))
    return jobs


def _outcomes(plan: Plan, todo: list[Job], jobs: int, meter: Meter | None) -> Iterator[Outcome]:
    """What becomes of each shard, in order."""
    total, done = sum(job.commit.bytes for job in todo), 0
    for outcome in _in_turn(plan, todo) if min(jobs, len(todo)) <= 1 else _spread(plan, todo, jobs):
        yield outcome
        done += outcome.job.commit.bytes
        if meter is not None:
            meter.show(done, total, outcome.job.commit.shard)


def _in_turn(plan: Plan, todo: list[Job]) -> Iterator[Outcome]:
    return (export_shard(plan, job) for job in todo)


def _spread(plan: Plan, todo: list[Job], jobs: int) -> Iterator[Outcome]:
    with ProcessPoolExecutor(min(jobs, len(todo)), get_context("spawn"), begin) as pool:
        waiting: deque[Future[Outcome]] = deque()
        try:
            for job in todo:
                waiting.append(pool.submit(export_shard, plan, job))
                if len(waiting) > jobs * AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _take(plan: Plan, journal: Journal, outcome: Outcome) -> None:
    journal.take(outcome.pieces, outcome.job.commit.shard, plan.layout.place)
    if outcome.directory != plan.out:
        shutil.rmtree(outcome.directory)
