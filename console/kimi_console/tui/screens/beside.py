"""Two samples or two dumps beside each other, and which states a sample's rows are: answers that may take a while."""

from collections.abc import Callable
from typing import Any, ClassVar

from textual import work
from textual.binding import Binding, BindingType

from kimi_agent.counts import many
from kimi_agent.errors import KimiError
from kimi_console.source.base import Control
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Column, Line, Role, Span, hanging, paragraphs, table
from kimi_console.tui.screens.launch_form import error_lines
from kimi_console.tui.screens.overlay import Overlay

AGAIN = 0.5
"""Seconds after which an answer that is not whole is asked for again; leaving the screen ends the work for it."""
Answer = dict[str, Any]


class Report(Overlay[None]):
    """Asks one question until its answer is whole, and draws what there is of it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,left", "close", show=False)]

    def __init__(
        self, title: str, control: Control, method: str, params: Answer, draw: Callable[[Answer, int], list[Line]], *,
        ascii: bool = False,  # noqa: A002 - the option's name
    ) -> None:  # fmt: skip
        super().__init__(ascii=ascii)
        self._title, self._control, self._method, self._params, self._lines = title, control, method, params, draw
        self._answer: Answer | None = None
        self._error: KimiError | None = None
        self._asking = False

    def on_mount(self) -> None:
        """Ask, and ask again."""
        self._rows.focus()
        self.hint("Esc back")
        self.set_interval(AGAIN, self._again)
        self._ask()

    def _again(self) -> None:
        if not self._asking and self._error is None and (self._answer is None or unfinished(self._answer)):
            self._ask()

    @work(group="report", exclusive=True, exit_on_error=False)
    async def _ask(self) -> None:
        self._asking = True
        try:
            self._answer = await self._control.request(self._method, **self._params)
        except KimiError as error:
            self._error = error
        self._asking = False
        self.draw()

    def draw(self) -> None:
        """What there is of the answer."""
        self.entitle(self._title)
        self._rows.flow(self._content)

    def _content(self, cells: int) -> list[Line]:
        if self._error is not None:
            return error_lines(self._error, cells)
        return paragraphs("reading…", "dim", cells) if self._answer is None else self._lines(self._answer, cells)


def unfinished(answer: Answer) -> bool:
    """Whether there is more to come."""
    return "running" in answer or answer.get("state", "done") != "done"


def sample_pair(found: Answer, cells: int) -> list[Line]:
    """Two samples beside each other."""
    lines: list[Line] = [
        [(f" {side['rid']}", "bright"), (f"  {many(side['rows'], 'row')}, {side['prompt_tokens']:,} prompt + "
                                         f"{side['output_tokens']:,} output tokens", "dim")]
        for side in (found["one"], found["other"])
    ]  # fmt: skip
    first = found["first_different"]
    if first is None:
        lines.append([(" ✓ the same tokens", "good")])
    else:
        ids = ", then ".join("its end" if number is None else f"id {number}" for number in found["ids"])
        lines.append([(f" ✖ first different token: {first:,}", "bad"), (f"  {ids.replace(', then', ' and')}", "plain")])
    if found["note"]:
        lines += paragraphs(found["note"], "warn", cells)
    return [
        *lines,
        [],
        *_layers(found, cells),
        *_only(found, cells),
        *_verdict(found["same"], compared=found["compared"]),
    ]


def dump_pair(found: Answer, cells: int) -> list[Line]:
    """Two dumps beside each other, as far as they were compared."""
    lines: list[Line] = [[
        (f" {found['one']}", "bright"), (f"  {many(found['samples'][0], 'sample')}", "dim"),
        (f"   {found['other']}", "bright"), (f"  {many(found['samples'][1], 'sample')}", "dim"),
    ]]  # fmt: skip
    if found["state"] in ("indexing", "matching"):
        return [*lines, [(f" {found['state']}…", "move")]]
    lines.append([(f" {many(found['matched'], 'sample is', 'samples are')} in both", "plain"),
                  (f"  {found['by_rid']:,} by request id, {found['by_tokens']:,} by their tokens", "dim")])  # fmt: skip
    lines.append([(f" {found['only_one']:,} only in the first, {found['only_other']:,} only in the second", "plain")])
    done: Role = "move" if found["state"] != "done" else "plain"
    lines.append([(f" {found['done']:,} of {found['of']:,} pairs compared", done)])
    if found["different_tokens"]:
        lines.append([(f" ✖ {many(found['different_tokens'], 'pair differs', 'pairs differ')} in tokens", "bad")])
    lines += [[], *_layers(found, cells)] if found["done"] else []
    apart = [entry for entry in found["worst"] if entry["cosine"] is not None and entry["cosine"] < 0.9999]
    for entry in apart:
        lines.append([(f" {entry['rid']}", "bright"), (f"  cosine {entry['cosine']:.4f} at {entry['layer']}", "warn")])
    for problem in found["problems"]:
        lines += hanging([(" ✖ ", "bad")], str(problem), "bad", cells)
    return [*lines, *(_verdict(found["same"], compared=found["done"]) if found["state"] == "done" else [])]


def boundary_match(found: Answer, cells: int) -> list[Line]:
    """Which of the model's states each column of a sample is."""
    if "running" in found:
        text = f"the sample's tokens go through the model on the host: {fmt.duration(found['running'])}"
        return [*paragraphs(text, "move", cells), [(" Esc ends it", "dim")]]
    lines: list[Line] = [[(f" {found['rid']}", "bright"), (f"  {found['shard']}", "dim")]]
    if found["why"]:
        return [*lines, *paragraphs(f"– not known: {found['why']}", "warn", cells)]
    lines.append([(f" {many(found['rows'], 'row')} through {found['model']}", "dim")])
    columns = [
        Column("called", 7, "left"),
        Column("is", 32, "left"),
        Column("distance", 9),
        Column("as called", 9, drop=1),
    ]
    rows: list[list[Span]] = []
    for column in found["columns"]:
        right = column["right"] and column["fits"]
        name = column["best"] if column["fits"] else f"none; nearest {column['best']}"
        rows.append([(column["layer"], "bright"), (name, "good" if right else "bad"), _figure(column["best_distance"]),
                     _figure(column["claimed_distance"])])  # fmt: skip
    lines += [[], *table(columns, rows, cells), []]
    for text in found["findings"]:
        lines += hanging([(" ✖ ", "bad")], text, "bad", cells)
    return lines if found["findings"] else [*lines, [(" ✓ every layer is what it is called", "good")]]


