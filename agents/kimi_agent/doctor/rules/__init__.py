"""The doctor's rules: each looks at the evidence and returns a verdict, or `None` when it has nothing to say."""

from typing import Final

from kimi_agent.doctor.rules.common import BUSY, Rule, seconds
from kimi_agent.doctor.rules.ended import (
    capture_patch,
    dead_rank,
    disk_full,
    ended,
    exception,
    hardware,
    log_full,
    out_of_memory,
    port_in_use,
)  # fmt: skip
from kimi_agent.doctor.rules.serving import detokenizer, heartbeat, plugin_missing, proxy, silent, warm_up
from kimi_agent.doctor.rules.slow import compiling, downloading, lock_wait, storage, storage_moves
from kimi_agent.doctor.rules.waiting import comm_spin, deadlock, stopped, straggler, watchdog

__all__ = ["BUSY", "RULES", "Rule", "heartbeat", "seconds", "storage_moves"]

RULES: Final[tuple[Rule, ...]] = (
    out_of_memory, disk_full, port_in_use, capture_patch, exception, dead_rank, hardware, stopped, watchdog, ended,
    compiling, downloading, storage, log_full, plugin_missing, lock_wait, comm_spin, straggler, deadlock, proxy,
    warm_up, heartbeat, detokenizer, silent,
)  # fmt: skip
"""In the order in which they are asked: what is certain first, what is a guess last."""
