"""Dumps, shards, samples and tokens as lines; pure functions over the agent's JSON."""

from typing import Any

from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Column, Line, Role, Span, fit, hanging, paragraphs, table
from kimi_console.tui.panes.dump import layer_identity

HEAT: tuple[Role, ...] = ("heat0", "heat1", "heat2", "heat3", "heat4")


def dumps(data: list[dict[str, Any]], cells: int) -> list[Line]:
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


def dump_details(dump: dict[str, Any], cells: int, now: float) -> list[Line]:
    """Where a dump lies, and when its last shard was committed."""
    lines = paragraphs(str(dump["directory"]), "plain", cells)
    if dump.get("time"):
        lines.append([(" last shard ", "dim"), (fmt.moment(dump["time"]), "plain"),
                      (f"  {fmt.age(now - dump['time'])}", "dim")])  # fmt: skip
    return lines


def shards(data: dict[str, Any], cells: int) -> list[Line]:
    """A row a shard, with a heading."""
    columns = [
        Column("shard", 30, "left"), Column("rows", 9), Column("samples", 8, drop=1), Column("size", 8),
        Column("committed", 16, drop=2),
    ]  # fmt: skip
    rows: list[list[Span]] = [
        [(str(shard["shard"]), "bright"), (fmt.short(shard["rows"]), "plain"), (fmt.short(shard["samples"]), "plain"),
         (fmt.size(shard["bytes"]), "plain"), (fmt.moment(shard["time"]), "dim")]
        for shard in data["shards"]
    ]  # fmt: skip
    return table(columns, rows, cells)


def dump_facts(data: dict[str, Any], cells: int) -> list[Line]:
    """Layer identity of a dump, and what is wrong with it."""
    lines = _identities(data, cells)
    lines += paragraphs(str(data["directory"]), "dim", cells)
    if not data["problems"]:
        return [*lines, [], [(" ✓ every listed shard is there, with its size", "good")]]
    lines.append([])
    for problem in data["problems"]:
        lines += hanging([(" ✖ ", "bad")], str(problem), "bad", cells)
    return lines


def _identities(listing: dict[str, Any], cells: int) -> list[Line]:
    conventions = listing.get("conventions") or {}
    lines: list[Line] = []
    for boundary in listing["boundaries"]:
        spelled = layer_identity(int(boundary), conventions.get(str(boundary), {}).get("sglang_flag"))
        head, _, rest = spelled.partition(" = ")
        lines += hanging([(f" {head} ", "bright")], f"= {rest}", "plain", cells)
    return [*lines, [(" last ", "bright"), ("= after all blocks and the final norm (post-norm)", "plain")], []]


def samples(data: dict[str, Any], cells: int) -> list[Line]:
    """A row a sample, with a heading; how many follow."""
    columns = [
        Column("sample", 20, "left"), Column("prompt", 7), Column("output", 7), Column("rows", 7),
        Column("finish", 8, "left", drop=2), Column("bad", 5, drop=1),
    ]  # fmt: skip
    rows: list[list[Span]] = []
    for sample in data["samples"]:
        bad = sum(1 for token in sample["tokens"] if token.get("bad"))
        expected = sample["prompt_tokens"] + sample["output_tokens"] - 1
        rows.append([
            (str(sample["rid"]), "bright"), (fmt.count(sample["prompt_tokens"]), "plain"),
            (fmt.count(sample["output_tokens"]), "plain"),
            (fmt.count(sample["rows"]), "plain" if sample["rows"] == expected else "warn"),
            (str(sample["finish_reason"]), "dim"), (str(bad) if bad else "0", "bad" if bad else "dim"),
        ])  # fmt: skip
    return table(columns, rows, cells)


def shard_facts(data: dict[str, Any], listing: dict[str, Any], cells: int) -> list[Line]:
    """Tensors, statistics beside the dump's, and layer identity of a shard."""
    lines: list[Line] = [[(" tensors", "title")]]
    for name, tensor in data["tensors"].items():
        shape = " × ".join(f"{extent:,}" for extent in tensor["shape"])
        lines.append([(f" {fit(name, 20):<20} ", "plain"), (f"{tensor['dtype']:<5}", "dim"), (f" {shape}", "plain")])
    lines += [[], [(" statistics", "title")], *_statistics(data, cells), [], *_identities(listing, cells)]
    if data.get("more"):
        lines.append([(f" {data['more']} more samples in this shard: kimi-agent shards show", "dim")])
    return lines


