"""The bisection's plan: which start comes next, what a start has shown, and what all of them mean. Pure."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kimi_agent.model.bisect import AGAIN, ALL, BAD, NOTHING, OPEN, Attempt, BisectChanged
from kimi_agent.model.events import BaselineKnown
from kimi_agent.model.phases import ORDER, PHASES
from kimi_agent.model.state import RunState
from kimi_agent.profile import Profile
from kimi_agent.runs.factors import Factor

FIRST_LIMIT: Final = 1800.0
"""Seconds that the reference gets when neither a good start nor the profile says how long a start takes."""
PATIENCE: Final = 120.0
"""Seconds that an attempt gets beyond what is known of a start."""
HELD: Final = 10.0
"""Seconds for which the doctor's HUNG must hold to be believed."""
SURE: Final = 0.6
"""Confidence of a verdict that may end an attempt before its time; mere silence gets all of it."""

_NOTHING_CHANGED: Final = "nothing changed"


def digest(profile: Profile) -> str:
    """A profile's identity."""
    return hashlib.sha256(json.dumps(profile.to_dict(), sort_keys=True).encode()).hexdigest()[:16]


def begin(
    ident: str, profile: Profile, factors: Sequence[Factor], *, limit: float | None, first: bool
) -> BisectChanged:
    """A table with nothing tried yet."""
    attempts = (Attempt(NOTHING, _NOTHING_CHANGED), *(Attempt(one.name, one.change) for one in factors))
    return BisectChanged(ident, profile.name, digest(profile), "running", attempts, limit=limit, first=first)


def reference_of(run: RunState) -> Attempt | None:
    """A run that hung or failed in its start, as the reference; `None` when it did neither, or was stopped."""
    if run.ready_time is not None or run.status not in ("HUNG", "FAILED"):
        return None
    outcome = "hung" if run.status == "HUNG" else "failed"
    return Attempt(NOTHING, _NOTHING_CHANGED, outcome, phase_of(run), run.status_since - run.time, run.started.run,
                   run.status_reason)  # fmt: skip


def phase_of(run: RunState) -> str:
    """The earliest phase that a rank is in."""
    return min((rank.phase for rank in run.ranks), key=ORDER.__getitem__, default=PHASES[0])


def judge(run: RunState, now: float, target: str | None, limit: float) -> Attempt | None:
    """What a start has shown by `now` (Unix seconds), without its factor; `None` while it is open.

    Without a target, the reference's case, a start passes when it is ready.
    """
    phase, seconds = phase_of(run), now - run.time
    passed = run.ready_time is not None if target is None else ORDER[phase] > ORDER[target]
    if passed:
        return _shown(run, "passed", phase, seconds, "")
    if run.exited is not None or run.status == "FAILED":
        return _shown(run, "failed", phase, seconds, run.status_reason)
    sure = run.verdict is not None and run.verdict.confidence >= SURE
    if run.status == "HUNG" and sure and now - run.status_since >= HELD:
        return _shown(run, "hung", phase, seconds, run.status_reason)
    if seconds > limit:
        return _shown(run, "hung", phase, seconds, f"still in {phase} after {limit:.0f} s")
    return None


def _shown(run: RunState, outcome: str, phase: str, seconds: float, why: str) -> Attempt:
    return Attempt("", "", outcome, phase, seconds, run.started.run, why)


def limit_of(reference: Attempt, entered: float, baseline: BaselineKnown | None) -> float:
    """Seconds that an attempt gets to pass the phase in which the reference stopped.

    Twice what a good start needs to leave it, when one is known; else twice what the reference took to enter it
    (`entered`, seconds after launch), with patience added in either case.
    """
    known = dict(baseline.phases) if baseline is not None else {}
    upto = ORDER[reference.phase or PHASES[0]]
    leave = sum(seconds for phase, seconds in known.items() if ORDER.get(phase, 99) <= upto)
    return (2 * leave if reference.phase in known else 2 * entered) + PATIENCE


def entered_after(run: RunState, phase: str) -> float:
    """Seconds from launch until the last rank that came so far entered a phase."""
    times = [time for rank in run.ranks for name, time in rank.entered if name == phase]
    return max(times, default=run.time) - run.time


def aimed(table: BisectChanged, reference: Attempt, limit: float, factors: Sequence[Factor] = ()) -> BisectChanged:
    """The table once the reference has shown in which phase it stops.

    The factors given, which could be anything's cause, are left out where they cannot matter in that phase.
    """
    target = reference.phase or PHASES[0]
    idle = {one.name for one in factors if target not in one.matters}
    attempts = tuple(
        replace(one, outcome="skipped", why=f"cannot matter in {target}")
        if one.factor in idle and one.outcome == "waiting" else one
        for one in table.attempts
    )  # fmt: skip
    return replace(table, target=target, limit=table.limit or limit, attempts=attempts)


