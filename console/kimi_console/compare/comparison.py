"""Comparing two recordings by phase: seconds, lines, and the first line at which they part."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from kimi_agent.model.events import LogLines, Snapshot
from kimi_agent.model.phases import PHASES
from kimi_agent.model.reduce import resume
from kimi_agent.model.starts import phase_spans
from kimi_agent.model.state import RunState, State
from kimi_agent.record.reader import Recording
from kimi_console.compare.arguments import arguments
from kimi_console.compare.normal import normal_form

MOST_LINES: Final = 500_000
"""Lines of a run that are compared; a start has some hundreds."""
SHOWN: Final = 200
"""Lines that one side alone has, which are listed."""
DRAWN: Final = frozenset({"random_seed"})
"""Arguments that SGLang draws at each start unless they are given: that they differ says the least."""


@dataclass(frozen=True, slots=True)
class OnlyLine:
    """What only one side says."""

    phase: str
    line: str
    """As it stands there the first time."""
    number: int
    """Of that line in its log, from 1."""
    count: int


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two."""

    title: str
    status: str
    seconds: float
    """From launch to ready, or to the end of what was recorded."""
    lines: int
    verdict: str
    last: str
    """Its last line."""


@dataclass(frozen=True, slots=True)
class PhasePair:
    """A phase in both; `None` where it was not entered."""

    phase: str
    a: float | None
    """Seconds; of a phase that did not end, those until the end of the recording."""
    b: float | None


@dataclass(frozen=True, slots=True)
class ArgumentPair:
    """An argument of the server that is not the same in both; `None` where it is not there."""

    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class Parting:
    """The first place at which the two say something different."""

    phase: str
    after: str
    """The last line that both have before it."""
    a: str | None
    """What A says next that B never says; `None` when A says nothing more."""
    b: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two recordings beside each other."""

    a: Side
    b: Side
    phases: tuple[PhasePair, ...]
    slower: str | None
    """The phase whose seconds differ most."""
    parting: Parting | None
    arguments: tuple[ArgumentPair, ...]
    """Those that the two servers were started with and that differ; none where one of them did not say."""
    only_a: tuple[OnlyLine, ...]
    only_b: tuple[OnlyLine, ...]

    def as_dict(self) -> dict[str, Any]:
        """The stable object that `--json` prints."""
        return asdict(self)


@dataclass(slots=True)
class _Said:
    """The lines of one run's start, in order, and what they say."""

    run: RunState | None = None
    end: float = 0.0
    lines: list[tuple[str, str, str]] = field(default_factory=list)
    """(phase, what it says, the line)."""
    total: int = 0


def compare(a: Recording, title_a: str, b: Recording, title_b: str) -> Comparison:
    """Compare the last run of each.

    Raises:
        RecordingError: one of them is damaged.
    """
    said_a, said_b = _read(a), _read(b)
    forms_a, forms_b = ({form for _, form, _ in said.lines} for said in (said_a, said_b))
    phases = tuple(_phases(said_a, said_b))
    return Comparison(
        a=_side(title_a, said_a), b=_side(title_b, said_b), phases=phases, slower=_slower(phases),
        parting=_parting(said_a, forms_a, said_b, forms_b), arguments=_arguments(said_a, said_b),
        only_a=_only(said_a, forms_b), only_b=_only(said_b, forms_a),
    )  # fmt: skip


def _read(recording: Recording) -> _Said:
    """The last run's lines up to where it is ready, or all of them when it never is."""
    said, state = _Said(), State()
    for batch in recording.batches():
        for event in batch:
            before, state = state.run, resume(state, event)
            run = state.run
            if run is None or (before is not None and before.started.run != run.started.run):
                said.lines, said.total = [], 0
            if run is not None and isinstance(event.body, LogLines | Snapshot):
                said.total = max(said.total + len(event.body.lines), run.log_lines)
                if run.ready_time is None and len(said.lines) < MOST_LINES:
                    phase = run.front or PHASES[-1]
                    said.lines += [(phase, normal_form(line), line) for line in event.body.lines]
    said.run, said.end = state.run, state.time or 0.0
    return said


def _side(title: str, said: _Said) -> Side:
    run = said.run
    if run is None:
        return Side(title, "IDLE", 0.0, 0, "", "")
    verdict = run.verdict.summary if run.verdict is not None and run.verdict.kind != "none" else ""
    end = run.ready_time or run.exit_time or said.end
    last = said.lines[-1][2] if said.lines else ""
    return Side(title, run.status, round(max(0.0, end - run.time), 3), said.total, verdict, last)


def _phases(a: _Said, b: _Said) -> Iterator[PhasePair]:
    seconds_a, seconds_b = _seconds(a), _seconds(b)
    for phase in PHASES[:-1]:
        if phase in seconds_a or phase in seconds_b:
            yield PhasePair(phase, seconds_a.get(phase), seconds_b.get(phase))


def _seconds(said: _Said) -> dict[str, float]:
    if said.run is None:
        return {}
    spans = phase_spans(said.run)
    return {phase: round((said.end if span.end is None else span.end) - span.start, 3) for phase, span in spans.items()}


def _slower(phases: tuple[PhasePair, ...]) -> str | None:
    both = [(abs(pair.a - pair.b), pair.phase) for pair in phases if pair.a is not None and pair.b is not None]
    difference, phase = max(both, default=(0.0, None))
    return phase if difference > 0 else None


def _parting(a: _Said, forms_a: set[str], b: _Said, forms_b: set[str]) -> Parting | None:
    """Where they part: behind the last line, in the order of the shorter start, to which both have come alike.

    Ranks write at once and in any order, so it is not the first line that differs: it is the first that the other
    never says at all, or where the shorter start simply ends.
    """
    next_a = next((index for index, (_, form, _) in enumerate(a.lines) if form not in forms_b), None)
    next_b = next((index for index, (_, form, _) in enumerate(b.lines) if form not in forms_a), None)
    if next_a is None and next_b is None:
        return None
    said, at = (a, next_a) if next_a is not None else (b, next_b)
    if next_a is None or next_b is None or a.lines[next_a][0] == b.lines[next_b][0]:
        phase = said.lines[at or 0][0]
    else:
        phase = min(a.lines[next_a][0], b.lines[next_b][0], key=PHASES.index)
    after = said.lines[at - 1][2] if at else ""
    return Parting(
        phase, after,
        a.lines[next_a][2] if next_a is not None else None, b.lines[next_b][2] if next_b is not None else None,
    )  # fmt: skip


def _arguments(a: _Said, b: _Said) -> tuple[ArgumentPair, ...]:
    given_a, given_b = (next(filter(None, (arguments(line) for _, _, line in said.lines)), {}) for said in (a, b))
    if not given_a or not given_b:
        return ()
    pairs = (ArgumentPair(name, given_a.get(name), given_b.get(name)) for name in {**given_a, **given_b})
    return tuple(sorted((pair for pair in pairs if pair.a != pair.b), key=lambda pair: pair.name in DRAWN))


def _only(said: _Said, others: set[str]) -> tuple[OnlyLine, ...]:
    counts = Counter(form for _, form, _ in said.lines if form not in others)
    first: dict[str, OnlyLine] = {}
    for number, (phase, form, line) in enumerate(said.lines, 1):
        if form in counts and form not in first:
            first[form] = OnlyLine(phase, line, number, counts[form])
    return tuple(list(first.values())[:SHOWN])