def _statistics(data: dict[str, Any], cells: int) -> list[Line]:
    columns = [
        Column("layer", 5, "left"), Column("rms", 8), Column("dump", 8, drop=1), Column("max", 8, drop=2),
        Column("not finite", 10), Column("zero", 5),
    ]  # fmt: skip
    whole = data.get("dump_statistics") or {}
    rows: list[list[Span]] = []
    for name, numbers in data["statistics"].items():
        dump = whole.get(name) or {}
        rows.append([
            (name, "bright"), (_figure(numbers["rms"]), "plain"), (_figure(dump.get("rms")), "dim"),
            (_figure(numbers["max_abs"]), "plain"),
            (fmt.count(numbers["non_finite"]), "bad" if numbers["non_finite"] else "dim"),
            (fmt.count(numbers["zero_rows"]), "bad" if numbers["zero_rows"] else "dim"),
        ])  # fmt: skip
    return table(columns, rows, cells)


def _figure(value: float | None) -> str:
    return fmt.DASH if value is None else f"{value:.3g}"


def layer_names(sample: dict[str, Any]) -> list[str]:
    """The layers that tokens have norms of, in order, `last` at the end."""
    return list(sample["tokens"][0]["norm"]) if sample["tokens"] else []


def tokens(sample: dict[str, Any], cells: int) -> list[Line]:
    """A row a token: position, id, text, and its norm at each layer as heat and number."""
    layers = layer_names(sample)
    columns = [
        Column("pos", 6), Column("id", 7, drop=9), Column("", 1), Column("text", 13, "left"),
        *(Column(layer, 9, drop=1 + len(layers) - place) for place, layer in enumerate(layers)),
    ]  # fmt: skip
    ranges = {layer: _range(sample, layer) for layer in layers}
    rows: list[list[Span]] = []
    for token in sample["tokens"]:
        bad = bool(token.get("bad"))
        row: list[Span] = [
            (fmt.count(token["position"]), "dim"), (str(token["id"]), "dim"), ("!" if bad else " ", "bad"),
            (str(token["text"]).replace("\n", "↵"), "bad" if bad else "plain"),
        ]  # fmt: skip
        rows.append([*row, *(_heat(token["norm"].get(layer), *ranges[layer]) for layer in layers)])
    return table(columns, rows, cells, 1)


def _range(sample: dict[str, Any], layer: str) -> tuple[float, float]:
    values = sorted(token["norm"][layer] for token in sample["tokens"] if token["norm"].get(layer) is not None)
    return (values[0], values[-1]) if values else (0.0, 0.0)


def _heat(value: float | None, low: float, high: float) -> Span:
    if value is None:
        return "not fin.", "bad"
    share = (value - low) / (high - low) if high > low else 0.0
    block = fmt.BARS[min(len(fmt.BARS) - 1, int(share * len(fmt.BARS)))]
    return f"{value:.4g} {block}", HEAT[min(len(HEAT) - 1, int(share * len(HEAT)))]


def token_facts(
    sample: dict[str, Any], token: dict[str, Any] | None, listing: dict[str, Any], shard: dict[str, Any], cells: int
) -> list[Line]:
    """The sample's text, the token under the cursor, layer identity."""
    lines: list[Line] = []
    if token is not None:
        lines.append([(" token ", "dim"), (f"{token['id']}", "bright"), (f"  position {token['position']}", "plain")])
        lines += paragraphs(repr(str(token["text"])), "plain", cells)
        if token.get("bad"):
            lines += hanging([(" ✖ ", "bad")], str(token["bad"]), "bad", cells)
        lines.append([])
    for reason, rows in (sample.get("missing") or {}).items():
        lines.append([(f" {fmt.count(rows)} rows missing: {reason}", "warn")])
    lines += _identities(listing, cells)
    lines += [[(" text", "title"), (f"  {shard.get('text_source', '')}", "dim")]]
    return lines + paragraphs(str(sample["text"]), "plain", cells)
