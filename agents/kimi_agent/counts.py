"""Counts as a sentence has them."""


def many(count: int, one: str, more: str = "") -> str:
    """'1 shard', '1,204 shards'; `more` is the plural where an s does not make it, or where a verb follows."""
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"
