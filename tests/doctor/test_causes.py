"""The rules on recorded evidence: what this machine cannot show, GPUs above all, put together from public reports."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.doctor.evidence import Evidence, Limits, LogFacts, Seen
from kimi_agent.doctor.facts import Deep, Growing, Kernel, Lock, Machine, Port, Skipped, Stack
from kimi_agent.doctor.rules import RULES
from kimi_agent.doctor.rules.common import bare, in_collective
from kimi_agent.doctor.verdict import diagnose, status
from kimi_agent.engine.failures import Raised
from kimi_agent.model.events import GpuSample, RankSample, RunExited, ThroughputSampled
from kimi_agent.model.phases import PHASES
from kimi_agent.model.state import RankState

RECORDED = sorted((Path(__file__).parent / "evidence").glob("*.json"))
KINDS = {
    "none", "dead_rank", "hardware", "compiling", "downloading", "lock_wait", "comm_spin", "straggler", "deadlock",
    "warmup", "storage", "port_in_use", "proxy", "out_of_memory", "exception", "capture_patch", "plugin_missing",
    "unknown",
}  # fmt: skip
SOURCES = ("log: ", "proc: ", "nvml: ", "stack: ", "stack TP", "stack main", "stack detokenizer", "port: ", "plugin: ",
           "lock: ", "kernel: ", "cgroup: ", "disk: ", "machine: ", "http: ", "download: ")  # fmt: skip
ORDER = (
    "out_of_memory", "disk_full", "port_in_use", "capture_patch", "exception", "dead_rank", "hardware", "stopped",
    "watchdog", "ended", "compiling", "downloading", "storage", "log_full", "plugin_missing", "lock_wait", "comm_spin",
    "straggler", "deadlock", "proxy", "warm_up", "heartbeat", "detokenizer", "silent",
)  # fmt: skip
NOW = 2000.0


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_evidence_gets_its_cause(path: Path) -> None:
    recorded = json.loads(path.read_text())
    evidence = msgspec.convert(recorded["evidence"], Evidence)
    verdict = diagnose(evidence)
    word, _ = status(evidence, verdict)
    expect = recorded["expect"]
    assert (word, verdict.kind, verdict.rank) == (expect["status"], expect["kind"], expect["rank"])
    assert verdict.advice
    assert len(verdict.evidence) >= 1


def told(name: str) -> str:
    """All that is told of a recorded case, as one text."""
    path = next(path for path in RECORDED if path.stem == name)
    verdict = diagnose(msgspec.convert(json.loads(path.read_text())["evidence"], Evidence))
    return "\n".join([verdict.summary, *verdict.evidence, *verdict.ruled_out, *verdict.advice])


def test_a_spin_is_told_with_power_topology_and_the_two_switches() -> None:
    text = told("spin-in-the-first-collective")
    assert "nvml: GPU 0 100 % busy at 119 of 600 W" in text
    assert "ACS redirect on at 0000:00:01.1 and 0000:40:01.1" in text
    assert "NCCL_P2P_DISABLE=1" in text
    assert "--disable-custom-all-reduce" in text
    assert "ACS not checked: PCI configuration space needs root" in told("spin-while-graphs-are-captured")


def test_a_download_has_an_end_and_a_barrier_a_countdown() -> None:
    assert "12:56 to go" in told("weights-on-their-way")
    assert "ends the server in 4 min" in told("one-rank-late-in-loading")
    assert "TP3 (pid 4103)" in told("one-rank-late-in-loading")


def test_a_lock_names_its_file_and_its_holder_or_that_it_has_none() -> None:
    assert "rm /root/.cache/torch_extensions/py311_cu128/marlin/lock" in told("torch-baton-left-behind")
    held = told("flashinfer-lock-held")
    assert "pid 812 (python3)" in held
    assert "do not remove the lock while it lives" in held


def test_a_verdict_says_what_it_is_not_and_why() -> None:
    text = told("one-rank-in-the-autotuner")
    assert "a crash (8 of 8 ranks alive)" in text
    assert "compilation (no compiler runs below any rank)" in text
    assert "the OOM killer (its count stands still)" in text


def test_frames_are_known_with_and_without_their_class() -> None:
    for name in ("monitored_barrier", "GroupCoordinator.all_reduce", "outer.<locals>.inner.<locals>.broadcast_pyobj"):
        assert in_collective(Stack("TP0", "py-spy", 0.0, (f"{name} (torch/x.py:1)", "f (y.py:2)")))
    assert not in_collective(Stack("TP0", "py-spy", 0.0, ("all_reduce_later (x.py:1)", "<module> (y.py:2)")))
    assert bare("FileBaton.wait (torch/utils/file_baton.py:50)") == "wait (torch/utils/file_baton.py:50)"
    assert bare("<module> (a.b.py:1)") == "<module> (a.b.py:1)"


def test_the_rules_are_asked_in_their_order() -> None:
    assert tuple(rule.__name__ for rule in RULES) == ORDER


AGES = st.none() | st.floats(0, 1e4)
TEXT = st.text(max_size=12)
RANKS = st.sampled_from(["TP0", "TP1", "main", "detokenizer", "x"])
STACKS = st.lists(
    st.builds(
        Stack, rank=RANKS, source=st.just("py-spy"), time=st.just(NOW),
        frames=st.lists(st.sampled_from([
            "monitored_barrier (torch/x.py:1)", "wait (torch/utils/file_baton.py:53)", "sleep (a.py:1)", "", "odd",
            "_compile_deep_gemm_one_type_all (b.py:1)", "acquire (filelock/_api.py:1)",
        ]), max_size=3).map(tuple),
    ), max_size=4,
).map(tuple)  # fmt: skip
LOCKS = st.lists(
    st.builds(Lock, path=TEXT, age=st.floats(0, 1e6), holder=st.none() | TEXT, own=st.booleans(),
              waiters=st.lists(RANKS, max_size=2).map(tuple)), max_size=2,
).map(tuple)  # fmt: skip
GROWING = st.lists(
    st.builds(Growing, path=TEXT, size=st.integers(0, 10), rate=st.floats(0.1, 1e9), total=st.none() | st.just(100),
              present=st.none() | st.just(10)), max_size=2,
).map(tuple)  # fmt: skip
DEEP = st.builds(
    Deep, time=st.floats(0, NOW), first=STACKS, second=STACKS, locks=LOCKS, growing=GROWING,
    ports=st.lists(st.builds(Port, what=st.sampled_from(["HTTP", "--dist-init-addr"]), port=st.just(1),
                             holder=st.none() | TEXT, own=st.booleans()), max_size=2).map(tuple),
    machine=st.none() | st.builds(Machine, iommu_flags=st.just(()), iommu_groups=st.just(0),
                                  acs_redirect=st.none() | st.just(()) | st.just(("a",))),
    skipped=st.lists(st.builds(Skipped, what=st.sampled_from(["stack", "lock", "stack of TP0"]), why=TEXT),
                     max_size=2).map(tuple),
)  # fmt: skip
SEEN = st.builds(
    Seen,
    gpus=st.lists(st.builds(
        GpuSample, index=st.integers(0, 3), name=st.just("g"), memory_used=st.none(), memory_total=st.none(),
        utilisation=st.none() | st.integers(0, 100), power=st.none() | st.floats(0, 700),
        power_limit=st.none() | st.floats(0, 700), temperature=st.none(), clock=st.none(), ecc_errors=st.none(),
    ), max_size=2).map(tuple),
    no_gpu=st.none() | st.sampled_from(["no driver", "NVML did not answer in 5 s"]),
    kernel=st.builds(Kernel, lines=st.sampled_from([(), ("NVRM: Xid (PCI:0000:41:00): 79, pid=3",), ("oom-kill:x",)]),
                     oom_kills=st.none() | st.integers(0, 2), skipped=st.none() | TEXT),
    deep=st.none() | DEEP,
    proxy=st.none() | st.just(("http_proxy", "p:1")),
    port_open=st.none() | st.booleans(),
    plugin_pids=st.none() | st.just(frozenset({1})),
)  # fmt: skip
FACTS = st.builds(
    LogFacts, failed=st.none() | TEXT, warm_up_error=st.none() | TEXT, watchdog_line=st.none() | TEXT,
    died=st.none() | st.just("TP1"), died_code=st.none(), reached=st.booleans(), follower=st.booleans(),
    port_line=st.none() | TEXT, memory_line=st.none() | TEXT, memory_rank=st.none(), watchdog_rank=st.none(),
    exception=st.none() | st.builds(Raised, rank=st.none() | RANKS, type=st.just("OSError"),
                                    message=st.sampled_from(["bad", "No space left on device"]), time=st.none(),
                                    fatal=st.booleans(), effect=st.booleans()),
)  # fmt: skip
SAMPLES = st.lists(
    st.builds(
        RankSample, rank=RANKS, pid=st.integers(1, 9), state=st.sampled_from(list("RSDTZX")),
        cpu=st.none() | st.floats(0, 900), rss=st.none(), major_faults=st.none() | st.floats(0, 1e6),
        read_rate=st.none() | st.floats(0, 1e9), wchan=st.none() | TEXT, gpu=st.none() | st.integers(0, 3),
        compiling=st.sampled_from([(), ("nvcc",)]),
    ), max_size=4,
).map(tuple)  # fmt: skip
EVIDENCE = st.builds(
    Evidence, now=st.just(NOW),
    ranks=st.lists(st.sampled_from(PHASES), max_size=4).map(
        lambda phases: tuple(RankState(f"TP{index}", phase, NOW - 50) for index, phase in enumerate(phases))
    ),
    silent=AGES, facts=FACTS, live=st.booleans(), samples=SAMPLES, dead=st.sampled_from([(), ("TP0",)]),
    throughput=st.none() | st.builds(ThroughputSampled, run=st.just("r"), prefill_rate=st.none(),
                                     decode_rate=st.none(), running=st.none(), waiting=st.none(), tokens_used=st.none(),
                                     token_capacity=st.none(), engine_age=AGES, source=TEXT),
    throughput_age=AGES, heartbeat=st.none() | st.floats(0, NOW),
    exited=st.none() | st.builds(RunExited, run=st.just("r"), code=st.sampled_from([None, 0, -9]), asked=st.booleans()),
    capture=st.booleans(), heartbeats=st.sampled_from([frozenset(), frozenset({"TP0"})]), seen=SEEN,
    absent=st.sampled_from([(), ("TP4",)]), quiet_since=st.none() | st.floats(0, NOW), stopping=st.booleans(),
    limits=st.just(Limits()), held_since=st.sampled_from([(), (("detokenizer", NOW - 90),)]),
)  # fmt: skip


@given(EVIDENCE)
def test_every_rule_is_total_and_every_verdict_has_evidence_with_its_source(evidence: Evidence) -> None:
    spoken = [verdict for rule in RULES if (verdict := rule(evidence)) is not None]
    for verdict in spoken:
        assert verdict.kind in KINDS - {"none"}
        assert verdict.summary
        assert 0 < verdict.confidence < 1
        assert verdict.evidence
        assert all(line.startswith(SOURCES) for line in verdict.evidence)
    verdict = diagnose(evidence)
    assert status(evidence, verdict)[1]
    if not evidence.stopping:
        assert verdict == spoken[0] if spoken else verdict.kind == "none"


@given(EVIDENCE)
def test_evidence_survives_its_record(evidence: Evidence) -> None:
    assert msgspec.json.decode(msgspec.json.encode(evidence), type=Evidence) == evidence
