"""The bisection's plan, against made-up worlds in which the cause is known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.engine.argv import LAYERS_FLAG
from kimi_agent.errors import UsageError
from kimi_agent.model.bisect import AGAIN, ALL, NOTHING, Attempt, BisectChanged
from kimi_agent.model.events import (
    BaselineKnown,
    Event,
    PhaseEntered,
    RunExited,
    RunStarted,
    StatusChanged,
    Verdict,
    VerdictChanged,
)
from kimi_agent.model.phases import ORDER, PHASES
from kimi_agent.model.reduce import fold, reduce
from kimi_agent.model.state import RunState, State
from kimi_agent.profile import Profile, parse
from kimi_agent.runs import bisect, factors
from kimi_agent.runs.bisect_command import exit_of
from kimi_agent.runs.plan import Plan
from kimi_agent.wire.codec import decode_event, encode_event

GPU = ("--trust-remote-code", "--enable-torch-compile", "--enable-mixed-chunk")


def launch(flags: tuple[str, ...] = GPU, *, tp: int = 8, capture: bool = True, **env: str) -> Plan:
    server = {"model": "/m", "tp": tp, "flags": list(flags)}
    profile = parse({"server": server, "capture": {"enabled": capture, "layers": [3, 31]}, "env": env}, "t", "kimi")
    argv = ["python", *flags]
    if capture:
        argv += [*factors.CAPTURE_FLAGS[:2], "EAGLE3", LAYERS_FLAG, "3", "31"]
    return Plan(profile, tuple(argv), dict(env), "python", "0.5.23", frozenset(), tuple(f"TP{n}" for n in range(tp)),
                Path("/d"))  # fmt: skip


def table_of(made: Plan, *, first: bool = False) -> BisectChanged:
    return bisect.begin("b", made.profile, factors.applicable(made), limit=60.0, first=first)


def go(table: BisectChanged, world: Any, target: str = "graphs") -> tuple[BisectChanged, list[str]]:
    """Run a whole bisection in a world: (changed factors, how often so far) to whether the start passes."""
    tried: list[str] = []
    while True:
        table, factor = bisect.following(table)
        if factor is None:
            return bisect.concluded(table), tried
        tried.append(factor)
        good = world(frozenset(bisect.changes(table, factor)), len(tried))
        shown = Attempt("", "", "passed" if good else "hung", target, 10.0)
        table = bisect.recorded(table, factor, shown)
        if table.target is None and bisect.reference(table) is not None:
            table = bisect.aimed(table, shown, 60.0)


NAMES = [factor.name for factor in factors.applicable(launch())]


@given(st.sets(st.sampled_from(NAMES)), st.booleans())
def test_every_single_cause_is_named_and_nothing_else(causes: set[str], first: bool) -> None:
    table, tried = go(table_of(launch(), first=first), lambda changed, _: bool(changed & causes))
    named = set(table.culprits)
    expected = causes - ({"capture"} if "plugin" in causes else set())
    if first and causes:
        assert len(named) == 1
        assert named <= causes
    else:
        assert named == expected
    for name in named:
        assert name in table.conclusion
    assert len(tried) == len(set(tried)), "nothing is tried twice"
    assert tried[0] == NOTHING
    assert table.state == "done"
    assert exit_of(table) == (0 if causes else 4)


@given(st.sets(st.sampled_from(NAMES), min_size=2))
def test_causes_that_only_help_together_are_said_to(causes: set[str]) -> None:
    table, tried = go(table_of(launch()), lambda changed, _: causes <= changed)
    assert table.culprits == ()
    assert tried[-1] == ALL
    assert "only with all of them" in table.conclusion


def test_a_hang_that_nothing_changes_is_said_to_be_there_without_the_plugin_too() -> None:
    table, _ = go(table_of(launch()), lambda *_: False)
    assert "hangs in graphs with every change tried" in table.conclusion
    assert "without the capture plugin too" in table.conclusion
    bare, _ = go(table_of(launch(capture=False)), lambda *_: False)
    assert "plugin not in question" in bare.conclusion


def test_a_start_that_passes_is_repeated_once_and_then_said_not_to_hang() -> None:
    table, tried = go(table_of(launch()), lambda *_: True)
    assert tried == [NOTHING, AGAIN]
    assert "did not hang" in table.conclusion
    later, tried = go(table_of(launch()), lambda changed, time: (time != 2 and "p2p" in changed) or time == 1)
    assert tried[:3] == [NOTHING, AGAIN, "plugin"]
    assert later.culprits == ("p2p",)


def recorded_hang(made: Plan) -> BisectChanged:
    """A table whose reference is a run of before."""
    shown = Attempt(NOTHING, "", "hung", "graphs", 99.0, "run-1")
    return bisect.aimed(replace(bisect.recorded(table_of(made), NOTHING, shown), earlier=True), shown, 60.0)


@given(st.sets(st.sampled_from(NAMES), min_size=1))
def test_after_a_run_of_before_a_control_guards_against_luck(causes: set[str]) -> None:
    table, tried = go(recorded_hang(launch()), lambda changed, _: bool(changed & causes))
    assert tried[0] == "plugin"
    assert tried[-1] == AGAIN
    assert set(table.culprits) == causes - ({"capture"} if "plugin" in causes else set())
    lucky, _ = go(recorded_hang(launch()), lambda *_: True)
    assert lucky.culprits == ()
    assert "only at times" in lucky.conclusion


@given(st.integers(0, 12), st.sets(st.sampled_from(NAMES)))
def test_broken_off_anywhere_and_resumed_it_ends_the_same(steps: int, causes: set[str]) -> None:
    def world(changed: frozenset[str], _: int) -> bool:
        return bool(changed & causes)

    whole, _ = go(table_of(launch()), world)
    table = table_of(launch())
    for _ in range(steps):
        table, factor = bisect.following(table)
        if factor is None:
            break
        shown = Attempt(
            "", "", "passed" if world(frozenset(bisect.changes(table, factor)), 0) else "hung", "graphs", 10.0
        )
        table = bisect.recorded(table, factor, shown)
        if table.target is None and bisect.reference(table) is not None:
            table = bisect.aimed(table, shown, 60.0)
    table, factor = bisect.following(table)
    if factor is not None:
        table = bisect.recorded(table, factor, Attempt("", "", "running"))
    kept = bisect.stopped(table, "an operator stopped it")
    assert "running" not in {one.outcome for one in kept.attempts}
    again, _ = go(bisect.resumed(kept), world)
    assert (again.culprits, again.conclusion) == (whole.culprits, whole.conclusion)


def test_a_factor_that_cannot_matter_in_the_phase_is_left_out_and_says_so() -> None:
    made = launch()
    shown = Attempt(NOTHING, "", "hung", "load weights", 99.0)
    table = bisect.aimed(bisect.recorded(table_of(made), NOTHING, shown), shown, 60.0, factors.applicable(made))
    open_ones = {one.factor for one in bisect.factors_of(table) if one.outcome == "waiting"}
    assert open_ones == {"plugin", "capture", "mmap"}
    assert all(one.why for one in table.attempts if one.outcome == "skipped")


@pytest.mark.parametrize(("made", "without"), [
    (launch(("--device", "cpu"), tp=2), {"cuda-graphs", "p2p", "custom-all-reduce", "attention-backend", "autotune"}),
    (launch(tp=1), {"p2p", "custom-all-reduce"}),
    (launch(("--disable-cuda-graph",)), {"cuda-graphs", "torch-compile", "mixed-chunk"}),
    (launch(capture=False), {"plugin", "capture"}),
    (launch(NCCL_P2P_DISABLE="1"), {"p2p"}),
])  # fmt: skip
def test_only_what_would_change_something_is_tried(made: Plan, without: set[str]) -> None:
    assert without & {factor.name for factor in factors.applicable(made)} == set()


def test_factors_are_chosen_by_name() -> None:
    assert [factor.name for factor in factors.applicable(launch(), ["p2p", "capture"])] == ["capture", "p2p"]
    with pytest.raises(UsageError, match="no factor nonsense"):
        factors.applicable(launch(), ["nonsense"])
    with pytest.raises(UsageError, match="changes nothing"):
        factors.applicable(launch(tp=1), ["p2p"])


def test_a_change_changes_that_and_nothing_else() -> None:
    made = launch()
    before = made.profile
    after = factors.changed(made, ["torch-compile"])
    assert after.server.flags == ("--trust-remote-code", "--enable-mixed-chunk")
    assert (after.env, after.capture, after.server.model) == (before.env, before.capture, before.server.model)
    p2p = factors.changed(made, ["p2p"])
    assert p2p.env["NCCL_P2P_DISABLE"] == "1"
    assert p2p.server == before.server
    plugin = factors.changed(made, ["plugin"])
    assert not plugin.capture.enabled
    assert plugin.server.flags[-3:] == (LAYERS_FLAG, "3", "31"), "SGLang's own capture flags stay"
    capture = factors.changed(made, ["capture"])
    assert not capture.capture.enabled
    assert not set(factors.CAPTURE_FLAGS) & set(capture.server.flags)
    attention = factors.changed(launch(("--attention-backend", "triton", "--tp", "8")), ["attention-backend"])
    assert attention.server.flags == ("--tp", "8", "--attention-backend", "flashinfer")
    assert factors.changed(made, []).limits.start_timeout is None
    parse(factors.changed(made, NAMES).to_dict(), "all of them at once are a profile too")


def running(*events: Any, until: float) -> RunState:
    started = RunStarted("r", "n", "m", (), 1, 2, ("TP0", "TP1"), "h", 1, "l", "p", "0.5.23", capture=True)
    bodies = [(0.0, started), *events]
    run = fold(Event(seq, time, body) for seq, (time, body) in enumerate(bodies, 1) if time <= until).run
    assert run is not None
    return run


@given(st.lists(st.tuples(st.sampled_from(["TP0", "TP1"]), st.sampled_from(PHASES), st.floats(0, 90)), max_size=12),
       st.sampled_from(PHASES[:-1]), st.floats(0, 100))  # fmt: skip
def test_a_start_passes_once_its_slowest_rank_is_beyond_the_phase(
    steps: list[tuple[str, str, float]], target: str, now: float
) -> None:
    events = [(time, PhaseEntered("r", rank, phase)) for rank, phase, time in sorted(steps, key=lambda one: one[2])]
    run = running(*events, until=now)
    shown = bisect.judge(run, now, target, 95.0)
    beyond = all(ORDER[rank.phase] > ORDER[target] for rank in run.ranks)
    assert (shown is not None and shown.outcome == "passed") == beyond
    if not beyond:
        assert (shown is not None and shown.outcome == "hung") == (now > 95.0)


def test_hung_must_hold_and_be_sure_and_failed_counts_at_once() -> None:
    silent = VerdictChanged("r", Verdict("unknown", "silent", confidence=0.3))
    guess = running((4.0, silent), (5.0, StatusChanged("r", "HUNG", "silent")), until=6.0)
    assert bisect.judge(guess, 50.0, "graphs", 60.0) is None
    sure = VerdictChanged("r", Verdict("straggler", "TP1 is stopped", "TP1", 0.95))
    hung = running((4.0, sure), (5.0, StatusChanged("r", "HUNG", "TP1 is stopped")), until=6.0)
    assert bisect.judge(hung, 6.0, "graphs", 60.0) is None
    shown = bisect.judge(hung, 5.0 + bisect.HELD, "graphs", 60.0)
    assert shown is not None
    assert (shown.outcome, shown.why) == ("hung", "TP1 is stopped")
    gone = running((5.0, RunExited("r", 1, False)), until=6.0)
    failed = bisect.judge(gone, 6.0, "graphs", 60.0)
    assert failed is not None
    assert failed.outcome == "failed"
    ready = [(4.0, PhaseEntered("r", rank, "ready")) for rank in ("TP0", "TP1")]
    passed = bisect.judge(running(*ready, until=6.0), 6.0, None, 60.0)
    assert passed is not None
    assert passed.outcome == "passed"


def test_the_limit_comes_from_a_good_start_or_from_the_first_failure() -> None:
    shown = Attempt(NOTHING, "", "hung", "graphs", 500.0)
    known = BaselineKnown(
        "r", 0.0, (("import", 10.0), ("load weights", 100.0), ("graphs", 40.0), ("warm-up", 9.0)), 160.0
    )
    assert bisect.limit_of(shown, 90.0, known) == 300.0 + bisect.PATIENCE
    assert bisect.limit_of(shown, 90.0, None) == 180.0 + bisect.PATIENCE
    given = replace(table_of(launch()), limit=None)
    assert bisect.aimed(given, shown, 33.0).limit == 33.0
    assert bisect.aimed(table_of(launch()), shown, 33.0).limit == 60.0


def test_only_a_start_that_hung_or_failed_is_a_reference() -> None:
    assert bisect.reference_of(running(until=1.0)) is None
    hung = bisect.reference_of(running((5.0, StatusChanged("r", "HUNG", "w")), until=9.0))
    assert hung is not None
    assert (hung.outcome, hung.phase, hung.run) == ("hung", "import", "r")
    serving = [(4.0, PhaseEntered("r", rank, "ready")) for rank in ("TP0", "TP1")]
    assert bisect.reference_of(running(*serving, (5.0, StatusChanged("r", "HUNG", "w")), until=9.0)) is None


def test_who_comes_later_sees_the_whole_table_and_the_ring_tells_each_outcome() -> None:
    state, table = State(), table_of(launch())
    for seq, step in enumerate((table, bisect.recorded(table, "p2p", Attempt("", "", "hung", "graphs", 9.0, "r"))), 1):
        state = reduce(state, decode_event(encode_event(Event(seq, float(seq), step))))
    assert state.bisect is not None
    assert state.bisect.attempt("p2p") == Attempt("p2p", table.attempt("p2p").change, "hung", "graphs", 9.0, "r")  # type: ignore[union-attr]
    assert [entry.text for entry in state.ring] == ["bisect of kimi running", "bisect, p2p changed: hung in graphs"]


def test_a_profile_is_known_again_by_its_hash() -> None:
    made = launch()
    again: Profile = parse(made.profile.to_dict(), "again")
    assert bisect.digest(again) == bisect.digest(made.profile)
    assert bisect.digest(factors.changed(made, ["p2p"])) != bisect.digest(made.profile)