def _layers(found: Answer, cells: int) -> list[Line]:
    columns = [
        Column("layer", 6), Column("rows", 8, drop=3), Column("cosine", 8), Column("lowest", 8, drop=2),
        Column("distance", 9, drop=1), Column("bit-equal", 9, drop=4), Column("foreign", 7), Column("nearest", 7),
    ]  # fmt: skip
    rows: list[list[Span]] = []
    for name, entry in found["layers"].items():
        near = _near(found, name)
        rows.append([
            (name, "bright"), (fmt.count(entry["rows"]), "dim"), _figure(entry["cosine"]), _figure(entry["lowest"]),
            _figure(entry["distance"]), (fmt.count(entry["equal_rows"]), "dim"),
            (fmt.count(entry["foreign_rows"]), "bad" if entry["foreign_rows"] else "dim"),
            (near, "plain" if near in (name, fmt.DASH) else "bad"),
        ])  # fmt: skip
    none: Line = [(" no layer is in both", "warn")]
    lines = table(columns, rows, cells) if rows else [none]
    for name in found["nearest"]:
        if name not in found["layers"]:
            lines.append(
                [(f" {name} ", "bright"), (f"of the first is nearest to {_near(found, name)} of the second", "plain")]
            )
    return lines


def _only(found: Answer, cells: int) -> list[Line]:
    sides = (("first", found["only_one"]), ("second", found["only_other"]))
    told = [f"only in the {side}: {', '.join(names)}" for side, names in sides if names]
    return [line for text in told for line in paragraphs(text, "dim", cells)]


def _near(found: Answer, name: str) -> str:
    near = found["nearest"].get(name)
    return fmt.DASH if near is None else str(near["layer"] if isinstance(near, dict) else near)


def _verdict(same: bool, *, compared: int) -> list[Line]:
    told: Span = (" – nothing could be compared", "warn")
    if same:
        told = " ✓ the same states, up to precision", "good"
    elif compared:
        told = " ✖ not the same", "bad"
    return [[], [told]]


def _figure(value: float | None) -> Span:
    return (fmt.DASH, "dim") if value is None else (f"{value:.4f}", "plain")
