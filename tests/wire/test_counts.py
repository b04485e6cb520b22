"""Counts read as a sentence has them."""

import pytest

from kimi_agent.counts import many


@pytest.mark.parametrize(
    ("count", "one", "more", "text"),
    [
        (0, "shard", "", "0 shards"), (1, "shard", "", "1 shard"), (1204, "shard", "", "1,204 shards"),
        (1, "row is", "rows are", "1 row is"), (2, "row is", "rows are", "2 rows are"),
    ],
)  # fmt: skip
def test_one_is_one_and_all_else_are_many(count: int, one: str, more: str, text: str) -> None:
    assert many(count, one, more) == text
