"""What the final norm's and the head's weights alone say of captured rows: no forward pass is needed for it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from kimi_agent.counts import many
from kimi_agent.shards.weights import Weights
from kimi_capture.format import Shard, to_float32

Float = npt.NDArray[np.float32]
NORM_ROWS: Final = 512
"""Rows of a shard whose norm is looked at."""
HEAD_ROWS: Final = 512
"""Rows of a shard for which logits are computed."""
NORM_LOW: Final = 0.9
NORM_HIGH: Final = 1.05
"""A normed row divided by the norm's weight has this RMS: 1, less what epsilon takes off a small row."""
SURE: Final = 6.0
"""Standard errors by which the tokens must fit better elsewhere."""
NATS: Final = 10.0
"""Log-likelihood by which the tokens must fit better elsewhere."""


@dataclass(frozen=True, slots=True)
class Part:
    """One sample's rows that are looked at: the last state, and the tokens, of its first rows."""

    rid: str
    last: Float
    """[rows, hidden]."""
    tokens: npt.NDArray[np.int64]
    """[rows]."""


def parts(shard: Shard, rows: int) -> list[Part]:
    """Whole samples from the shard's beginning until `rows` are used up; the last one may be cut."""
    chosen: list[Part] = []
    for sample, first in zip(shard.meta.samples, shard.sample_offsets.tolist(), strict=False):
        span = slice(first, first + min(sample.rows, rows))
        chosen.append(Part(sample.rid, to_float32(shard.last_hidden_state[span]), shard.token_ids[span]))
        rows -= sample.rows
        if rows <= 0:
            break
    return [part for part in chosen if np.isfinite(part.last).all() and part.last.any(axis=1).all()]


def check_norm(shard: Shard, weight: Float) -> Iterator[tuple[str, str]]:
    """(kind, text) when the last state is not what a final norm with this weight gives."""
    ratio = normed_rms(to_float32(shard.last_hidden_state[:: norm_step(shard)]), weight)
    ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
    wrong = (ratio < NORM_LOW) | (ratio > NORM_HIGH)
    if ratio.size and wrong.mean() > 0.01:
        held = float(np.median(ratio[wrong]))
        text = f"the last state is not post-norm in {int(wrong.sum())} of {many(ratio.size, 'row')}"
        yield "final norm", f"{text}: over the norm's weight its rms is {held:.3g}, 1 expected, as before the norm"


def norm_step(shard: Shard) -> int:
    """Every so many-th row's norm is looked at."""
    return max(1, shard.rows // NORM_ROWS)


def normed_rms(last: Float, weight: Float) -> Float:
    """[rows] RMS of rows [rows, hidden] divided by the final norm's weight, over the channels where that is not 0."""
    usable = np.abs(weight) > 1e-3 * np.abs(weight).max(initial=0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        found: Float = np.sqrt(np.square(last[:, usable] / weight[usable]).mean(axis=1))
    return found


def check_head(shard: Shard, weights: Weights) -> tuple[int, list[tuple[str, str]]]:
    """Rows looked at, and (kind, text) when the tokens fit the logits of other rows better than of their own.

    Raises NoWeight when the head's weights cannot be used.
    """
    chosen = [part for part in parts(shard, HEAD_ROWS) if len(part.tokens) > 3]
    if not chosen:
        return 0, []
    states = np.concatenate([part.last for part in chosen])
    wanted, places = np.unique(np.concatenate([part.tokens for part in chosen]), return_inverse=True)
    table = log_likelihood(weights, states, wanted)
    bounds = np.cumsum([0, *(len(part.tokens) for part in chosen)])
    spans = [np.arange(first, last) for first, last in pairwise(bounds)]
    return len(states), [*_shifts(table, places, spans), *_swaps(table, places, spans, chosen)]


def log_likelihood(weights: Weights, states: Float, tokens: npt.NDArray[np.int64]) -> Float:
    """[rows, tokens] log-probability that the head gives each token after each row. Raises NoWeight."""
    name = weights.head()
    highest = np.full(len(states), -np.inf, np.float32)
    total = np.zeros(len(states), np.float32)
    logits = np.zeros((len(states), len(tokens)), np.float32)
    for first, block in weights.blocks(name):
        values = states @ block.T
        top = np.maximum(highest, values.max(axis=1))
        total = total * np.exp(highest - top) + np.exp(values - top[:, None]).sum(axis=1)
        highest = top
        inside = (tokens >= first) & (tokens < first + len(block))
        logits[:, inside] = values[:, tokens[inside] - first]
    normal: Float = logits - (highest + np.log(total))[:, None]
    return normal


def better(difference: Float) -> bool:
    """Whether log-likelihoods [n] that are gained are gained for sure, and not by chance."""
    total, spread = float(difference.sum()), float(difference.std())
    return total > NATS and total > SURE * spread * np.sqrt(len(difference))


def _shifts(
    table: Float, places: npt.NDArray[np.intp], spans: Sequence[npt.NDArray[np.intp]]
) -> Iterator[tuple[str, str]]:
    """Row i predicts token i + 1; where it predicts token i or i + 2 better, the tokens are shifted."""
    inner = [rows[:-2] for rows in spans]
    own = np.concatenate([table[rows, places[rows + 1]] for rows in inner])
    for step, where in ((-1, "before"), (1, "after")):
        other = np.concatenate([table[rows, places[rows + 1 + step]] for rows in inner])
        if better(other - own):
            gain = float((other - own).mean())
            yield (
                "token shift",
                (
                    f"the tokens are shifted by one: each row predicts the token {where} its next one better, "
                    f"by {gain:.2f} nats a row"
                ),
            )


def _swaps(
    table: Float, places: npt.NDArray[np.intp], spans: Sequence[npt.NDArray[np.intp]], chosen: Sequence[Part]
) -> Iterator[tuple[str, str]]:
    """Two requests whose rows predict each other's tokens better than their own."""
    for one, other in combinations(range(len(spans)), 2):
        length = min(len(spans[one]), len(spans[other]))
        mine, theirs = spans[one][:length], spans[other][:length]
        if all(
            better(table[rows[:-1], places[tokens[1:]]] - table[rows[:-1], places[rows[1:]]])
            for rows, tokens in ((mine, theirs), (theirs, mine))
        ):
            names = f"{chosen[one].rid} and {chosen[other].rid}"
            yield "swapped requests", f"requests {names} have each other's rows"
