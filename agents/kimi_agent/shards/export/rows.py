"""One sample as an export writes it: the chosen boundaries, and the last state before or after the final norm."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kimi_agent.shards.samples import SampleRows
from kimi_capture.format import Array, to_float32
from kimi_capture.prenorm import reconstruct_pre_norm


class Inexact(Exception):  # noqa: N818 - an answer, not a failure
    """A sample cannot be had in the form that the consumer needs; says why."""


@dataclass(frozen=True, slots=True)
class Norm:
    """What takes the last state back to before the final norm."""

    weight: npt.NDArray[np.float32]
    """[H] what the norm multiplies by."""
    eps: float


@dataclass(frozen=True, slots=True)
class ExportRows:
    """One sample of T tokens; state arrays are of the dump's dtype, bf16 as uint16."""

    rid: str
    input_ids: Array
    """[T] int64."""
    loss_mask: npt.NDArray[np.uint8]
    """[T], 0 or 1."""
    aux: Array
    """[T, K, H], of the chosen boundaries in ascending order."""
    last: Array
    """[T, H], after the final norm or, when a `Norm` was given, before it."""
    rms: Array | None
    """[T] float32 of the state before the norm, where the dump has it."""


def export_rows(rows: SampleRows, columns: tuple[int, ...], norm: Norm | None) -> ExportRows:
    """A sample's rows, of the boundaries at `columns`.

    Raises:
        Inexact: `norm` is given and the sample lacks what the state before it is made from.
    """
    aux = rows.aux_hidden_states
    chosen = aux if columns == tuple(range(aux.shape[1])) else aux[:, list(columns)]
    last = rows.last_hidden_state if norm is None else _before(rows, norm)
    return ExportRows(
        rows.sample.rid, rows.token_ids, rows.loss_mask, chosen, last, rows.last_pre_norm_rms
    )  # fmt: skip


def from_float32(values: npt.NDArray[np.float32], like: np.dtype[np.generic]) -> Array:
    """Finite values rounded to nearest, ties to even, in the dtype of a state array; uint16 is bf16. Same shape."""
    if like != np.uint16:
        return values.astype(like)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def runs(mask: npt.NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Where a mask is 1, as positions from and up to."""
    edges = np.flatnonzero(np.diff(mask, prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _before(rows: SampleRows, norm: Norm) -> Array:
    rms = rows.last_pre_norm_rms
    if rms is None:
        raise Inexact("its shard has no RMS of the state before the final norm")
    if unknown := int(np.isnan(rms).sum()):
        raise Inexact(f"the RMS of the state before the final norm is not known for {unknown} of {len(rms)} rows")
    restored = reconstruct_pre_norm(to_float32(rows.last_hidden_state), rms, norm.weight, norm.eps)
    if not np.isfinite(restored).all():
        raise Inexact("its state before the final norm is not finite")
    return from_float32(restored, rows.last_hidden_state.dtype)
