"""Dumps, shards and samples as lines; pure functions over the agent's JSON."""

from collections.abc import Callable
from typing import Any

from kimi_agent.counts import many
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Column, Line, Span, hanging, paragraphs, table
from kimi_console.tui.panes.dump import layer_identity

Row = dict[str, Any]
Drawn = tuple[list[Line], Callable[[Row], Line]]
"""A heading, and what makes a row's line."""
SHARDS = (
    Column("shard", 30, "left"), Column("rows", 9, drop=2), Column("samples", 8, drop=1), Column("size", 8, drop=3),
    Column("committed", 16, drop=4), Column("worst", 10),
)  # fmt: skip
SAMPLES = (
    Column("request", 24, "left"), Column("rows", 7), Column("missing", 7, drop=2), Column("prompt", 7, drop=3),
    Column("output", 7, drop=4), Column("finish", 8, "left", drop=5), Column("worst", 10, drop=1),
)  # fmt: skip


def dumps(data: list[Row], cells: int) -> list[Line]:
    """A row a dump, with a heading."""
    columns = [
        Column("dump", 24, "left"), Column("samples", 9, drop=2), Column("rows", 9), Column("shards", 7, drop=1),
        Column("size", 8),
    ]  # fmt: skip
    rows: list[list[Span]] = [
        [(str(dump["dump"]), "bright"), (fmt.short(dump["samples"]), "plain"), (fmt.short(dump["rows"]), "plain"),
         (fmt.count(dump["shards"]), "dim"), (fmt.size(dump["bytes"]), "plain")]
        for dump in data
    ]  # fmt: skip
    return table(columns, rows, cells)


def dump_details(dump: Row, cells: int, now: float) -> list[Line]:
    """Where a dump lies, when its last shard was committed, who writes it, and what is wrong with it."""
    lines = paragraphs(str(dump["directory"]), "plain", cells)
    if dump.get("time"):
        lines.append([(" last shard ", "dim"), (fmt.moment(dump["time"]), "plain"),
                      (f"  {fmt.age(now - dump['time'])}", "dim")])  # fmt: skip
    return lines + _writers(dump, cells) + _problems(dump, cells)


def shards(cells: int) -> Drawn:
    """A row a shard."""

    def draw(shard: Row) -> Line:
        cell: list[Span] = [
            (str(shard["shard"]), "bright"), (fmt.short(shard["rows"]), "plain"),
            (fmt.short(shard["samples"]), "plain"), (fmt.size(shard["bytes"]), "plain"),
            (fmt.moment(shard["time"]), "dim"), worst(shard),
        ]  # fmt: skip
        return table(SHARDS, [cell], cells)[1]

    return table(SHARDS, [], cells), draw


def samples(cells: int) -> Drawn:
    """A row a sample; what its shard's header has not said yet is a dash."""

    def draw(sample: Row) -> Line:
        missing = sample["missing"]
        cell: list[Span] = [
            (str(sample["rid"]) or f"sample {sample['number']}", "bright"), (fmt.count(sample["rows"]), "plain"),
            (fmt.count(missing), "warn" if missing else "dim"), (fmt.count(sample["prompt_tokens"]), "plain"),
            (fmt.count(sample["output_tokens"]), "plain"), (str(sample["finish_reason"] or fmt.DASH), "dim"),
            worst(sample),
        ]  # fmt: skip
        return table(SAMPLES, [cell], cells)[1]

    return table(SAMPLES, [], cells), draw


def worst(row: Row) -> Span:
    """The worst that is known of a shard or a sample: damage, bad rows, or how far its rms is from the dump's."""
    if row.get("problem"):
        return "✖ damaged", "bad"
    if row["bad"]:
        return f"! {fmt.short(row['bad'])} bad", "bad"
    if row.get("perhaps"):
        return "? perhaps", "warn"
    if row["deviation"] is None:
        return fmt.DASH, "dim"
    return f"× {2.718281828 ** row['deviation']:.2f}", "warn" if row["deviation"] > 0.7 else "dim"


def dump_facts(facts: Row, cells: int) -> list[Line]:
    """Layer identity of a dump, its layers' statistics, how far its index is, and what is wrong with it."""
    lines = identities(facts, cells)
    if facts["layers"]:
        lines.append([(" rms over all shards", "title")])
        lines += [
            [(f" {name:>5}", "bright"), (f"  {numbers['rms']:.3g} ± {numbers['rms_spread']:.2g}", "plain")]
            for name, numbers in facts["layers"].items()
        ]
    lines += [[], *paragraphs(f"{facts['directory']}, {fmt.size(facts['bytes'])}", "dim", cells)]
    if facts["known"] < facts["shard_count"]:
        share = fmt.share(facts["known"], facts["shard_count"])
        lines += paragraphs(f"reading headers: {share} of {many(facts['shard_count'], 'shard')}", "move", cells)
    lines += _writers(facts, cells)
    if facts["bad_shards"]:
        who = many(facts["bad_shards"], "shard has", "shards have")
        text = f"{who} rows that cannot be right: o sorts by the worst"
        lines += hanging([(" ! ", "bad")], text, "bad", cells)
    if facts["perhaps_shards"]:
        who = many(facts["perhaps_shards"], "shard has", "shards have")
        text = f"{who} rows equal to the one before: B looks whether that is wrong"
        lines += hanging([(" ? ", "warn")], text, "warn", cells)
    if not facts["problems"] and not facts["bad_shards"]:
        return [*lines, [(" ✓ nothing is seen to be wrong", "good")]]
    return lines + _problems(facts, cells)


def row_facts(row: Row, cells: int) -> list[Line]:
    """What is known of the shard or the sample under the cursor."""
    lines = paragraphs(str(row.get("rid") or row["shard"]), "bright", cells)
    if row.get("rid"):
        lines += paragraphs(f"sample {row['place']} of {row['shard']}", "dim", cells)
    if row.get("problem"):
        lines += hanging([(" ✖ ", "bad")], str(row["problem"]), "bad", cells)
        lines += paragraphs("See what is lost with: kimi-agent shards verify", "plain", cells)
    elif row["bad"]:
        lines.append([(f" {many(row['bad'], 'row')} cannot be right", "bad")])
    elif row.get("perhaps"):
        lines += paragraphs("its shard may have bad rows: B looks which samples have them", "warn", cells)
    if row["deviation"] is not None:
        factor = 2.718281828 ** row["deviation"]
        lines += paragraphs(f"rms of its shard: at most × {factor:.2f} from the dump's", "dim", cells)
    return [*lines, []]


def identities(facts: Row, cells: int) -> list[Line]:
    """Every layer in every convention."""
    lines: list[Line] = []
    for layer in [*map(str, facts["boundaries"]), "last"]:
        head, _, rest = identity(facts, layer).partition(" = ")
        lines += hanging([(f" {head} ", "bright")], f"= {rest}", "plain", cells)
    return [*lines, []]


def identity(facts: Row, layer: str) -> str:
    """One layer in every convention, in a line."""
    if layer == "last":
        return "last = after all blocks and the final norm (post-norm)"
    spelled = (facts.get("conventions") or {}).get(layer, {})
    return layer_identity(int(layer), spelled.get("sglang_flag"))


def _writers(facts: Row, cells: int) -> list[Line]:
    return [
        line for writer in facts.get("writers") or [] for line in hanging([(" ● ", "move")], writer, "plain", cells)
    ]


def _problems(facts: Row, cells: int) -> list[Line]:
    found = facts.get("problems") or []
    return [line for problem in found for line in hanging([(" ✖ ", "bad")], str(problem), "bad", cells)]
