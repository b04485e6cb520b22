"""Captured rows held against the engine: its head applied to them must give the logits that it computed itself.

Now and then the hook keeps the logits of one row (a copy on the stream, nothing waits). When that row's request ends
and its rows are on their way into a shard, a thread applies the head to the row as captured and compares. So it covers
the way from the engine's buffers to the shard: which row, which request, what bytes.
"""

import math
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kimi_capture.chunk import Rows
from kimi_capture.format import Array, SelfCheck
from kimi_capture.guard import Guard
from kimi_capture.modes import Entries
from kimi_capture.rows import Piece

if TYPE_CHECKING:
    import torch

INTERVAL: Final = 1.0
"""Seconds between two rows that are kept: to apply a head of 2.3 GB takes the device 0.6 ms (H200)."""
PENDING: Final = 16
"""Rows that may wait for their request to end; the oldest goes."""
TOLERANCE: Final = {"float32": 1e-4, "bfloat16": 2.0**-6, "float16": 2.0**-9}
"""Largest difference of logits that rounding explains, relative to the largest logit."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The engine's logits after one row."""

    position: int
    logits: "torch.Tensor"
    """[vocabulary of this rank] as the engine made them."""
    ready: "torch.cuda.Event | None"


class Head:
    """This rank's part of the matrix that makes logits."""

    def __init__(self, model: Any) -> None:
        """Finds it in a model. Raises ValueError when its logits cannot be computed again."""
        text = getattr(model, "language_model", model)
        head = getattr(text, "lm_head", None)
        weight, places = getattr(head, "weight", None), getattr(head, "shard_indices", None)
        if weight is None or not weight.dtype.is_floating_point or weight.dim() != 2 or weight.element_size() < 2:
            raise ValueError("the head has no plain weights")
        if hasattr(head, "set_lora") or getattr(head, "use_intel_amx_backend", False):
            raise ValueError("the head's weights are packed or adapted")
        processor = getattr(text, "logits_processor", None)
        self.softcap: float | None = getattr(processor, "final_logit_softcapping", None)
        self.scale: float | None = getattr(processor, "logit_scale", None)
        self.first = places.org_vocab_start_index if places else 0
        self.last = places.org_vocab_end_index if places else len(weight)
        self.weight = weight

    def logits(self, row: "torch.Tensor") -> "torch.Tensor":
        """[vocabulary of this rank] float32 after a last state [H]."""
        found = (row[None].to(self.weight.dtype) @ self.weight[: self.last - self.first].T)[0].float()
        if self.scale is not None:
            found = found * self.scale
        return found if not self.softcap else self.softcap * (found / self.softcap).tanh()


