"""What became of every row of a dataset: each is captured, the same as another one, or missing for a reason."""

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kimi_agent.counts import many
from kimi_agent.feed.drive import Failure
from kimi_agent.feed.requests import Batch, Missing

UNSAID = "answered, but its rows are not in the dump: the dump's accounts say why"


@dataclass(frozen=True, slots=True)
class Accounts:
    """All rows of a dataset: rows = captured + duplicates + sum(missing)."""

    rows: int
    captured: int
    duplicates: int
    """Rows that ask for what an earlier row asked for, and that is captured."""
    missing: tuple[Missing, ...]

    @property
    def kinds(self) -> dict[str, int]:
        """How many rows are missing for which reason."""
        return dict(Counter(one.kind for one in self.missing).most_common())

    def as_json(self) -> dict[str, Any]:
        """The counts, as `feed --json` ends with them."""
        return {
            "rows": self.rows, "captured": self.captured, "duplicates": self.duplicates, "missing": self.kinds,
        }  # fmt: skip


def account(
    batch: Batch, committed: Container[str], failures: Mapping[str, Failure], gone: str, sent: Container[str]
) -> Accounts:
    """Hold a batch against what is committed.

    Args:
        batch: all rows of the dataset.
        committed: request ids in the dump's committed shards.
        failures: what went wrong last with a request.
        gone: why the feed ended early, if it did.
        sent: request ids that were sent.
    """
    missing = list(batch.missing)
    captured = duplicates = 0
    for request in batch.requests:
        twins = batch.duplicates.get(request.rid, [])
        if request.rid in committed:
            captured += 1
            duplicates += len(twins)
            continue
        kind, why = _why(failures.get(request.rid), request.rid in sent, gone)
        missing.append(Missing(request.row, kind, why))
        missing += [Missing(row, kind, f"the same as row {request.row + 1}: {why}") for row in twins]
    return Accounts(batch.rows, captured, duplicates, tuple(sorted(missing, key=lambda one: one.row)))


def lines(accounts: Accounts, most: int) -> Iterator[str]:
    """The missing rows for a terminal, numbered from 1 as an editor does, and the counts."""
    for one in accounts.missing[:most]:
        yield f"row {one.row + 1}: {one.kind}: {one.why}"
    if len(accounts.missing) > most:
        yield f"{len(accounts.missing) - most:,} more missing, named by --json"
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in accounts.kinds.items())
    yield (
        f"{accounts.captured:,} of {many(accounts.rows, 'row')} captured, {accounts.duplicates:,} the same as another, "
        f"{len(accounts.missing):,} missing{f': {kinds}' if kinds else ''}"
    )


def _why(failure: Failure | None, sent: bool, gone: str) -> tuple[str, str]:
    if failure is not None:
        return ("refused" if failure.final else "failed"), failure.why
    if not sent:
        return "not sent", gone or "the feed ended before it"
    return "failed", UNSAID
