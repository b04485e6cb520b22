"""Verify a dump with its model: what the weights of the norm and the head say, and what a forward pass says."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

import kimi_agent
from kimi_agent.errors import UsageError
from kimi_agent.shards.dumps import Dump, Problem
from kimi_agent.shards.head import check_head, check_norm, norm_step
from kimi_agent.shards.match import Expected, Finding, Float, Rows, judge, shifted
from kimi_agent.shards.weights import NoWeight, Weights
from kimi_agent.text import clean
from kimi_capture.format import Shard, read_shard, to_float32

TOKENS: Final = 4096
"""Tokens of a dump that go through the forward pass."""
FORWARD_SHARDS: Final = 64
"""Shards whose samples do, spread evenly over the dump."""
HEAD_SHARDS: Final = 8
"""Shards for which logits are computed."""
SEQUENCE: Final = 1024
"""Rows of one sample that do; rows depend on those before them only."""
REFERENCE_BYTES: Final = 256 << 20
"""Memory for the states that the model computes."""
WEIGHTS_SHARE: Final = 0.6
"""Share of the host's free memory that the model's weights may take."""
OVERHEAD: Final = 2 << 30
"""Bytes that the child needs beside the weights."""
DEADLINE: Final = 3600.0
NAMED: Final = 3
ADVICE: Final = "Leave its samples out of the training and capture them again"


@dataclass(frozen=True, slots=True)
class Check:
    """One check with the model's weights, and what of the dump it has seen."""

    check: str
    """`final norm`, `head` or `forward pass`."""
    rows: int
    of: int
    """Rows that the dump has."""
    ok: bool | None
    """None when it could not be made."""
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The check as `shards verify --json` prints it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ModelResult:
    """What the model says of a dump."""

    directory: Path
    checks: tuple[Check, ...]
    problems: tuple[Problem, ...]


def verify_with_model(dump: Dump, shards: Sequence[str], directory: Path, python: str = sys.executable) -> ModelResult:
    """Check the named shards of a dump, which must be readable, with the weights in a directory.

    `python` runs the forward pass and needs transformers for it.

    Raises:
        UsageError: the directory holds no model, or another one than the dump's.
    """
    weights = Weights(directory)
    expected = expected_of(dump, weights)
    paths = [dump.directory / name for name in shards]
    rows = sum(commit.rows for commit in dump.commits if commit.shard in set(shards))
    results = [_norm(paths, weights, rows), _head(paths, weights, rows)]
    explained = {problem.file for _, found in results for problem in found}
    results.append(_forward(paths, weights, expected, python, rows))
    problems = [problem for _, found in results[:2] for problem in found]
    known = {(problem.file, problem.kind) for problem in problems}
    for problem in results[2][1]:
        vague = problem.kind == "foreign rows" and problem.file in explained
        if (problem.file, problem.kind) not in known and not vague:
            problems.append(problem)
    return ModelResult(directory, tuple(check for check, _ in results), tuple(problems))


def expected_of(dump: Dump, weights: Weights) -> Expected:
    """What the weights say the dump must be. Raises UsageError when they are another model's."""
    manifest = dump.manifest
    if manifest is None:
        raise UsageError(f"{dump.directory} has no manifest", "Without it nothing can be held against a model")
    text = weights.text_config
    found = (text.get("hidden_size"), text.get("num_hidden_layers"))
    if found != (manifest.hidden_size, manifest.num_layers):
        raise UsageError(
            f"{weights.directory} is not the dump's model: it has hidden size and layers {found[0]} and {found[1]}, "
            f"the dump {manifest.hidden_size} and {manifest.num_layers}",
            f"Give {manifest.model.get('path')}",
        )
    return Expected(manifest.boundaries, manifest.num_layers)


def _norm(paths: Sequence[Path], weights: Weights, rows: int) -> tuple[Check, list[Problem]]:
    try:
        weight = weights.final_norm()
    except NoWeight as reason:
        return Check("final norm", 0, rows, None, str(reason)), []
    seen, problems = 0, []
    for path in paths:
        shard = read_shard(path)
        seen += len(range(0, shard.rows, norm_step(shard)))
        problems += [_problem(shard, kind, text) for kind, text in check_norm(shard, weight)]
    return Check("final norm", seen, rows, not problems), problems


def _head(paths: Sequence[Path], weights: Weights, rows: int) -> tuple[Check, list[Problem]]:
    seen, problems = 0, []
    try:
        for path in _spread(paths, HEAD_SHARDS):
            shard = read_shard(path)
            looked, found = check_head(shard, weights)
            seen += looked
            problems += [_problem(shard, kind, text) for kind, text in found]
    except NoWeight as reason:
        return Check("head", seen, rows, None, str(reason)), problems
    return Check(
        "head", seen, rows, not problems if seen else None, "" if seen else "no sample is long enough"
    ), problems


