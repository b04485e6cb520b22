"""State is a pure fold of events: split anywhere it is the same, and nothing foreign, late or unknown moves it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_agent.model import events as ev
from kimi_agent.model.phases import ORDER, PHASES, READY
from kimi_agent.model.reduce import fold, reduce
from kimi_agent.model.state import HISTORY_SIZE, RING_SIZE, SHARDS_KEPT, State

RANKS = ("TP0", "TP1")
WORDS = st.text("abc ", max_size=4)
COUNTS = st.integers(0, 10**6)
RUNS = st.sampled_from(["run-a", "run-b"])
RANK = st.sampled_from([*RANKS, "TP9"])
PHASE = st.sampled_from([*PHASES, "unheard of"])
RATE = st.none() | st.floats(0, 1e6)


def started(run: str = "run-a", *, adopted: bool = False, ranks: tuple[str, ...] = RANKS) -> ev.RunStarted:
    """A start of a run with two ranks."""
    return ev.RunStarted(
        run, "tiny", "/models/tiny", ("python", "-m", "sglang.launch_server"), 100, len(ranks), ranks, "127.0.0.1",
        30000, "/log", "/python", "0.5.23", capture=True, adopted=adopted,
    )  # fmt: skip


def dump(state: str, errors: tuple[str, ...] = (), name: str = "d1", run: str = "run-a") -> ev.DumpSampled:
    """A dump's sample with nothing in it but its state and errors."""
    return ev.DumpSampled(run, name, state, "/d", 0, 0, 0, (), 0, 0, 0, None, None, None, errors)


VERDICT = st.builds(ev.Verdict, st.sampled_from(["none", "deadlock", "straggler"]), WORDS, st.none() | RANK)
OF_A_RUN = st.one_of(
    st.builds(ev.StatusChanged, RUNS, st.sampled_from(["STARTING", "READY", "HUNG", "FAILED"]), WORDS),
    st.builds(ev.LogLines, RUNS, COUNTS, st.lists(WORDS, max_size=3).map(tuple)),
    st.builds(ev.PhaseEntered, RUNS, RANK, PHASE),
    st.builds(ev.PhaseProgress, RUNS, RANK, PHASE, COUNTS, COUNTS, WORDS),
    st.builds(ev.RanksSampled, RUNS, st.just(())),
    st.builds(ev.ThroughputSampled, RUNS, RATE, RATE, *[st.none() | COUNTS] * 4, RATE, st.just("loads")),
    st.builds(ev.VerdictChanged, RUNS, VERDICT),
    st.builds(ev.CaptureReported, RUNS, RANK, COUNTS, st.booleans(), WORDS, st.just((2, 3)), COUNTS, WORDS, WORDS),
    st.builds(
        dump, st.sampled_from(["idle", "writing", "failed"]), st.lists(WORDS, max_size=3).map(tuple), WORDS, RUNS
    ),
    st.builds(ev.ShardCommitted, RUNS, WORDS, WORDS, COUNTS, COUNTS, COUNTS),
    st.builds(ev.RunExited, RUNS, st.none() | COUNTS, st.booleans(), st.lists(WORDS, max_size=2).map(tuple)),
)
OF_THE_HOST = st.one_of(
    st.builds(ev.AgentStarted, WORDS, WORDS, COUNTS, WORDS, st.none(), WORDS, COUNTS, COUNTS),
    st.builds(ev.HostSampled, COUNTS, COUNTS, st.floats(0, 9), RATE),
    st.builds(ev.Note, st.sampled_from(["info", "error"]), WORDS),
    st.builds(ev.Gap, COUNTS, COUNTS, WORDS),
    st.builds(ev.Unknown, WORDS),
)
STARTS = st.builds(lambda run, adopted: started(run, adopted=adopted), RUNS, st.booleans())
BODIES: st.SearchStrategy[Any] = OF_A_RUN | OF_THE_HOST | STARTS


def numbered(bodies: list[Any]) -> list[ev.Event]:
    """The bodies as a journal's events, a second apart."""
    return [ev.Event(place, 1000.0 + place, body) for place, body in enumerate(bodies, 1)]


JOURNALS = st.lists(BODIES, max_size=30).map(numbered)


