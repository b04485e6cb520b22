"""A plugin for the benchmark: takes the capture plugin's hooks, or parts of its work, out of a running engine, and puts
them back.

So that a round without the plugin runs in the same process as the rounds with it: two engines started alike differ by
more than capture costs. What the plugin added to decode's CUDA graphs stays in them.
"""

import multiprocessing
import os
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kimi_capture import staging, writer
from kimi_capture.checks import ABORT, CONFIGURE, FORWARD, RESULT
from kimi_capture.control import Control
from kimi_capture.facts import text_model
from kimi_capture.rows import DUMP_FAILED

COPY, MOMENTS, SEND, WRITE = "copy", "moments", "send", "write"
"""The rows to memory of their own on the device; their moments; to the host; into shards."""
WHOLE: Final = (COPY, MOMENTS, SEND, WRITE)


class Parts:
    """What capture does of its work with the rows; the rest is left out, and the dump's rows are nobody's."""

    def __init__(self) -> None:
        self.done: tuple[str, ...] = WHOLE
        self._copy, self._send, self._submit = staging.copy, staging.Stager._send, writer.Writer._submit
        staging.copy = self.copy
        for owner, name, ours in ((staging.Stager, "_send", self.send), (writer.Writer, "_submit", self.submit)):
            setattr(owner, name, method(ours))

    def copy(self, targets: Any, source: Any) -> None:
        """In place of `staging.copy`."""
        if COPY in self.done:
            self._copy(targets, source)

    def send(self, stager: Any, taken: Any, held: Any, host: Any) -> Any:
        """In place of `Stager._send`."""
        if self.done == WHOLE:
            return self._send(stager, taken, held, host)
        import torch  # noqa: PLC0415

        stager._side.wait_event(taken)
        with torch.cuda.stream(stager._side):
            if MOMENTS in self.done:
                stager._moments(held["aux_hidden_states"], held["last_hidden_state"], held["moments"])
            if SEND in self.done:
                self._copy(host, held)
            copied = torch.cuda.Event(blocking=True)
            copied.record(stager._side)
        return copied

    def submit(self, one: Any) -> None:
        """In place of `Writer._submit`."""
        if WRITE in self.done:
            self._submit(one)
            return
        batch, one._batch = one._batch, writer.Batch([])
        one._lost(batch.rows, DUMP_FAILED, None)
        one._wait_for(-batch.bytes)


def method(function: Callable[..., Any]) -> Callable[..., Any]:
    """One that is called with the object that it is a method of."""

    def called(*given: Any) -> Any:
        return function(*given)

    return called


class Hooks:
    """The hooked functions, wrapped and bare."""

    def __init__(self) -> None:
        self._norm: dict[int, Any] = {}
        self._kept: dict[int, Any] = {}
        self._wrapped: dict[str, Any] = {}
        self._parts = Parts()

    def on_configured(self, result: object, *, model: Any, **others: object) -> None:
        """Remember where the final norm keeps its hooks."""
        self._norm = text_model(model).norm._forward_hooks

    def switch(self, request: dict[str, Any]) -> dict[str, Any]:
        """{"bare": whether the engine is to run without the plugin, "parts": what capture is to do with rows}."""
        self._parts.done = tuple(request["parts"])
        self._kept = self._kept or dict(self._norm)
        self._norm.clear()
        if not request["bare"]:
            self._norm.update(self._kept)
        for path in (FORWARD.path, RESULT.path, ABORT.path):
            owner, _, name = path.rpartition(".")
            wrapped = self._wrapped.setdefault(path, pkgutil.resolve_name(path))
            setattr(pkgutil.resolve_name(owner), name, wrapped.__wrapped__ if request["bare"] else wrapped)
        return {}


def register() -> None:
    """SGLang's entry point."""
    path = os.environ.get("BENCH_BARE")
    target = getattr(multiprocessing.current_process(), "_target", None)
    if path is None or not getattr(target, "__name__", "").startswith("run_scheduler_process"):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    hooks = Hooks()
    HookRegistry.register(CONFIGURE.path, hooks.on_configured, HookType.AFTER)
    Control(Path(path), {"switch": hooks.switch})
