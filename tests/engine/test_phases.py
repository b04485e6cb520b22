"""Every rank's place in the start, read from the logs of real servers and from the wording of older ones."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.engine.loglines import parse, split_lines
from kimi_agent.engine.phases import Entered, PhaseTracker, Progress
from kimi_agent.model.phases import ORDER, PHASES

LOGS = Path(__file__).parents[1] / "logs"

MODULE = "ModuleNotFoundError: No module named"
EXPECTED: dict[str, tuple[dict[str, str], str | None, str | None]] = {
    "cpu-attn-dp-attribute-error": (
        {"DP0 TP0": "warm-up", "DP1 TP1": "warm-up"}, "DP0 TP0",
        "AttributeError: 'TorchNativeAttnBackend' object has no attribute 'get_cpu_graph_seq_len_fill_value'"),
    "cpu-deepseek-tp1-ready": ({"TP0": "ready"}, None, None),
    "cpu-deepseek-warmup-shape-error": (
        {"TP0": "warm-up"}, "TP0",
        "RuntimeError: Expected size for first two dimensions of batch2 tensor to be: [4, 48] but got: [4, 80]."),
    "cpu-hook-exception": (
        {"TP0": "ready", "TP1": "ready"}, "TP1", "RuntimeError: plugin writer: disk full (simulated)"),
    "cpu-llama-tp2-ready": ({"TP0": "ready"}, None, None),
    "cpu-rope-import-error-tp2": ({}, None, f"{MODULE} 'sgl_kernel'"),
    "cpu-soft-watchdog": ({"TP0": "ready", "TP1": "ready"}, None, None),
    "cpu-two-nodes-rank0": ({"TP0": "ready"}, None, None),
    "cpu-two-nodes-rank1": ({"TP1": "port"}, None, None),
    "h200-kimi-width-graph-capture-ready": ({"TP0": "ready"}, None, None),
    "h200-missing-cutlass": ({"TP0": "load weights"}, "TP0", f"{MODULE} 'cutlass'"),
}  # fmt: skip


def lines_of(name: str) -> list[str]:
    return split_lines((LOGS / f"{name}.log").read_bytes() + b"\n", b"")[0]


def follow(lines: list[str], ranks: tuple[str, ...] = ()) -> tuple[PhaseTracker, list[Entered | Progress]]:
    tracker = PhaseTracker(ranks)
    return tracker, [change for line in lines for change in tracker.feed(parse(line))]


@pytest.mark.parametrize("name", EXPECTED)
def test_real_logs(name: str) -> None:
    phases, rank, raised = EXPECTED[name]
    tracker, _ = follow(lines_of(name))
    assert tracker.phases == phases
    assert tracker.ready == (bool(phases) and set(phases.values()) == {"ready"})
    first = tracker.first_exception
    assert (first and first.rank, first and str(first)) == (rank, raised)
    assert tracker.port_in_use is None
    assert tracker.out_of_memory is None


def test_every_log_file_is_covered() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED)


def test_a_graph_capture_bar_is_followed_though_a_line_is_glued_to_it() -> None:
    _, changes = follow(lines_of("h200-kimi-width-graph-capture-ready"), ("TP0",))
    bars = [(bar.done, bar.total) for bar in changes if isinstance(bar, Progress) and bar.what == "Capturing batches"]
    assert bars == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


def test_each_rank_is_followed_by_its_own_tag() -> None:
    tracker = PhaseTracker(("TP0", "TP1"))
    begin = tracker.feed(parse("[2026-11-29 13:45:04 TP1] Load weight begin. avail mem=21.27 GB"))
    assert begin == [Entered("TP1", "load weights")]
    tracker.feed(parse("[2026-11-29 13:45:05 TP1] Load weight end. elapsed=0.04 s, type=X, avail mem=1 GB"))
    assert tracker.phases == {"TP0": "import", "TP1": "after load"}


def test_the_main_process_speaks_for_all_ranks_once_it_has_waited_for_them() -> None:
    tracker = PhaseTracker(("TP0", "TP1"))
    changes = tracker.feed(parse("[2026-11-29 13:45:29] Engine startup timings (s): load_weight=0.04"))
    assert changes == [Entered("TP0", "port"), Entered("TP1", "port")]


@pytest.mark.parametrize(
    ("message", "phase"),
    [
        ("Init torch distributed begin.", "join ranks"),
        ("Init torch distributed ends. mem usage=1.12 GB", "load weights"),
        ("Init torch distributed ends. elapsed=3.41 s, mem usage=1.12 GB", "load weights"),
        ("Load weight begin. avail mem=94.21 GB", "load weights"),
        ("Load weight end. type=X, dtype=torch.bfloat16, avail mem=21.20 GB", "after load"),
        ("Load weight end. elapsed=412.20 s, type=X, quant=fp8, fmt=e4m3, avail mem=21.20 GB", "after load"),
        ("KV Cache is allocated. #tokens: 190000, K size: 1.10 GB, V size: 1.10 GB", "KV cache"),
        ("SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 190000", "KV cache"),
        ("KV Cache VA upper bound. dtype: torch.bfloat16", "KV cache"),
        ("Memory pool end. avail mem=8.91 GB", "graphs"),
        ("Capture cuda graph begin. This can take up to several minutes.", "graphs"),
        ("Capture draft extend cuda graph begin (step 1). avail mem=8.40 GB", "graphs"),
        ("Capture piecewise CUDA graph begin. avail mem=8.40 GB", "graphs"),
        ("Capture npu graph begin. This can take up to several minutes. avail mem=11.1 GB", "graphs"),
        ("Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1", "graphs"),
        ("max_total_num_tokens=190000, max_prefill_tokens=16384, max_running_requests=2049", "port"),
    ],
)  # fmt: skip
def test_the_wording_of_every_version(message: str, phase: str) -> None:
    tracker = PhaseTracker(("TP0", "TP1"))
    assert tracker.feed(parse(f"[2026-11-29 13:45:04 TP1] {message}")) == [Entered("TP1", phase)]


def test_ranks_that_never_log_are_learned_from_the_servers_own_arguments() -> None:
    tracker, _ = follow(
        [
            "[2026-11-29 13:45:00] server_args={'model_path': 'x', 'tp_size': 2, 'pp_size': 1, 'dp_size': 1}",
            "[2026-11-29 13:45:04 TP0] Init parallel begin.",
        ]
    )
    assert tracker.phases == {"TP0": "join ranks", "TP1": "import"}


def test_a_guess_that_does_not_fit_the_tags_is_dropped() -> None:
    tracker, _ = follow(
        [
            "[2026-11-29 13:45:00] server_args={'tp_size': 2}",
            "[2026-11-29 13:45:04 TP0 EP0] Init parallel begin.",
        ]
    )
    assert tracker.phases == {"TP0 EP0": "join ranks"}


def test_a_peers_error_is_not_blamed_when_another_exception_exists() -> None:
    trace = "Scheduler hit an exception: Traceback (most recent call last):"
    tracker, _ = follow([
        f"[2026-11-29 13:45:00 TP0] {trace}",
        '  File "a.py", line 1, in f',
        "RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:1234",
        f"[2026-11-29 13:45:01 TP1] {trace}",
        '  File "a.py", line 1, in f',
        "ValueError: the cause",
    ], ("TP0", "TP1"))  # fmt: skip
    assert tracker.first_exception is not None
    assert (tracker.first_exception.rank, str(tracker.first_exception)) == ("TP1", "ValueError: the cause")


def test_interleaved_tracebacks_keep_their_ranks() -> None:
    trace = "Scheduler hit an exception: Traceback (most recent call last):"
    tracker, _ = follow([
        f"[2026-11-29 13:45:00 TP1] {trace}",
        f"[2026-11-29 13:45:00 TP0] {trace}",
        '  File "a.py", line 1, in f',
        '  File "a.py", line 1, in f',
        "ValueError: same",
        "ValueError: same",
    ], ("TP0", "TP1"))  # fmt: skip
    assert [raised.rank for raised in tracker.failures.raised] == ["TP1", "TP0"]


@pytest.mark.parametrize(
    ("link", "blamed"),
    [
        ("During handling of the above exception, another exception occurred:", "ValueError: second"),
        ("The above exception was the direct cause of the following exception:", "KeyError: 'first'"),
    ],
)
def test_of_a_chain_the_failure_is_named_and_not_what_was_handled(link: str, blamed: str) -> None:
    tracker, _ = follow([
        "[2026-11-29 13:45:00 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "KeyError: 'first'",
        "",
        link,
        "",
        "Traceback (most recent call last):",
        '  File "a.py", line 2, in f',
        "ValueError: second",
    ], ("TP0", "TP1"))  # fmt: skip
    assert str(tracker.first_exception) == blamed


def test_a_logged_traceback_that_killed_nobody_is_not_blamed() -> None:
    tracker, _ = follow([
        "[2026-11-29 13:45:00 TP0] Failed to execute general plugin: other",
        "Traceback (most recent call last):",
        '  File "/x/plugins/__init__.py", line 136, in load_plugins',
        "RuntimeError: of someone else's plugin",
    ], ("TP0",))  # fmt: skip
    assert tracker.first_exception is None


def test_a_taken_port_and_lost_memory_are_noticed() -> None:
    tracker, _ = follow([
        "[2026-11-29 13:45:00] ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 31999):"
        " address already in use",
        "[2026-11-29 13:45:00 TP1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "[2026-11-29 13:45:00] Rank 1 scheduler died during initialization (exit code: -9).",
    ], ("TP0", "TP1"))  # fmt: skip
    assert tracker.port_in_use is not None
    assert tracker.failures.port == 31999
    assert tracker.failures.memory_rank == "TP1"
    assert tracker.failures.died == (1, -9)


def test_advice_about_memory_is_not_taken_for_its_loss() -> None:
    tracker, _ = follow(["[2026-11-29 13:45:02 TP1] Please set `--max-total-tokens` to avoid the out-of-memory error."])
    assert tracker.out_of_memory is None


LINES = st.sampled_from([line for name in EXPECTED for line in lines_of(name)]) | st.text(max_size=80)


@given(st.lists(LINES, max_size=60), st.sampled_from([(), ("TP0",), ("TP0", "TP1"), ("DP0 TP0", "DP1 TP1")]))
def test_no_rank_ever_goes_back(lines: list[str], ranks: tuple[str, ...]) -> None:
    tracker, changes = follow(lines, ranks)
    place = dict.fromkeys(tracker.phases, 0)
    for change in changes:
        if isinstance(change, Entered) and change.rank in place:
            assert ORDER[change.phase] > place[change.rank]
            place[change.rank] = ORDER[change.phase]
    assert {rank: PHASES[index] for rank, index in place.items()} == tracker.phases
    assert set(ranks) <= set(tracker.phases)