def following(table: BisectChanged) -> tuple[BisectChanged, str | None]:
    """The factor to try next, and the table with it in; `None` when there is nothing more to try."""
    first = table.attempts[0]
    again = table.attempt(AGAIN)
    if first.outcome in OPEN:
        return table, NOTHING
    if first.outcome == "passed" and again is None:
        return _added(table, Attempt(AGAIN, "nothing changed, once more"), 1), AGAIN
    if again is not None and again.outcome in OPEN:
        return table, AGAIN
    if reference(table) is None:
        return table, None
    tried = factors_of(table)
    if not (table.first and any(one.outcome == "passed" for one in tried)):
        for one in tried:
            if one.outcome in OPEN:
                return table, one.factor
    return _last(table, tried)


def _last(table: BisectChanged, tried: Sequence[Attempt]) -> tuple[BisectChanged, str | None]:
    """A control where luck may have helped what has passed, or everything at once when nothing has passed."""
    counted = [one for one in tried if one.outcome in ("passed", *BAD)]
    everything = table.attempt(ALL)
    passed = _telling([one.factor for one in counted if one.outcome == "passed"])
    if passed:
        if table.attempt(AGAIN) is None and (table.earlier or len(passed) > 1):
            return _added(table, Attempt(AGAIN, "nothing changed, once more"), len(table.attempts)), AGAIN
    elif len(counted) > 1 and (everything is None or everything.outcome in OPEN):
        if everything is not None:
            return table, ALL
        return _added(table, Attempt(ALL, "all of these changes at once"), len(table.attempts)), ALL
    return table, None


def _telling(passed: Sequence[str]) -> tuple[str, ...]:
    """What passes without the plugin passes without all of capture too, which says nothing more."""
    return tuple(factor for factor in passed if factor != "capture" or "plugin" not in passed)


def _added(table: BisectChanged, attempt: Attempt, at: int) -> BisectChanged:
    return replace(table, attempts=(*table.attempts[:at], attempt, *table.attempts[at:]))


def factors_of(table: BisectChanged) -> list[Attempt]:
    """The attempts that change one factor."""
    return [one for one in table.attempts if one.factor not in (NOTHING, AGAIN, ALL)]


def changes(table: BisectChanged, factor: str) -> list[str]:
    """The factors that an attempt changes: its own, none, or all that could be tried."""
    tried = factors_of(table)
    if factor == ALL:
        return [one.factor for one in tried if one.outcome != "skipped"]
    return [one.factor for one in tried if one.factor == factor]


def reference(table: BisectChanged) -> Attempt | None:
    """The attempt with nothing changed that did not pass; `None` when none is known."""
    bad = (one for one in (table.attempts[0], table.attempt(AGAIN)) if one is not None and one.outcome in BAD)
    return next(bad, None)


def recorded(table: BisectChanged, factor: str, shown: Attempt) -> BisectChanged:
    """The table with an attempt's outcome."""
    return replace(table, attempts=tuple(
        replace(shown, factor=one.factor, change=one.change) if one.factor == factor else one
        for one in table.attempts
    ))  # fmt: skip


def concluded(table: BisectChanged) -> BisectChanged:
    """The table at its end: which factors, in one sentence that says no more than was seen."""
    passed = _telling([one.factor for one in factors_of(table) if one.outcome == "passed"])
    bad = reference(table)
    if bad is None and table.attempts[0].outcome == "skipped":
        return replace(table, state="done", conclusion=f"it could not be started: {table.attempts[0].why}")
    if bad is None:
        words = "it did not hang: with nothing changed the server became ready twice, so whatever it was comes and goes"
        return replace(table, state="done", conclusion=words)
    doing = f"{'hangs' if bad.outcome == 'hung' else 'fails'} in {table.target}"
    again = table.attempt(AGAIN)
    if again is not None and again is not bad and again.outcome == "passed" and table.attempts[0] is bad:
        words = f"it {doing} only at times: once it also got past that with nothing changed, so no factor is proved"
        return replace(table, state="done", conclusion=words)
    if passed:
        words = f"it {doing}, and gets past that with one change: {'; or '.join(_change(table, one) for one in passed)}"
        return replace(table, state="done", culprits=passed, conclusion=words)
    return replace(table, state="done", conclusion=_no_factor(table, doing))


def _no_factor(table: BisectChanged, doing: str) -> str:
    everything = table.attempt(ALL)
    tried = [one.factor for one in factors_of(table) if one.outcome in BAD]
    if everything is not None and everything.outcome == "passed":
        return f"it {doing} with each single change, and gets past that only with all of them: {', '.join(tried)}"
    if not tried:
        return f"it {doing}; no change that applies to this launch could be tried"
    without = (
        "without the capture plugin too" if {"plugin", "capture"} & set(tried) else "with the plugin not in question"
    )
    return f"it {doing} with every change tried ({', '.join(tried)}), {without}: the cause is none of these"


def _change(table: BisectChanged, factor: str) -> str:
    attempt = table.attempt(factor)
    return f"{factor} ({attempt.change})" if attempt is not None else factor


def stopped(table: BisectChanged, why: str) -> BisectChanged:
    """The table where it was broken off; what was under way is open again."""
    attempts = tuple(replace(one, outcome="stopped") if one.outcome == "running" else one for one in table.attempts)
    return replace(table, state="stopped", attempts=attempts, conclusion=f"broken off: {why}")


def resumed(table: BisectChanged) -> BisectChanged:
    """A table that was broken off, going on."""
    return replace(table, state="running", conclusion="", culprits=())
