"""The doctor on evidence of a live host: each cause by its name, and no word that says more than is known."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.doctor.evidence import Evidence, LogFacts, Seen, evidence_of
from kimi_agent.doctor.facts import Deep, DiskWait, Stack
from kimi_agent.doctor.verdict import diagnose, status
from kimi_agent.engine.failures import Raised
from kimi_agent.engine.loglines import parse
from kimi_agent.engine.phases import PhaseTracker
from kimi_agent.model import events as ev
from kimi_agent.model.events import RankSample, ThroughputSampled
from kimi_agent.model.phases import PHASES
from kimi_agent.model.reduce import fold, reduce
from kimi_agent.model.state import RankState, RunState
from kimi_agent.wire.codec import decode_event

NOW = 1000.0
WAITS_FOR_COMPILER = ("_PollLikeSelector.select (selectors.py:415)", "Popen._communicate (subprocess.py:2115)")


def ranks(*phases: str, since: float = NOW) -> tuple[RankState, ...]:
    return tuple(RankState(f"TP{index}", phase, since) for index, phase in enumerate(phases))


def sample(rank: str, state: str = "S", cpu: float | None = 1.0, **more: object) -> RankSample:
    base = RankSample(rank, 40 + int(rank[2:]), state, cpu, 1, 0.0, 0.0, "futex_wait_queue", None)
    return replace(base, **more)  # type: ignore[arg-type]


def throughput(age: float | None, source: str = "loads") -> ThroughputSampled:
    return ThroughputSampled("r", 0.0, 0.0, 0, 0, 0, 1, age, source)


def serving(heard: float | None = 1.0, **more: object) -> Evidence:
    base = Evidence(
        NOW, ranks("ready", "ready"), 500.0, samples=(sample("TP0"), sample("TP1")),
        throughput=throughput(heard), throughput_age=0.0, heartbeat=None if heard is None else NOW - heard,
    )  # fmt: skip
    return replace(base, **more)  # type: ignore[arg-type]


def starting(*phases: str, silent: float = 0.0, **more: object) -> Evidence:
    return replace(Evidence(NOW, ranks(*phases, since=NOW - silent), silent), **more)  # type: ignore[arg-type]


def judged(evidence: Evidence) -> tuple[str, str, str | None]:
    verdict = diagnose(evidence)
    return status(evidence, verdict)[0], verdict.kind, verdict.rank


def test_all_is_well() -> None:
    assert judged(serving()) == ("READY", "none", None)
    assert judged(starting("import", "import", silent=30)) == ("STARTING", "none", None)


def test_ready_needs_a_fresh_heartbeat_and_never_just_the_servers_word() -> None:
    unheard = serving(None, throughput=None, throughput_age=None)
    assert judged(unheard) == ("STARTING", "none", None)
    assert judged(serving(11.0)) == ("HUNG", "unknown", None)
    silent_http = serving(None, throughput=throughput(None, "no answer in 2 s"), heartbeat=NOW - 30)
    assert judged(silent_http) == ("HUNG", "unknown", None)
    assert "port: no answer in 2 s" in diagnose(silent_http).evidence


def test_ready_with_capture_needs_every_ranks_plugin() -> None:
    late = serving(capture=True, heartbeats=frozenset({"TP0"}))
    assert judged(late)[0] == "STARTING"
    assert judged(replace(late, now=NOW + 6, heartbeat=NOW + 5)) == ("FAILED", "plugin_missing", "TP1")
    assert judged(replace(late, heartbeats=frozenset({"TP0", "TP1"})))[0] == "READY"


def test_a_plugin_that_was_not_loaded_is_missed_right_after_the_weights() -> None:
    loaded = starting("after load", "after load", silent=6, capture=True, samples=(sample("TP0"), sample("TP1")))
    assert judged(loaded)[1] == "none"
    assert judged(replace(loaded, seen=Seen(plugin_pids=frozenset({40, 41}))))[1] == "none"
    assert judged(replace(loaded, seen=Seen(plugin_pids=frozenset({40})))) == ("FAILED", "plugin_missing", "TP1")


@pytest.mark.parametrize("evidence", [starting("after load", "load weights"), serving()])
def test_a_stopped_rank_is_named_at_once(evidence: Evidence) -> None:
    stopped = replace(evidence, samples=(sample("TP0"), sample("TP1", "T")))
    assert judged(stopped) == ("HUNG", "straggler", "TP1")
    assert diagnose(stopped).evidence[0].startswith("proc: TP1 (pid 41) state T")


def test_a_rank_that_is_stopped_for_a_moment_only_is_not_told() -> None:
    state = run_of(ev.RanksSampled("r", (sample("TP0"), sample("TP1", "T"))))
    tracker = PhaseTracker(("TP0", "TP1"))
    first = evidence_of(state, tracker, NOW)
    assert diagnose(first).kind == "none"
    assert diagnose(evidence_of(state, tracker, NOW + 1, before=first)).rank == "TP1"


def test_a_dead_rank_is_blamed_and_not_the_survivor_that_lost_it() -> None:
    effect = Raised("TP0", "RuntimeError", "Connection closed by peer", NOW, fatal=True, effect=True)
    dead = serving(dead=("TP1", "TP0"), facts=LogFacts(exception=effect, failed="SIGQUIT received"))
    assert judged(dead) == ("FAILED", "dead_rank", "TP1")
    assert judged(replace(dead, dead=("TP0", "TP1"))) == ("FAILED", "dead_rank", "TP1")  # both within one look


def test_a_ranks_own_exception_explains_its_death() -> None:
    cause = Raised("TP0", "ValueError", "bad", NOW, fatal=True, effect=False)
    assert judged(serving(dead=("TP1",), facts=LogFacts(exception=cause))) == ("FAILED", "exception", "TP0")


def test_memory_and_port_come_before_the_exception_that_they_cause() -> None:
    cause = Raised("TP1", "OutOfMemoryError", "CUDA out of memory", NOW, fatal=True, effect=False)
    facts = LogFacts(exception=cause, failed="x", memory_line="torch.OutOfMemoryError", memory_rank="TP1")
    assert judged(starting("load weights", "load weights", facts=facts)) == ("FAILED", "out_of_memory", "TP1")
    taken = LogFacts(port_line="[Errno 98] address already in use")
    assert judged(starting("port", "port", facts=taken)) == ("FAILED", "port_in_use", None)


def test_a_log_that_cannot_be_written_explains_what_it_cannot_say_and_nothing_else() -> None:
    full = Seen(log_full="/home/me/kimi-agent/runs/r")
    assert judged(serving(dead=("TP1",), seen=full)) == ("FAILED", "storage", "TP1")
    assert judged(starting("import", "import", silent=900, seen=full)) == ("HUNG", "storage", None)
    assert judged(starting("import", "import", silent=1, seen=full)) == ("STARTING", "none", None)
    assert judged(serving(seen=full)) == ("READY", "none", None)
    cause = Raised("TP0", "ValueError", "bad", NOW, fatal=True, effect=False)
    assert judged(serving(dead=("TP1",), facts=LogFacts(exception=cause), seen=full))[1] == "exception"
    compilers = (sample("TP0", compiling=("cicc", "nvcc")), sample("TP1"))
    assert judged(starting("graphs", "graphs", silent=200, samples=compilers, seen=full))[1] == "compiling"


def test_compiling_and_reading_are_slow_and_not_hung() -> None:
    compilers = (sample("TP0", compiling=("cicc", "nvcc")), sample("TP1"))
    assert judged(starting("graphs", "graphs", silent=200, samples=compilers)) == ("SLOW", "compiling", "TP0")
    assert judged(serving(60.0, samples=compilers)) == ("SLOW", "compiling", "TP0")
    assert judged(serving(samples=compilers)) == ("READY", "none", None)
    reading = (sample("TP0", "D", read_rate=5e8), sample("TP1"))
    assert judged(starting("load weights", "load weights", silent=60, samples=reading)) == ("SLOW", "storage", "TP0")


@pytest.mark.parametrize(
    ("given_", "rate", "word", "words"),
    [
        (40_000.0, 0.0, "SLOW", "weights are being read at 0.04 MB/s: slow, not hung"),
        (0.0, 524_288.0, "SLOW", "weights are being read at 0.5 MB/s: slow, not hung"),
        (0.0, 0.0, "HUNG", "TP0 waits for a disk that does not answer"),
        (None, 0.0, "HUNG", "TP0 waits for a disk that does not answer"),
    ],
)  # fmt: skip
def test_a_loader_s_thread_in_a_read_is_no_deadlock_of_the_rank_that_waits_for_it(
    given_: float | None, rate: float, word: str, words: str
) -> None:
    stack = Stack("TP0", "py-spy", NOW - 10, ("wait (threading.py:327)", "weights_iterator (weight_utils.py:1)"))
    wait = DiskWait("TP0", "ThreadPoolExecu", "folio_wait_bit_common")
    deep = Deep(NOW - 10, first=(stack,), second=(stack,), waits=(wait,), given=given_)
    reading = (sample("TP0", read_rate=rate), sample("TP1"))
    evidence = starting("load weights", "load weights", silent=60, samples=reading, seen=Seen(deep=deep))
    assert judged(evidence) == (word, "storage", "TP0")
    assert diagnose(evidence).summary == words
    assert not any(text.startswith("storage") for text in diagnose(evidence).ruled_out)
    assert judged(replace(evidence, seen=Seen(deep=replace(deep, waits=()))))[1] != "storage"


def test_an_import_that_computes_is_given_time_and_one_that_does_not_is_hung() -> None:
    main = replace(sample("TP0"), rank="main", cpu=180.0)
    assert judged(starting("import", "import", silent=100, samples=(main,))) == ("STARTING", "none", None)
    assert judged(starting("import", "import", silent=301, samples=(main,))) == ("HUNG", "unknown", None)
    resting = starting("import", "import", silent=100, samples=(replace(main, cpu=0.0),))
    assert judged(resting)[0] == "HUNG"
    assert judged(replace(resting, quiet_since=NOW - 25))[0] == "STARTING"
    assert judged(replace(resting, quiet_since=NOW - 50))[0] == "HUNG"
    assert judged(replace(resting, seen=Seen(host_cpu=99.0)))[0] == "STARTING"


def test_a_straggler_is_named_with_the_barriers_countdown() -> None:
    late = starting("after load", "load weights", silent=40, samples=(sample("TP0"), sample("TP1")))
    assert judged(late) == ("HUNG", "straggler", "TP1")
    assert any("ends the server in 7 min" in line for line in diagnose(late).evidence)
    assert judged(starting("after load", "load weights", silent=20))[1] == "none"


def test_a_busy_straggler_is_given_time_but_not_for_ever() -> None:
    busy = starting("after load", "load weights", silent=40, samples=(sample("TP0"), sample("TP1", "R", cpu=99.0)))
    assert judged(busy) == ("SLOW", "straggler", "TP1")
    assert judged(replace(busy, silent=301.0)) == ("HUNG", "straggler", "TP1")


def test_only_the_first_rank_says_that_its_graphs_are_done_so_the_others_are_not_behind() -> None:
    assert judged(starting("port", "graphs", silent=40)) == ("STARTING", "none", None)
    assert judged(starting("port", "graphs", silent=60)) == ("HUNG", "unknown", None)


def test_a_warm_up_that_does_not_come_back() -> None:
    assert judged(starting("warm-up", "warm-up", silent=20))[1] == "none"
    assert judged(starting("warm-up", "warm-up", silent=40)) == ("HUNG", "warmup", None)


def test_what_was_not_looked_at_is_said() -> None:
    verdict = diagnose(starting("graphs", "graphs", silent=60))
    assert verdict.kind == "unknown"
    assert {"proc: not checked: no process seen", "stack: not checked yet"} <= set(verdict.evidence)


def test_an_exit_is_a_failure_unless_it_was_asked_for() -> None:
    killed = serving(exited=ev.RunExited("r", -9, asked=False))
    assert judged(killed) == ("FAILED", "unknown", None)
    assert any("no proof of the OOM killer" in line for line in diagnose(killed).advice)
    assert judged(serving(exited=ev.RunExited("r", 0, asked=True), stopping=True)) == ("IDLE", "none", None)


def run_of(*bodies: ev.Body) -> RunState:
    started = ev.RunStarted("r", "n", "m", (), 9, 2, ("TP0", "TP1"), "h", 1, "l", "p", None, capture=False)
    state = fold(ev.Event(seq, NOW, body) for seq, body in enumerate((started, *bodies), 1))
    assert state.run is not None
    return state.run


def test_evidence_keeps_the_order_in_which_ranks_vanished_and_the_last_heartbeat() -> None:
    tracker = PhaseTracker(("TP0", "TP1"))
    one = run_of(ev.RanksSampled("r", (sample("TP0"), sample("TP1", "Z"))), throughput(2.0))
    first = evidence_of(one, tracker, NOW)
    assert (first.dead, first.heartbeat) == (("TP1",), NOW - 2)
    both = run_of(ev.RanksSampled("r", (sample("TP0", "X"), sample("TP1", "X"))), throughput(None))
    second = evidence_of(both, tracker, NOW + 1, before=first)
    assert (second.dead, second.stale) == (("TP1", "TP0"), 3.0)
    assert diagnose(second).rank == "TP1"


def test_of_ranks_that_vanished_between_two_looks_the_first_is_the_one_that_the_log_names() -> None:
    gone, tracker = run_of(ev.RanksSampled("r", (sample("TP0", "X"), sample("TP1", "X")))), PhaseTracker(("TP0", "TP1"))
    assert evidence_of(gone, tracker, NOW).dead == ("TP0", "TP1")
    words = "Subprocess scheduler_1 (pid=41) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
    tracker.feed(parse(f"[2026-11-30 22:00:00] {words}"))
    assert evidence_of(gone, tracker, NOW).dead == ("TP1", "TP0")


SAMPLES = st.builds(
    RankSample, rank=st.sampled_from(["TP0", "TP1", "main", "x"]), pid=st.integers(1, 9),
    state=st.sampled_from(list("RSDTZX")), cpu=st.none() | st.floats(0, 900), rss=st.none(),
    major_faults=st.none() | st.floats(0, 1e6), read_rate=st.none() | st.floats(0, 1e9), wchan=st.none() | st.text(),
    gpu=st.none(), compiling=st.sampled_from([(), ("nvcc",)]),
)  # fmt: skip
AGES = st.none() | st.floats(0, 1e4)
EXITS = st.none() | st.builds(ev.RunExited, run=st.just("r"), code=st.sampled_from([None, 0, -9]), asked=st.booleans())
EVIDENCE = st.builds(
    Evidence,
    now=st.just(NOW),
    ranks=st.lists(st.sampled_from(PHASES), max_size=4).map(lambda phases: ranks(*phases)),
    silent=AGES,
    facts=st.builds(LogFacts, failed=st.none() | st.text(), warm_up_error=st.none() | st.text(),
                    watchdog_line=st.none() | st.text(), died=st.none() | st.just("TP1"), died_code=st.none()),
    live=st.booleans(),
    samples=st.lists(SAMPLES, max_size=4).map(tuple),
    dead=st.sampled_from([(), ("TP0",)]),
    throughput=st.none() | AGES.map(throughput),
    throughput_age=AGES,
    heartbeat=st.none() | st.floats(0, NOW),
    exited=EXITS,
    capture=st.booleans(),
    stopping=st.booleans(),
)  # fmt: skip


@given(EVIDENCE)
def test_any_evidence_gets_a_verdict_with_sourced_lines_and_ready_is_never_a_guess(evidence: Evidence) -> None:
    verdict = diagnose(evidence)
    word, reason = status(evidence, verdict)
    assert reason
    assert 0 <= verdict.confidence <= 1
    sources = ("log: ", "proc: ", "nvml: ", "stack: ", "port: ", "plugin: ", "kernel: ", "cgroup: ", "lock: ", "disk: ")
    assert all(line.startswith(sources) for line in verdict.evidence)
    assert verdict.kind == "none" or verdict.evidence
    if word == "READY":
        assert verdict.kind == "none"
        assert evidence.ready
        assert not evidence.live or (evidence.stale is not None and evidence.stale <= 10)


def builds(until: int, stacks_at: float, ends: int) -> Iterator[tuple[int, str]]:
    """What a look a second says of ranks that have kernels compiled one after the other, with pauses, then stand still.

    Second by second the verdict's kind; at `stacks_at` and later there are two equal looks at a wait for a compiler.
    """
    stacks = tuple(Stack(rank, "py-spy", NOW + stacks_at, WAITS_FOR_COMPILER) for rank in ("TP0", "TP1"))
    before, tracker = None, PhaseTracker(("TP0", "TP1"))
    entered = (ev.PhaseEntered("r", "TP0", "graphs"), ev.PhaseEntered("r", "TP1", "graphs"))
    for second in range(until):
        tools = ("ninja", "nvcc") if second < ends and second % 20 < 14 else ()
        body = ev.RanksSampled("r", (sample("TP0", compiling=tools), sample("TP1", compiling=tools)))
        deep = Deep(NOW + stacks_at, first=stacks, second=stacks) if second > stacks_at + 6 else None
        run = run_of(*entered, body)
        before = evidence_of(run, tracker, NOW + second, before=before, seen=Seen(deep=deep))
        yield second, diagnose(before).kind


def test_a_pause_between_two_compilers_is_no_deadlock() -> None:
    """As seen on an H200: five kernels one after the other, and a look at the ranks between two of them."""
    kinds = list(builds(140, stacks_at=55.0, ends=120))
    assert {kind for second, kind in kinds if second <= 15} == {"none"}
    assert {kind for second, kind in kinds if 15 < second < 120} == {"compiling"}


def test_the_first_start_of_an_h200_is_never_called_hung() -> None:
    """Its ranks, phases and bars as an agent recorded them, with equal looks between two compilers, as it had them."""
    stacks = (Stack("TP0", "py-spy", 103.5, WAITS_FOR_COMPILER),)
    started = ev.RunStarted("r", "n", "m", (), 9, 1, ("TP0",), "h", 1, "l", "p", None, capture=False)
    state, before = fold([ev.Event(1, 0.0, started)]), None
    said: list[tuple[str, str]] = []
    for line in (Path(__file__).parent / "starts" / "h200-first-start.ndjson").read_bytes().splitlines():
        event = decode_event(line)
        state = reduce(state, event)
        if not isinstance(event.body, ev.RanksSampled) or state.run is None:
            continue
        deep = Deep(103.5, first=stacks, second=stacks) if event.time > 110 else None
        before = evidence_of(state.run, PhaseTracker(("TP0",)), event.time, before=before, seen=Seen(deep=deep))
        if (word := judged(before)[:2]) not in said[-1:]:
            said.append(word)
    well, slow = ("STARTING", "none"), ("SLOW", "compiling")
    assert said == [well, slow, well, slow, well]


def test_a_rank_that_stands_still_after_its_compilers_is_named_within_a_minute() -> None:
    kinds = list(builds(140, stacks_at=100.0, ends=80))
    assert {kind for second, kind in kinds if 85 <= second < 103} <= {"none", "compiling"}
    assert "deadlock" in {kind for second, kind in kinds if second < 74 + 60}


def held(detokenizer: RankSample, frame: str, before: Evidence | None, now: float) -> Evidence:
    """A ready server whose scheduler is heard, with two equal looks at its detokenizer, made 15 s ago."""
    bodies = (
        ev.PhaseEntered("r", "TP0", "ready"), ev.PhaseEntered("r", "TP1", "ready"),
        ev.RanksSampled("r", (sample("TP0"), sample("TP1"), detokenizer)),
    )  # fmt: skip
    stack = Stack("detokenizer", "py-spy", now - 15, (frame, "event_loop (detokenizer_manager.py:189)"))
    seen = Seen(deep=Deep(now - 15, first=(stack,), second=(stack,)))
    found = evidence_of(run_of(*bodies), PhaseTracker(("TP0", "TP1")), now, before=before, seen=seen)
    return replace(found, throughput=throughput(1.0), throughput_age=0.0, heartbeat=now - 1)


@pytest.mark.parametrize(
    ("wchan", "cpu", "frame", "kind"),
    [
        ("hrtimer_nanosleep", 0.0, "feed (watchdog.py:81)", "deadlock"),
        ("futex_wait_queue", 0.0, "acquire (queue.py:3)", "deadlock"),
        ("do_sys_poll", 0.0, "feed (watchdog.py:81)", "none"),
        ("futex_wait_queue", 80.0, "decode (tokenizers.py:9)", "none"),
        ("hrtimer_nanosleep", 0.0, "sock_recv (serialization.py:4)", "none"),
        (None, 0.0, "feed (watchdog.py:81)", "none"),
    ],
)
def test_a_detokenizer_that_is_held_up_is_named_though_the_scheduler_moves(
    wchan: str | None, cpu: float, frame: str, kind: str
) -> None:
    process = RankSample("detokenizer", 49, "S", cpu, 1, 0.0, 0.0, wchan, None)
    first = held(process, frame, None, NOW)
    assert judged(first)[1] == "none", "it may stand for a moment"
    later = held(process, frame, first, NOW + 31)
    assert judged(later)[:2] == (("HUNG", kind) if kind == "deadlock" else ("READY", kind))
    if kind == "deadlock":
        assert "the detokenizer stands in" in diagnose(later).summary
    moved = held(replace(process, wchan="do_sys_poll"), frame, later, NOW + 32)
    assert judged(moved)[1] == "none"
