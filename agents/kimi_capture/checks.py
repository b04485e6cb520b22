"""Whether the SGLang functions that the plugin hooks are the ones it was verified with."""

import hashlib
import importlib
import inspect
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Target:
    """A hooked SGLang function and the fingerprint of its verified source."""

    module: str
    name: str
    fingerprint: str

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


VERIFIED: Final = "0.5.23"
CONFIGURE: Final = Target(
    "sglang.srt.model_executor.model_runner_components.attention_backend_setup",
    "configure_aux_hidden_state_capture",
    "3bb325e84aeb1183",
)
FORWARD: Final = Target("sglang.srt.model_executor.model_runner", "ModelRunner.forward", "19034759e5d5ec51")
RESULT: Final = Target("sglang.srt.managers.scheduler", "Scheduler.process_batch_result", "726305f46a979a47")
ABORT: Final = Target("sglang.srt.managers.scheduler", "Scheduler.send_abort_output", "fd50df816ad695e9")
TARGETS: Final = (CONFIGURE, FORWARD, RESULT, ABORT)


def fingerprint(function: object) -> str:
    """Hash of a function's source as it is before any hook. Raises OSError or TypeError when there is no source."""
    source = inspect.getsource(inspect.unwrap(function))  # type: ignore[arg-type]
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def warnings() -> list[str]:
    """One line for each hooked function whose source differs from the verified one, or is not there."""
    found = []
    for target in TARGETS:
        try:
            function: object = importlib.import_module(target.module)
            for part in target.name.split("."):
                function = getattr(function, part)
            known = fingerprint(function) == target.fingerprint
        except (ImportError, AttributeError, OSError, TypeError) as error:
            found.append(f"{target.path} cannot be checked: {error}")
            continue
        if not known:
            found.append(f"{target.path} differs from SGLang {VERIFIED}'s: check the first shard before a long dump")
    return found