@given(JOURNALS, st.data())
def test_a_journal_folds_the_same_wherever_it_is_split(journal: list[ev.Event], data: st.DataObject) -> None:
    split = data.draw(st.integers(0, len(journal)))
    assert fold(journal) == fold(journal[split:], fold(journal[:split]))


@given(JOURNALS)
def test_folding_leaves_the_earlier_state_as_it_was(journal: list[ev.Event]) -> None:
    states = [State()]
    for event in journal:
        states.append(reduce(states[-1], event))
    assert states == [fold(journal[:count]) for count in range(len(states))]


@given(JOURNALS)
def test_the_state_carries_the_place_and_time_of_the_last_event(journal: list[ev.Event]) -> None:
    state = fold(journal)
    assert (state.seq, state.time) == ((journal[-1].seq, journal[-1].time) if journal else (0, None))


@given(JOURNALS)
def test_ranks_never_go_back_a_phase(journal: list[ev.Event]) -> None:
    state = State()
    for event in journal:
        before, state = state, reduce(state, event)
        if isinstance(event.body, ev.RunStarted) or state.run is None or before.run is None:
            continue
        for earlier, later in zip(before.run.ranks, state.run.ranks, strict=True):
            assert later.rank == earlier.rank
            assert ORDER[later.phase] >= ORDER[earlier.phase]
            assert later.entered[: len(earlier.entered)] == earlier.entered


@given(JOURNALS)
def test_each_rank_lists_the_phases_it_went_through_in_order(journal: list[ev.Event]) -> None:
    run = fold(journal).run
    for rank in run.ranks if run else ():
        places = [ORDER[phase] for phase, _ in rank.entered]
        assert places == sorted(set(places))
        assert rank.entered[-1] == (rank.phase, rank.since)


@given(JOURNALS, st.sampled_from(PHASES))
def test_every_rank_is_either_past_a_phase_or_a_laggard(journal: list[ev.Event], phase: str) -> None:
    run = fold(journal).run
    if run is not None:
        assert run.past(phase) + len(run.laggards(phase)) == len(run.ranks)


@given(JOURNALS, OF_A_RUN)
def test_an_event_of_a_foreign_run_changes_nothing(journal: list[ev.Event], body: Any) -> None:
    before = fold(journal)
    after = reduce(before, ev.Event(99, 9999.0, replace(body, run="another run")))
    assert after == replace(before, seq=99, time=9999.0)


@given(JOURNALS)
def test_events_of_unknown_kinds_and_gaps_are_counted(journal: list[ev.Event]) -> None:
    state = fold(journal)
    assert state.unknown == sum(isinstance(event.body, ev.Unknown) for event in journal)
    assert state.gaps == sum(isinstance(event.body, ev.Gap) for event in journal)


@pytest.mark.parametrize("kind", ["note", "shard", "throughput"])
def test_what_is_kept_is_bounded_and_the_newest(kind: str) -> None:
    count = 2 * max(RING_SIZE, SHARDS_KEPT, HISTORY_SIZE)
    bodies: dict[str, Any] = {
        "note": lambda place: ev.Note("info", str(place)),
        "shard": lambda place: ev.ShardCommitted("run-a", "d1", str(place), 1, 1, 1),
        "throughput": lambda place: ev.ThroughputSampled("run-a", place, None, 0, 0, None, None, None, "loads"),
    }
    state = fold(numbered([started(), *map(bodies[kind], range(count))]))
    assert state.run is not None
    kept = {
        "note": [entry.text for entry in state.ring],
        "shard": [shard.path for shard in state.run.shards],
        "throughput": [str(rate) for rate in state.run.prefill_history],
    }[kind]
    size = {"note": RING_SIZE, "shard": SHARDS_KEPT, "throughput": HISTORY_SIZE}[kind]
    assert kept == [str(place) for place in range(count - size, count)]