def _forward(
    paths: Sequence[Path], weights: Weights, expected: Expected, python: str, rows: int
) -> tuple[Check, list[Problem]]:
    try:
        runner = runner_for(weights, python)
    except CannotRun as reason:
        return Check(
            "forward pass", 0, rows, None, f"{reason}: layers, order and whose rows they are stay unchecked"
        ), []
    hidden = int(weights.text_config["hidden_size"])
    budget = min(TOKENS, REFERENCE_BYTES // ((expected.layers + 2) * hidden * 4))
    samples = list(select([read_shard(path) for path in _spread(paths, FORWARD_SHARDS)], budget))
    try:
        references = runner.states([sample.tokens for sample in samples])
        findings = _judge(samples, references, expected, runner)
    except CannotRun as reason:
        return Check("forward pass", 0, rows, None, str(reason)), []
    problems = list(_grouped(findings))
    return Check("forward pass", sum(len(sample.tokens) for sample in samples), rows, not problems), problems


def _judge(
    samples: Sequence[Rows], references: Sequence[Float], expected: Expected, runner: "Runner"
) -> list[tuple[Rows, Finding]]:
    pairs = list(zip(samples, references, strict=True))
    findings = [(sample, found) for sample, mine in pairs for found in judge(sample, mine, expected, pairs)]
    puzzles = [sample for sample, found in findings if found.unexplained]
    if not puzzles:
        return findings
    explained: dict[str, Finding] = {}
    for step, where in ((1, "ahead of"), (-1, "behind")):
        for sample, mine in zip(puzzles, runner.states([np.roll(p.tokens, step) for p in puzzles]), strict=True):
            if shifted(sample, mine, expected):
                text = f"the tokens are shifted by one: they are one {where} their rows"
                explained[sample.rid] = Finding("token shift", text)
    return [(sample, explained.get(sample.rid, found) if found.unexplained else found) for sample, found in findings]


class CannotRun(Exception):  # noqa: N818 - an answer, not a failure
    """The forward pass could not be made; says why."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs the model in a child with bounded memory."""

    python: str
    model: Path
    memory: int
    """Bytes."""

    def states(self, sequences: "Sequence[np.ndarray[Any, Any]]") -> list[Float]:
        """[layers + 2, rows, hidden] of each sequence of tokens [rows]. Raises CannotRun."""
        root = str(Path(kimi_agent.__file__).parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        env = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        with tempfile.TemporaryDirectory(prefix="kimi-verify-") as work:
            given, out = Path(work) / "tokens.npz", Path(work) / "states.npz"
            np.savez(given, allow_pickle=False, **{str(place): tokens for place, tokens in enumerate(sequences)})
            command = [
                self.python, "-m", "kimi_agent.shards.forward", *map(str, (self.model, given, out, self.memory)),
            ]  # fmt: skip
            try:
                done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise CannotRun(clean(f"{self.python} could not run the model: {error}")) from error
            if done.returncode:
                last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
                raise CannotRun(clean(f"{self.python} could not run the model: {last}", 400))
            with np.load(out) as file:
                return [file[str(place)] for place in range(len(sequences))]


def runner_for(weights: Weights, python: str) -> Runner:
    """What runs a model on this host. Raises CannotRun when its weights do not fit into the free memory."""
    needed = sum(
        entry.end - entry.start if entry.dtype == "F32" else 2 * (entry.end - entry.start)
        for entry in weights.entries.values()
    )
    free = psutil.virtual_memory().available
    if needed > WEIGHTS_SHARE * free:
        raise CannotRun(f"in float32 the model takes {needed >> 30} GiB, {free >> 30} GiB are free")
    return Runner(python, weights.directory, needed + OVERHEAD)


def rows_of_sample(shard: Shard, place: int, most: int) -> Rows | None:
    """A sample's first rows, `most` of them; None when it has none or rows are missing before one of them."""
    first = int(shard.sample_offsets[place])
    length = min(shard.meta.samples[place].rows, most)
    if length <= 0 or not np.array_equal(shard.positions[first : first + length], np.arange(length)):
        return None
    rows = slice(first, first + length)
    aux = to_float32(shard.aux_hidden_states[rows]).transpose(1, 0, 2)
    columns = np.concatenate([aux, to_float32(shard.last_hidden_state[rows])[None]])
    return Rows(shard.path.name, shard.meta.samples[place].rid, shard.token_ids[rows], columns)


def select(shards: Sequence[Shard], budget: int) -> Iterator[Rows]:
    """Samples until `budget` tokens are used up: the first of every shard, then the second ones, and so on."""
    most = max((len(shard.meta.samples) for shard in shards), default=0)
    for place in range(most):
        for shard in shards:
            if place >= len(shard.meta.samples):
                continue
            rows = rows_of_sample(shard, place, min(SEQUENCE, budget))
            if rows is not None:  # else rows are missing before: the model would see another text
                budget -= len(rows.tokens)
                yield rows


def _spread(paths: Sequence[Path], most: int) -> Sequence[Path]:
    """At most so many of the shards, spread evenly over the dump."""
    return paths[:: max(1, -(-len(paths) // most))]


def _grouped(findings: Sequence[tuple[Rows, Finding]]) -> Iterator[Problem]:
    """One problem for what is wrong with several samples of a shard in the same way."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for sample, found in findings:
        text = found.text if found.kind != "foreign rows" else "the rows are not what the model computes for the tokens"
        groups.setdefault((sample.shard, found.kind, text), []).append(sample.rid)
    for (shard, kind, text), rids in groups.items():
        named = ", ".join(rids[:NAMED]) + (f" and {len(rids) - NAMED} more" if len(rids) > NAMED else "")
        yield Problem(kind, clean(shard), clean(f"{text}, in request {named}"), ADVICE)


def _problem(shard: Shard, kind: str, text: str) -> Problem:
    return Problem(kind, clean(shard.path.name), clean(text), ADVICE)
