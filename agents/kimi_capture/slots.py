"""Device memory that the engine's rows are copied to, before a side stream takes them to the host."""

from typing import TYPE_CHECKING, Final

from kimi_capture.chunk import Layout
from kimi_capture.transfer import Transfer

if TYPE_CHECKING:
    import torch

SLOTS: Final = 2
"""One is filled while the other is copied, many times as fast, to the host."""


class Slot:
    """Memory for one layout at a time."""

    def __init__(self) -> None:
        self.transfer: Transfer | None = None
        """The way to the host of what it held last."""
        self.views: dict[str, torch.Tensor] = {}
        self._buffer: torch.Tensor | None = None
        self._layout: Layout | None = None

    def fit(self, layout: Layout, side: "torch.cuda.Stream") -> None:
        """Make `views` those of a layout; the memory grows to the largest seen."""
        import torch  # noqa: PLC0415 - the format and the writer work without it

        if layout is self._layout:
            return
        if self._buffer is None or len(self._buffer) < layout.size:
            self._buffer = torch.empty(layout.size, dtype=torch.uint8, device=side.device)
            self._buffer.record_stream(side)  # a later growth frees it while the side stream may still read it
        self.views, self._layout = layout.views(self._buffer), layout


class Ring:
    """A few slots, used in turn by one thread."""

    def __init__(self) -> None:
        self._slots = [Slot() for _ in range(SLOTS)]
        self._next = 0

    def take(self, layout: Layout, side: "torch.cuda.Stream") -> Slot:
        """The slot whose turn it is; the current stream waits until it is free."""
        import torch  # noqa: PLC0415

        slot, self._next = self._slots[self._next], (self._next + 1) % SLOTS
        if slot.transfer is not None:
            torch.cuda.current_stream(side.device).wait_event(slot.transfer.begin())
        slot.fit(layout, side)
        return slot