@settings(max_examples=10)
@given(st.lists(BODIES, min_size=1, max_size=30))
def test_the_ring_is_bounded_whatever_comes(bodies: list[Any]) -> None:
    state = State()
    for event in numbered(bodies * (RING_SIZE // len(bodies) + 20)):
        state = reduce(state, event)
    assert len(state.ring) <= RING_SIZE


def test_a_run_found_again_by_a_restarted_agent_keeps_its_progress() -> None:
    entered = ev.PhaseEntered("run-a", "TP0", "load weights")
    before = fold(numbered([started(), entered]))
    after = reduce(before, ev.Event(3, 1003.0, started(adopted=True)))
    assert after.run == before.run
    assert after.run_count == 1
    assert after.ring[-1].text == "run run-a found again, pid 100"


def test_a_new_run_starts_from_nothing() -> None:
    state = fold(numbered([started(), ev.PhaseEntered("run-a", "TP0", READY), started("run-b")]))
    assert state.run is not None
    assert (state.run.started.run, state.run.status, state.run.ready_time, state.run_count) == (
        "run-b", "STARTING", None, 2,
    )  # fmt: skip
    assert {rank.phase for rank in state.run.ranks} == {"import"}


def test_the_first_rank_that_is_ready_sets_the_time_and_later_ones_do_not() -> None:
    state = fold(numbered([started(), *(ev.PhaseEntered("run-a", rank, READY) for rank in RANKS)]))
    assert state.run is not None
    assert state.run.ready_time == 1002.0


def test_status_and_verdict_changes_can_be_read_after_the_fact() -> None:
    bodies = [
        started(),
        ev.StatusChanged("run-a", "HUNG", "no progress for 60 s"),
        ev.VerdictChanged("run-a", ev.Verdict("deadlock", "TP1 waits in a collective", "TP1")),
        ev.VerdictChanged("run-a", ev.Verdict("none", "")),
        ev.RunExited("run-a", -9, asked=False, left=("pid 101",)),
    ]
    ring = [(entry.level, entry.text) for entry in fold(numbered(bodies)).ring]
    assert ring[1:] == [
        ("error", "STARTING → HUNG: no progress for 60 s"),
        ("warning", "verdict deadlock TP1: TP1 waits in a collective"),
        ("good", "cleared: TP1 waits in a collective"),
        ("error", "run run-a ended, exit code -9; left behind: pid 101"),
    ]


def test_each_error_of_a_dump_is_told_once() -> None:
    bodies = [started(), dump("writing"), dump("writing", ("disk full",)), dump("paused", ("disk full", "EIO"))]
    ring = [entry.text for entry in fold(numbered(bodies)).ring]
    assert ring[1:] == ["dump d1 writing", "dump d1: disk full", "dump d1 paused", "dump d1: EIO"]


def test_a_change_of_a_dump_s_state_says_why() -> None:
    paused = replace(dump("paused"), reason="No space left on device", write_errors=3)
    ring = [entry.text for entry in fold(numbered([started(), dump("writing"), paused, dump("writing")])).ring]
    assert ring[1:] == ["dump d1 writing", "dump d1 paused: No space left on device", "dump d1 writing"]


def test_the_errors_of_a_second_dump_are_told_too() -> None:
    bodies = [started(), dump("failed", ("disk full",)), dump("failed", ("no such directory",), name="d2")]
    ring = [entry.text for entry in fold(numbered(bodies)).ring]
    assert ring[-2:] == ["dump d2 failed", "dump d2: no such directory"]


def test_the_log_counts_its_lines_without_counting_any_twice() -> None:
    bodies = [started(), ev.LogLines("run-a", 0, ("a", "b")), ev.LogLines("run-a", 1, ("b",))]
    run = fold(numbered(bodies)).run
    assert run is not None
    assert run.log_lines == 2


def test_a_rank_reports_its_capture_anew_and_the_newest_stands() -> None:
    def report(rank: str, boundaries: tuple[int, ...]) -> ev.CaptureReported:
        return ev.CaptureReported("run-a", rank, 1, True, "Kimi", boundaries, 128, "bfloat16", "0.1.0")

    bodies = [started(), report("TP1", ()), report("TP0", ()), report("TP1", (2, 3, 4))]
    run = fold(numbered(bodies)).run
    assert run is not None
    assert [(entry.rank, entry.boundaries) for entry in run.capture] == [("TP0", ()), ("TP1", (2, 3, 4))]
