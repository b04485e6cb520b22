"""What the rows of a dump look like while it is written: the plugin's self-check and the shards' own statistics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

from kimi_agent.counts import many
from kimi_capture.format import read_shard


@dataclass(slots=True)
class Content:
    """Statistics of the shards committed so far, from their headers."""

    rows: int = 0
    non_finite: int = 0
    zero_rows: int = 0
    squares: dict[str, float] = field(default_factory=dict)
    """Sum over rows of the squared RMS, by boundary and for `last`."""

    def add(self, shard: Path) -> None:
        """Take in a shard; one that cannot be opened is left to `shards verify`."""
        try:
            meta = read_shard(shard).meta
        except (OSError, ValueError):
            return
        rows = sum(sample.rows for sample in meta.samples)
        self.rows += rows
        for name, numbers in meta.statistics.items():
            self.non_finite += numbers.non_finite
            self.zero_rows += numbers.zero_rows
            self.squares[name] = self.squares.get(name, 0.0) + rows * numbers.rms**2

    def words(self) -> str:
        """`non-finite 0 · zero rows 0 · rms 3: 0.81  last: 1.00`; empty while nothing is committed."""
        if not self.rows:
            return ""
        rms = "  ".join(f"{name}: {sqrt(total / self.rows):.3g}" for name, total in self.squares.items())
        return f"non-finite {self.non_finite} · zero rows {self.zero_rows} · rms {rms}"


def self_check(dumps: Sequence[Mapping[str, Any]], content: Content) -> str | None:
    """One line about the content of a dump, out of its writers' statuses; None when nothing is known yet."""
    checks = [check for dump in dumps if isinstance(check := dump.get("self_check"), dict)]
    parts = [part for part in (_logits(checks), content.words()) if part]
    return " · ".join(parts) or None


def _logits(checks: Sequence[Mapping[str, Any]]) -> str:
    checked = sum(int(check["checked"]) for check in checks)
    failed = sum(int(check["failed"]) for check in checks)
    reasons = [str(check["reason"]) for check in checks if check.get("reason")]
    if reasons and not checked:
        return f"logits not checked: {reasons[0]}"
    if not checked:
        return ""
    error = max(float(check["max_error"]) for check in checks)
    verdict = f"DRIFT in {failed} of {many(checked, 'row')}" if failed else "ok"
    return f"logit error {error:.1g} {verdict}"
