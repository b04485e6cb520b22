"""The length of every row that goes into the model's final norm, also when a CUDA graph replays it.

A forward hook on the norm computes it right behind the norm. In an eager step the hook keeps the result; while a graph
is being captured it writes into memory of its own, which every replay of that graph writes again. It is one kernel; the
division by the root of the width, which makes the RMS of it, is left to the host (`kimi_capture.chunk`).
"""

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

ROWS: Final = 1 << 18
"""Rows of the memory that graphs write into; more than any step has."""
ONE_PLUS: Final = "Gemma"
"""How the classes of norms that multiply by 1 + weight begin."""


class FinalNorm:
    """Watches one model's final norm. One thread only."""

    def __init__(self) -> None:
        self.reason: str | None = "the model was not looked at yet"
        """Why the RMS is not to be had; None when it is."""
        self.facts: dict[str, float] | None = None
        """The norm's eps and offset."""
        self._graphs: torch.Tensor | None = None
        self._recorded = False
        self._eager: torch.Tensor | None = None

    def attach(self, norm: Any) -> None:
        """Hook a model's final norm, before any graph is captured; sets `reason` when that cannot be done."""
        kind = type(norm).__name__
        if norm is None or "RMSNorm" not in kind or getattr(norm, "weight", None) is None:
            self.reason = f"the model's final norm is {'not found' if norm is None else f'a {kind}'}"
            return
        if getattr(norm, "variance_size_override", None) is not None:
            self.reason = f"the final norm, a {kind}, takes the variance of some channels only"
            return
        self.facts = {"eps": float(norm.variance_epsilon), "offset": 1.0 if kind.startswith(ONE_PLUS) else 0.0}
        self._graphs = norm.weight.new_full((ROWS,), math.nan, dtype=_float32())
        self.reason = "the final norm has not run yet: the model may fuse it with something else"
        norm.register_forward_hook(self._after)

    def take(self, rows: int, *, replayed: bool) -> "torch.Tensor":
        """Lengths [rows] float32 of the rows of the step that was just launched; NaN where they are not known."""
        eager, self._eager = self._eager, None
        held = self._graphs if replayed and self._recorded else eager
        if held is not None and len(held) >= rows:
            return held[:rows]
        assert self._graphs is not None, "no final norm was hooked"
        return self._graphs.new_full((rows,), math.nan)

    def forget(self) -> None:
        """The step's RMS is not wanted."""
        self._eager = None

    def _after(self, norm: Any, inputs: tuple[Any, ...], output: Any) -> None:
        import torch  # noqa: PLC0415 - only scheduler ranks have it

        state = output[1] if isinstance(output, tuple) else inputs[0]
        if not isinstance(state, torch.Tensor) or state.dim() != 2:
            self.reason = "the final norm does not take rows of hidden states"
            return
        assert self._graphs is not None
        if state.is_cuda and torch.cuda.is_current_stream_capturing():
            torch.linalg.vector_norm(state, dim=-1, dtype=torch.float32, out=self._graphs[: len(state)])
            self._recorded = True
        else:
            self._eager = torch.linalg.vector_norm(state, dim=-1, dtype=torch.float32)
        self.reason = None


def _float32() -> Any:
    import torch  # noqa: PLC0415

    return torch.float32
