"""A start is held against the last good one of the same launch, and of no other."""

from dataclasses import replace
from pathlib import Path

import pytest

from kimi_agent.doctor.evidence import evidence_of
from kimi_agent.doctor.limits import silence_limit
from kimi_agent.doctor.verdict import diagnose, status
from kimi_agent.engine.phases import PhaseTracker
from kimi_agent.model.events import Event, PhaseEntered, PhaseProgress, RankSample, RanksSampled, RunStarted
from kimi_agent.model.phases import PHASES
from kimi_agent.model.reduce import fold
from kimi_agent.model.starts import lateness, remaining
from kimi_agent.model.state import RunState
from kimi_agent.profile import Profile, Server
from kimi_agent.runs.baseline import KEPT, learn, recall, relevant
from kimi_agent.runs.plan import Plan


def plan(**server: object) -> Plan:
    profile = Profile(name="k", server=replace(Server(model="/m", tp=2, flags=("--a", "--b")), **server))  # type: ignore[arg-type]
    return Plan(profile, (), {}, "python", "0.5.23", frozenset(), ("TP0", "TP1"), Path("/dumps"))


def start(*, ready: bool = True, pace: float = 10.0) -> RunState:
    """Each phase takes `pace` seconds; TP1 enters each a second late."""
    launched = RunStarted("r", "k", "/m", (), 1, 2, ("TP0", "TP1"), "h", 1, "log", "python", "0.5.23", False)
    phases = PHASES[1:] if ready else PHASES[1:-1]
    events = [Event(1, 100.0, launched)]
    for index, phase in enumerate(phases, 1):
        events += [Event(0, 100.0 + pace * index + rank, PhaseEntered("r", f"TP{rank}", phase)) for rank in range(2)]
    run = fold(events).run
    assert run is not None
    return run


def test_the_last_good_start_is_recalled_phase_by_phase(tmp_path: Path) -> None:
    learn(tmp_path, plan(), start())
    known = recall(tmp_path, plan(), "next")
    assert known is not None
    assert (known.run, known.time, known.total) == ("next", 100.0, 10.0 * (len(PHASES) - 1))
    assert dict(known.phases) == dict.fromkeys(PHASES[:-1], 11.0)


@pytest.mark.parametrize("other", [{"model": "/n"}, {"tp": 4}, {"flags": ("--a",)}])
def test_another_launch_is_no_measure(tmp_path: Path, other: dict[str, object]) -> None:
    learn(tmp_path, plan(), start())
    assert recall(tmp_path, plan(**other), "next") is None


def test_the_port_and_the_order_of_flags_do_not_matter(tmp_path: Path) -> None:
    learn(tmp_path, plan(), start())
    assert recall(tmp_path, plan(port=31000, flags=("--b", "--a")), "next") is not None


def test_nothing_is_learned_from_a_start_that_never_was_ready_nor_read_from_a_torn_file(tmp_path: Path) -> None:
    learn(tmp_path, plan(), start(ready=False))
    assert recall(tmp_path, plan(), "next") is None
    learn(tmp_path, plan(), start())
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    assert recall(tmp_path, plan(), "next") is None


def test_several_good_starts_are_the_measure_and_not_the_last_alone(tmp_path: Path) -> None:
    for pace in (10.0, 30.0, 11.0):
        learn(tmp_path, plan(), start(pace=pace))
    known = recall(tmp_path, plan(), "next")
    assert known is not None
    assert (known.starts, known.total) == (3, 11.0 * (len(PHASES) - 1))
    assert dict(known.phases) == dict.fromkeys(PHASES[:-1], 12.0)
    assert dict(known.slowest) == dict.fromkeys(PHASES[:-1], 31.0)
    for _ in range(20):
        learn(tmp_path, plan(), start(pace=5.0))
    latest = recall(tmp_path, plan(), "next")
    assert latest is not None
    assert latest.starts == KEPT
    assert set(dict(latest.slowest).values()) == {6.0}


def test_the_longest_silence_of_each_phase_is_learned_and_allowed_for(tmp_path: Path) -> None:
    learn(tmp_path, plan(), start(pace=100.0))
    known = recall(tmp_path, plan(), "next")
    assert dict(known.silences)["load weights"] == 99.0 if known else False
    assert silence_limit("load weights", known, 45.0) == pytest.approx(99 + 49.5)
    assert silence_limit("load weights", None, 45.0) == 45.0
    assert silence_limit("graphs", replace(known, silences=(("graphs", 600.0),)) if known else None, 45.0) == 660.0
    assert silence_limit("graphs", replace(known, silences=(("graphs", 1.0),)) if known else None, 45.0) == 30.0