class Checker:
    """The standing self-check of one rank's dumps. `keep` is for the hooks' thread, `check` for the writer's."""

    def __init__(self, guard: Guard, *, interval: float = INTERVAL) -> None:
        self.reason: str | None = "the model was not looked at yet"
        """Why nothing is checked, if so."""
        self._head: Head | None = None
        self._kept: dict[str, Kept] = {}
        self._next = 0.0
        self._interval = interval
        self._lock = threading.Condition()
        self._open = 0
        """Comparisons that are not done."""
        self._totals = SelfCheck(0, 0.0, 0.0, 0)
        self._guard = guard
        self._side: torch.cuda.Stream | None = None
        self._jobs: queue.SimpleQueue[tuple[str, Kept, Array]] = queue.SimpleQueue()
        threading.Thread(target=self._compare_for_ever, name="kimi-capture-check", daemon=True).start()

    def totals(self, patience: float = 0.0) -> SelfCheck | None:
        """What was found since the dump began, once what is being compared is done or `patience` seconds passed.

        None when nothing was checked yet.
        """
        with self._lock:
            self._lock.wait_for(lambda: not self._open, patience)
            return self._totals if self._totals.checked else None

    def attach(self, model: Any) -> None:
        """Use a model's head; sets `reason` when that cannot be done."""
        try:
            self._head, self.reason = Head(model), None
        except ValueError as error:
            self.reason = str(error)

    def reset(self) -> None:
        """A dump begins."""
        with self._lock:
            self._kept.clear()
            self._totals = SelfCheck(0, 0.0, 0.0, 0)

    def keep(self, entries: Entries, pieces: Sequence[Piece], logits: "torch.Tensor | None") -> None:
        """Keep the logits [requests, vocabulary] of one of a step's requests that are kept, if it is time again."""
        now = time.monotonic()
        if self._head is None or logits is None or now < self._next:
            return
        wanted, offset = {piece.offset for piece in pieces}, 0
        for place, (rid, start, length) in enumerate(entries):
            if offset in wanted and rid not in self._kept:
                self._next = now + self._interval
                self._copy(rid, start + length - 1, logits[place, self._head.first : self._head.last])
                return
            offset += length

    def _copy(self, rid: str, position: int, logits: "torch.Tensor") -> None:
        mine, ready = logits.clone(), None
        if mine.is_cuda:
            import torch  # noqa: PLC0415 - only scheduler ranks have it

            ready = torch.cuda.current_stream(mine.device).record_event()
        with self._lock:
            if len(self._kept) >= PENDING:
                self._kept.pop(next(iter(self._kept)))
            self._kept[rid] = Kept(position, mine, ready)

    def check(self, rid: str, parts: list[Rows]) -> None:
        """A request's rows are complete: hand over the one that was kept, if one was."""
        with self._lock:
            kept = self._kept.pop(rid, None)
        if kept is None:
            return
        place = kept.position
        for part in parts:
            rows = part.arrays["last_hidden_state"]
            if place < len(rows):
                with self._lock:
                    self._open += 1
                self._jobs.put((rid, kept, rows[place].copy()))
                return
            place -= len(rows)

    def describe(self) -> dict[str, Any]:
        """The `self_check` part of a status."""
        totals = self._totals
        return {
            "checked": totals.checked,
            "max_error": totals.max_error,
            "mean_error": totals.mean_error,
            "failed": totals.failed,
            "reason": self.reason,
        }

    def _compare_for_ever(self) -> None:
        compare = self._guard(self._compare)
        while True:
            compare(*self._jobs.get())
            with self._lock:
                self._open -= 1
                self._lock.notify_all()

    def _compare(self, rid: str, kept: Kept, row: Array) -> None:
        import torch  # noqa: PLC0415

        assert self._head is not None
        device, dtype = self._head.weight.device, kept.logits.dtype
        host = torch.from_numpy(row.view("int16") if row.dtype == "uint16" else row)
        if row.dtype == "uint16":
            host = host.view(torch.bfloat16)
        if kept.ready is None:
            error, scale = difference(self._head.logits(host.to(device)), kept.logits)
        else:
            self._side = self._side or torch.cuda.Stream(device)
            with torch.cuda.stream(self._side):
                self._side.wait_event(kept.ready)
                error, scale = difference(self._head.logits(host.to(device)), kept.logits)
        weight = str(self._head.weight.dtype).removeprefix("torch.")
        limit = max(TOLERANCE.get(weight, 0.0), TOLERANCE.get(str(dtype).removeprefix("torch."), 0.0)) * max(scale, 1.0)
        self._book(error)
        if not error <= limit:
            self._drift(rid, kept.position, error, limit)

    def _book(self, error: float) -> None:
        with self._lock:
            totals = self._totals
            checked = totals.checked + 1
            mean = totals.mean_error + (error - totals.mean_error) / checked
            self._totals = SelfCheck(checked, max(totals.max_error, error), mean, totals.failed)

    def _drift(self, rid: str, position: int, error: float, limit: float) -> None:
        with self._lock:
            totals = self._totals
            self._totals = SelfCheck(totals.checked, totals.max_error, totals.mean_error, totals.failed + 1)
        self._guard.note(
            f"self-check: the head on row {position} of request {rid} gives other logits than the engine computed, "
            f"off by {error:.3g}, {limit:.2g} is rounding"
        )


def difference(mine: "torch.Tensor", engine: "torch.Tensor") -> tuple[float, float]:
    """Largest difference of two rows of log-probabilities, and the largest logit, of logits [vocabulary]."""
    theirs = engine.float()
    far = (mine.log_softmax(-1) - theirs.log_softmax(-1)).abs().max()
    error, scale = float(far), float(theirs.abs().max())
    return (error if math.isfinite(error) else math.inf), scale
