"""A plugin for the benchmark: the two ways in which others write hidden states, inside the same engine.

Re-created from their description, with their best settings, and without what they do besides (no padding, no filters):

* `torch`: on the forward thread a pageable `.cpu().clone()` of each tensor of a sample, then `torch.save` of one file a
  sample in a pool of as many threads as there are cores, at most 50 samples waiting. No fsync, no rename, no hash.
* `safetensors`: the same copies, then one safetensors file a sample in the pool, under an flock of a `.lock` file.

BENCH_CONTENDERS names a file with {"mode", "directory", "rows"}; it is read at every step, so the way can be changed
while the server runs. Each sample that was written adds one byte to `directory/done`.
"""

import fcntl
import json
import multiprocessing
import os
from collections import defaultdict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

WAITING = 50
Sample = dict[str, Any]


class Contender:
    """Copies and writes samples of a known number of rows. One thread."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._parts: defaultdict[str, list[Sample]] = defaultdict(list)
        self._pool = ThreadPoolExecutor(os.cpu_count())
        self._pending: deque[Future[None]] = deque()

    def on_forward(self, result: Any, runner: Any, batch: Any, *others: object, **options: object) -> None:
        """After a step: take each request's rows, write the samples that are complete."""
        order = json.loads(self._control.read_text())
        if not order["mode"] or not batch.rids or not batch.forward_mode.is_extend():
            return
        output, offset = result.logits_output, 0
        for rid, count in zip(batch.rids, batch.extend_seq_lens_cpu, strict=False):
            rows = slice(offset, offset + count)
            offset += count
            self._parts[rid].append(
                {
                    "input_ids": batch.input_ids[rows].cpu().clone(),
                    "aux_hidden_state": output.hidden_states[rows].cpu().clone(),
                    "hidden_state": output.last_hidden_states[rows].cpu().clone(),
                }
            )
            if sum(len(part["input_ids"]) for part in self._parts[rid]) >= order["rows"]:
                self._submit(order["mode"], Path(order["directory"]), rid, self._parts.pop(rid))

    def _submit(self, mode: str, directory: Path, rid: str, parts: list[Sample]) -> None:
        while len(self._pending) >= WAITING:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(write, mode, directory, rid, parts))


def write(mode: str, directory: Path, rid: str, parts: list[Sample]) -> None:
    """Write one sample as one file."""
    import torch  # noqa: PLC0415
    from safetensors.torch import save_file  # noqa: PLC0415

    sample = parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if mode == "torch":
        torch.save(sample, directory / f"{rid}.ckpt")
    else:
        with (directory / f"{rid}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            save_file(sample, directory / f"{rid}.safetensors")
    with (directory / "done").open("ab") as done:
        done.write(b".")


def register() -> None:
    """SGLang's entry point."""
    control = os.environ.get("BENCH_CONTENDERS")
    target = getattr(multiprocessing.current_process(), "_target", None)
    if control is None or not getattr(target, "__name__", "").startswith("run_scheduler_process"):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    contender = Contender(Path(control))
    HookRegistry.register(
        "sglang.srt.model_executor.model_runner.ModelRunner.forward", contender.on_forward, HookType.AFTER
    )