@pytest.mark.parametrize(
    ("flags", "same"),
    [
        (("--tp-size", "2", "--port", "31000", "--log-level=debug"), True),
        (("--tp-size", "2", "--dist-init-addr", "10.0.0.1:5000"), True),
        (("--tp-size", "2", "--disable-cuda-graph"), False),
        (("--tp-size", "2", "--nnodes", "2"), False),
    ],
)
def test_only_flags_that_matter_to_a_start_make_it_another_launch(
    tmp_path: Path, flags: tuple[str, ...], same: bool
) -> None:
    learn(tmp_path, plan(flags=("--tp-size", "2")), start())
    assert (recall(tmp_path, plan(flags=flags), "next") is not None) == same


def test_two_flags_that_swap_their_values_are_another_launch() -> None:
    assert relevant(("--a", "1", "--b=2")) == [["--a", "1"], ["--b", "2"]]
    assert sorted(relevant(("--a", "1", "--b", "2"))) != sorted(relevant(("--a", "2", "--b", "1")))


def running(seconds: float, progress: tuple[int, int] | None = None, *, learned: Path) -> RunState:
    """A start that has been loading weights since 120 s, `seconds` after that began, held against learned ones."""
    known = recall(learned, plan(), "r")
    assert known is not None
    launched = RunStarted("r", "k", "/m", (), 1, 2, ("TP0", "TP1"), "h", 1, "log", "python", "0.5.23", False)
    events = [Event(1, 100.0, launched), Event(2, 100.0, known)]
    for index, phase in enumerate(("join ranks", "load weights"), 1):
        events += [Event(0, 100.0 + 10 * index, PhaseEntered("r", f"TP{rank}", phase)) for rank in range(2)]
    if progress is not None:
        events.append(Event(0, 120.0 + seconds, PhaseProgress("r", "TP0", "load weights", *progress, "shards")))
    run = fold(events).run
    assert run is not None
    return run


def test_what_is_left_of_a_start_is_told_by_good_starts_and_by_the_bar(tmp_path: Path) -> None:
    learn(tmp_path, plan(), start(pace=60.0))
    total = 60.0 * (len(PHASES) - 1)
    assert remaining(running(0.0, learned=tmp_path), 120.0) == pytest.approx(total - 120, rel=0.05)
    assert remaining(running(40.0, learned=tmp_path), 160.0) == pytest.approx(total - 160, rel=0.05)
    half = remaining(running(100.0, (50, 100), learned=tmp_path), 220.0)
    assert half == pytest.approx(100 + total - 180, rel=0.05)
    assert remaining(replace(running(0.0, learned=tmp_path), baseline=None), 130.0) is None


def test_a_phase_that_outlasts_every_good_start_is_slow_while_it_advances(tmp_path: Path) -> None:
    learn(tmp_path, plan(), start(pace=60.0))
    for seconds, word in ((50.0, "STARTING"), (80.0, "STARTING"), (100.0, "SLOW")):
        run = running(seconds, (9, 10), learned=tmp_path)
        evidence = evidence_of(run, PhaseTracker(("TP0", "TP1")), 120.0 + seconds)
        verdict = diagnose(evidence)
        assert (status(evidence, verdict)[0], verdict.kind) == (word, "none"), seconds
        assert lateness(run, 120.0 + seconds) == max(0.0, seconds - 61.0)


def test_a_start_in_which_a_process_was_stopped_is_no_measure(tmp_path: Path) -> None:
    learn(tmp_path, plan(), replace(start(), stopped=True))
    assert recall(tmp_path, plan(), "next") is None
    sample = RankSample("TP1", 2, "T", 0.0, 1, 0.0, 0.0, None, None)
    launched = RunStarted("r", "k", "/m", (), 1, 2, ("TP0", "TP1"), "h", 1, "log", "python", "0.5.23", False)
    run = fold([Event(1, 100.0, launched), Event(2, 101.0, RanksSampled("r", (sample,)))]).run
    assert run is not None
    assert run.stopped
