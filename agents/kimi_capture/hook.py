"""The entry point that SGLang calls in each of its processes: hooks the scheduler ranks, leaves the others alone."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kimi_capture.capture import Capture
from kimi_capture.checks import ABORT, CONFIGURE, FORWARD, RESULT

SCHEDULERS: Final = frozenset({"run_scheduler_process", "run_scheduler_process_with_init_pipe"})


def register() -> None:
    """Hook this process if it is a scheduler rank that a launcher asked to capture (`KIMI_CAPTURE_SOCKETS`)."""
    sockets = os.environ.get("KIMI_CAPTURE_SOCKETS")
    target = getattr(multiprocessing.current_process(), "_target", None)
    if sockets is None or getattr(target, "__name__", None) not in SCHEDULERS:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - only SGLang has it

    root = os.environ["KIMI_CAPTURE_ROOT"]
    capture = Capture(Path(sockets), os.environ.get("KIMI_CAPTURE_RUN", ""), Path(root))
    for path, hook in hooks(capture).items():
        HookRegistry.register(path, hook, HookType.AFTER)


def hooks(capture: Capture) -> dict[str, Callable[..., None]]:
    """The hooks by the function after which they run; none of them can raise or change a result."""
    guard = capture.guard

    @guard
    def configured(result: object, *, model: Any, **others: object) -> None:
        capture.on_configured(model)

    @guard
    def forward(result: Any, runner: Any, forward_batch: Any, *others: object, **options: object) -> None:
        capture.on_forward(result, runner, forward_batch)

    @guard
    def batch_result(result: object, scheduler: object, batch: Any, *others: object, **options: object) -> None:
        capture.on_result(batch)

    @guard
    def abort_output(result: object, scheduler: object, abort_req: object, req: Any) -> None:
        capture.on_abort(req)

    return {
        CONFIGURE.path: configured,
        FORWARD.path: forward,
        RESULT.path: batch_result,
        ABORT.path: abort_output,
    }
