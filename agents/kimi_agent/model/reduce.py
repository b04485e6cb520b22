"""`reduce(state, event) -> state`: the one place where events become state. Pure; reads no clock."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import singledispatch
from typing import Any

from kimi_agent.model import events as ev
from kimi_agent.model.bisect import BisectChanged
from kimi_agent.model.phases import ORDER, READY
from kimi_agent.model.state import (
    HISTORY_SIZE,
    RING_SIZE,
    SHARDS_KEPT,
    Progress,
    RankState,
    RingEntry,
    RunState,
    State,
)

STATUS_LEVELS = {"READY": "good", "SLOW": "warning", "HUNG": "error", "FAILED": "error"}


def reduce(state: State, event: ev.Event) -> State:
    """Fold one event into the state."""
    return replace(_apply(event.body, state, event.time), seq=event.seq, time=event.time)


def fold(events: Iterable[ev.Event], state: State | None = None) -> State:
    """Fold many events, from nothing or onto a state."""
    folded = state or State()
    for event in events:
        folded = reduce(folded, event)
    return folded


def resume(state: State, event: ev.Event) -> State:
    """Fold one event of a stream that may go on with another journal, whose numbers start over."""
    return reduce(State() if event.seq <= state.seq else state, event)


def resume_all(state: State, events: Iterable[ev.Event]) -> State:
    """Fold many events as `resume` folds each; lines of the log that others follow are not folded one by one."""
    held: ev.Event | None = None
    for event in events:
        if held is not None and not _covers(event, held):
            state = resume(state, held)
        held = event
    return state if held is None else resume(state, held)


def _covers(event: ev.Event, before: ev.Event) -> bool:
    """Whether the state after both of these is that after the later one alone."""
    late, early = event.body, before.body
    if type(late) is not ev.LogLines or type(early) is not ev.LogLines or event.seq <= before.seq:
        return False
    return late.run == early.run and late.first >= early.first + len(early.lines)


@singledispatch
def _apply(body: Any, state: State, time: float) -> State:
    raise TypeError(f"no rule folds {type(body).__name__}")


def _ring(state: State, time: float, level: str, text: str) -> State:
    return replace(state, ring=(*state.ring[-(RING_SIZE - 1) :], RingEntry(time, level, text)))


def _on_run(state: State, run: str, change: Callable[[RunState], RunState]) -> State:
    """Change the current run; an event of another run, late or foreign, changes nothing."""
    if state.run is None or state.run.started.run != run:
        return state
    return replace(state, run=change(state.run))


def _moved(run: RunState, time: float) -> RunState:
    """The run has made progress: what had been silence until now counts for the phase it was in."""
    phase = run.front
    if phase is None or run.ready_time is not None:
        return replace(run, moved=time)
    longest = dict(run.silences)
    longest[phase] = max(longest.get(phase, 0.0), time - run.moved)
    return replace(run, moved=time, silences=tuple(longest.items()))


@_apply.register
def _(body: ev.AgentStarted, state: State, time: float) -> State:
    text = f"agent {body.version} started on {body.host}"
    return _ring(replace(state, agent=body), time, "info", text)


@_apply.register
def _(body: ev.RunStarted, state: State, time: float) -> State:
    if body.adopted and state.run is not None and state.run.started.run == body.run:
        return _ring(state, time, "info", f"run {body.run} found again, pid {body.pid}")
    ranks = tuple(RankState(rank, since=time, entered=((RankState(rank).phase, time),)) for rank in body.ranks)
    run = RunState(body, time, status_since=time, ranks=ranks, moved=time)
    state = replace(state, run=run, run_count=state.run_count + 1)
    return _ring(state, time, "info", f"launched {body.name}, run {body.run}, pid {body.pid}")


@_apply.register
def _(body: ev.BaselineKnown, state: State, time: float) -> State:
    return _on_run(state, body.run, lambda run: replace(run, baseline=body))


@_apply.register
def _(body: ev.StatusChanged, state: State, time: float) -> State:
    if state.run is None or state.run.started.run != body.run:
        return state
    before = state.run.status
    if before == body.status:
        return _on_run(state, body.run, lambda run: replace(run, status_reason=body.reason))
    state = _on_run(
        state, body.run,
        lambda run: replace(run, status=body.status, status_reason=body.reason, status_since=time),
    )  # fmt: skip
    reason = f": {body.reason}" if body.reason else ""
    return _ring(state, time, STATUS_LEVELS.get(body.status, "info"), f"{before} → {body.status}{reason}")


@_apply.register
def _(body: ev.LogLines, state: State, time: float) -> State:
    return _on_run(
        state, body.run,
        lambda run: replace(run, log_lines=max(run.log_lines, body.first + len(body.lines))),
    )  # fmt: skip


@_apply.register
def _(body: ev.PhaseEntered, state: State, time: float) -> State:
    def enter(rank: RankState) -> RankState:
        if rank.rank != body.rank or ORDER.get(body.phase, -1) <= ORDER[rank.phase]:
            return rank
        return RankState(rank.rank, body.phase, time, (*rank.entered, (body.phase, time)))

    def change(run: RunState) -> RunState:
        ranks = tuple(enter(rank) for rank in run.ranks)
        done = body.phase == READY and run.ready_time is None and ranks != run.ranks
        moved = _moved(run, time) if ranks != run.ranks else run
        return replace(moved, ranks=ranks, ready_time=time if done else run.ready_time)

    return _on_run(state, body.run, change)


@_apply.register
def _(body: ev.PhaseProgress, state: State, time: float) -> State:
    progress = Progress(body.phase, body.done, body.total, body.what, time)
    return _on_run(state, body.run, lambda run: replace(_moved(run, time), progress=progress))


@_apply.register
def _(body: ev.LogUnmatched, state: State, time: float) -> State:
    return _on_run(state, body.run, lambda run: replace(run, unmatched=body))


@_apply.register
def _(body: ev.RanksSampled, state: State, time: float) -> State:
    def change(run: RunState) -> RunState:
        stopped = run.stopped or (run.ready_time is None and any(sample.state == "T" for sample in body.ranks))
        return replace(run, samples=body.ranks, samples_time=time, stopped=stopped)

    return _on_run(state, body.run, change)


@_apply.register
def _(body: ev.HostSampled, state: State, time: float) -> State:
    return replace(state, host=body, host_time=time)


@_apply.register
def _(body: ev.ThroughputSampled, state: State, time: float) -> State:
    def change(run: RunState) -> RunState:
        return replace(
            run,
            throughput=body,
            throughput_time=time,
            prefill_history=(*run.prefill_history[-(HISTORY_SIZE - 1) :], body.prefill_rate),
            decode_history=(*run.decode_history[-(HISTORY_SIZE - 1) :], body.decode_rate),
        )

    return _on_run(state, body.run, change)


@_apply.register
def _(body: ev.VerdictChanged, state: State, time: float) -> State:
    if state.run is None or state.run.started.run != body.run:
        return state
    before = state.run.verdict
    state = _on_run(state, body.run, lambda run: replace(run, verdict=body.verdict, verdict_time=time))
    if body.verdict.kind == "none":
        return _ring(state, time, "good", f"cleared: {before.summary}") if before and before.kind != "none" else state
    if before is not None and (before.kind, before.rank) == (body.verdict.kind, body.verdict.rank):
        return state
    rank = f" {body.verdict.rank}" if body.verdict.rank else ""
    return _ring(state, time, "warning", f"verdict {body.verdict.kind}{rank}: {body.verdict.summary}")


@_apply.register
def _(body: ev.CaptureReported, state: State, time: float) -> State:
    def change(run: RunState) -> RunState:
        others = tuple(report for report in run.capture if report.rank != body.rank)
        return replace(run, capture=tuple(sorted((*others, body), key=lambda report: report.rank)))

    return _on_run(state, body.run, change)


@_apply.register
def _(body: ev.DumpSampled, state: State, time: float) -> State:
    if state.run is None or state.run.started.run != body.run:
        return state
    before = state.run.dump
    state = _on_run(state, body.run, lambda run: replace(run, dump=body, dump_time=time))
    if before is None or (before.dump, before.state) != (body.dump, body.state):
        level = "error" if body.state == "failed" else "info"
        why = f": {body.reason}" if body.reason else ""
        state = _ring(state, time, level, f"dump {body.dump} {body.state}{why}")
    told = before.errors if before is not None and before.dump == body.dump else ()
    for error in (error for error in body.errors if error not in told):
        state = _ring(state, time, "error", f"dump {body.dump}: {error}")
    return state


@_apply.register
def _(body: ev.ShardCommitted, state: State, time: float) -> State:
    return _on_run(
        state, body.run,
        lambda run: replace(run, shards=(*run.shards[-(SHARDS_KEPT - 1) :], body)),
    )  # fmt: skip


@_apply.register
def _(body: ev.RunExited, state: State, time: float) -> State:
    if state.run is None or state.run.started.run != body.run:
        return state
    state = _on_run(state, body.run, lambda run: replace(run, exited=body, exit_time=time))
    code = "unknown" if body.code is None else str(body.code)
    level = "info" if body.asked and not body.left else "error"
    left = f"; left behind: {', '.join(body.left)}" if body.left else ""
    return _ring(state, time, level, f"run {body.run} ended, exit code {code}{left}")


@_apply.register
def _(body: BisectChanged, state: State, time: float) -> State:
    before = state.bisect if state.bisect is not None and state.bisect.bisect == body.bisect else None
    state = replace(state, bisect=body)
    known = {one.factor: one.outcome for one in before.attempts} if before is not None else {}
    for one in body.attempts:
        if one.outcome in ("passed", "hung", "failed") and known.get(one.factor) != one.outcome:
            where = f" in {one.phase}" if one.phase and one.outcome != "passed" else ""
            state = _ring(state, time, "info", f"bisect, {one.factor} changed: {one.outcome}{where}")
    if before is None or before.state != body.state:
        state = _ring(state, time, "info", f"bisect of {body.name} {body.state}: {body.conclusion}".rstrip(": "))
    return state


@_apply.register
def _(body: ev.Note, state: State, time: float) -> State:
    return _ring(state, time, body.level, body.text)


@_apply.register
def _(body: ev.Gap, state: State, time: float) -> State:
    text = f"events {body.first}-{body.last} are gone: {body.reason}"
    return _ring(replace(state, gaps=state.gaps + 1), time, "warning", text)


@_apply.register
def _(body: ev.Snapshot, state: State, time: float) -> State:
    if not isinstance(body.state, State):
        raise TypeError(f"a snapshot holds a State, not {type(body.state).__name__}")
    return body.state


@_apply.register
def _(body: ev.Unknown, state: State, time: float) -> State:
    return replace(state, unknown=state.unknown + 1)
