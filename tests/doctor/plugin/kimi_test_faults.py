"""A plugin of SGLang's own kind that brings real faults into a real server, as `KIMI_TEST_FAULT` names them.

load-raises[:RANK]   the model runner raises after it has loaded the weights, in one tensor rank or in all
forward-raises       the first forward pass raises, which is the warm-up's
forward-forgets      the model returns no auxiliary states, as a patched model does that forgets a forward mode
compiles             after loading, torch's old baton is waited for, then torch builds a C++ extension under its lock
"""

import os
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "slow_to_compile.cpp"
FAULT, _, RANK = os.environ.get("KIMI_TEST_FAULT", "").partition(":")


def load_raises(result: object, runner: Any, *others: object, **options: object) -> None:
    from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415 - only SGLang has it

    if not RANK or get_parallel().tp_rank == int(RANK):
        raise ValueError("a weight of layer 3 has the wrong shape")


def forward_raises(result: object, runner: Any, *others: object, **options: object) -> None:
    raise RuntimeError("the first forward pass failed")


def forgets(original: Any, *arguments: Any, **options: Any) -> Any:
    result = original(*arguments, **options)
    return result[0] if isinstance(result, tuple) else result


def compiles(result: object, runner: Any, *others: object, **options: object) -> None:
    from torch.utils.cpp_extension import load  # noqa: PLC0415 - only SGLang's processes have it
    from torch.utils.file_baton import FileBaton  # noqa: PLC0415

    baton = FileBaton(str(Path(os.environ["TORCH_EXTENSIONS_DIR"]) / "kimi_old" / "lock"))
    if baton.try_acquire():
        baton.release()
    else:
        baton.wait()
    load(name="kimi_slow", sources=[str(SOURCE)], is_python_module=False)


def register() -> None:
    """Hook what the fault needs."""
    if not FAULT:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - only SGLang has it

    runner = "sglang.srt.model_executor.model_runner.ModelRunner"
    model = "sglang.srt.models.deepseek_v2.DeepseekV2Model.forward"
    faults = {
        "load-raises": (f"{runner}.load_model", load_raises, HookType.AFTER),
        "forward-raises": (f"{runner}.forward", forward_raises, HookType.AFTER),
        "forward-forgets": (model, forgets, HookType.AROUND),
        "compiles": (f"{runner}.load_model", compiles, HookType.AFTER),
    }
    HookRegistry.register(*faults[FAULT])
