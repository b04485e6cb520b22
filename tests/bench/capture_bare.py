"""A plugin for the benchmark: takes the capture plugin's hooks out of a running engine, and puts them back.

So that a round without the plugin runs in the same process as the rounds with it: two engines started alike differ by
more than capture costs. What the plugin added to decode's CUDA graphs stays in them.
"""

import multiprocessing
import os
import pkgutil
from pathlib import Path
from typing import Any

from kimi_capture.checks import ABORT, CONFIGURE, FORWARD, RESULT
from kimi_capture.control import Control
from kimi_capture.facts import text_model


class Hooks:
    """The hooked functions, wrapped and bare."""

    def __init__(self) -> None:
        self._norm: dict[int, Any] = {}
        self._kept: dict[int, Any] = {}
        self._wrapped: dict[str, Any] = {}

    def on_configured(self, result: object, *, model: Any, **others: object) -> None:
        """Remember where the final norm keeps its hooks."""
        self._norm = text_model(model).norm._forward_hooks

    def switch(self, request: dict[str, Any]) -> dict[str, Any]:
        """{"bare": whether the engine is to run without the plugin}."""
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
