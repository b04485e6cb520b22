"""A log alone: the clean ones are called clean, and the others by their cause."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.doctor.logfile import LogDiagnosis, diagnose_log
from kimi_agent.engine.loglines import split_lines

from .texts import CASES, undated

LOGS = Path(__file__).parents[1] / "logs"

EXPECTED = {
    "cpu-attn-dp-attribute-error": ("FAILED", "warm-up", "exception", "DP0 TP0", "TorchNativeAttnBackend"),
    "cpu-deepseek-tp1-ready": ("READY", "ready", "none", None, ""),
    "cpu-deepseek-warmup-shape-error": ("FAILED", "warm-up", "exception", "TP0", "[4, 48] but got: [4, 80]"),
    "cpu-hook-exception": ("FAILED", "ready", "exception", "TP1", "disk full"),
    "cpu-llama-tp2-ready": ("READY", "ready", "none", None, ""),
    "cpu-rope-import-error-tp2": ("FAILED", "import", "exception", None, "sgl_kernel"),
    "cpu-soft-watchdog": ("READY", "ready", "none", None, ""),
    "cpu-two-nodes-rank0": ("READY", "ready", "none", None, ""),
    "cpu-two-nodes-rank1": ("STARTING", "port", "none", None, ""),
    "h200-kimi-width-graph-capture-ready": ("READY", "ready", "none", None, ""),
    "h200-missing-cutlass": ("FAILED", "load weights", "exception", "TP0", "No module named 'cutlass'"),
}


def lines_of(name: str) -> list[str]:
    return split_lines((LOGS / f"{name}.log").read_bytes() + b"\n", b"")[0]


def diagnose(lines: list[str], now: float | None = None) -> LogDiagnosis:
    return diagnose_log(["".join(f"{line}\n" for line in lines).encode()], now)


def cut_at(name: str, text: str) -> list[str]:
    """The log up to the first line that holds a text, that line left out: what a hang there looks like."""
    lines = lines_of(name)
    return lines[: next(index for index, line in enumerate(lines) if text in line)]


def test_every_log_file_is_covered() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_real_logs(name: str) -> None:
    status, phase, kind, rank, words = EXPECTED[name]
    found = diagnose(lines_of(name))
    assert (found.status, found.phase, found.verdict.kind, found.verdict.rank) == (status, phase, kind, rank)
    assert words in found.verdict.summary or kind == "none"
    assert all(line.startswith("log: ") for line in found.verdict.evidence)


@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if expected[2] == "none"])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9])
def test_the_beginning_of_a_good_start_is_never_called_hung_or_failed(name: str, share: float) -> None:
    lines = lines_of(name)
    found = diagnose(lines[: int(len(lines) * share)])
    assert found.status in ("STARTING", "READY")
    assert found.verdict.kind in ("none", "straggler")


def hang(name: str, text: str, silence: float) -> LogDiagnosis:
    lines = cut_at(name, text)
    quiet = diagnose(lines)
    end = max(rank.since for rank in quiet.ranks)
    return diagnose(lines, now=end + silence)


def test_a_laggard_is_named_from_the_text() -> None:
    found = hang("cpu-soft-watchdog", "TP0] Load weight begin", 70)
    assert (found.status, found.phase) == ("HUNG", "load weights")
    assert (found.verdict.kind, found.verdict.rank) == ("straggler", "TP0")
    assert any("barrier" in line for line in found.verdict.evidence)
    assert found.silent_s == pytest.approx(70, abs=2)


def test_a_silence_without_a_laggard_is_unknown_and_says_what_was_not_looked_at() -> None:
    found = hang("h200-kimi-width-graph-capture-ready", "Capture target decode CUDA graph begin", 100)
    assert (found.status, found.verdict.kind) == ("HUNG", "unknown")
    assert "proc: not checked: a log alone" in found.verdict.evidence


def test_a_server_whose_peer_died_is_not_blamed_itself() -> None:
    lines = [
        "[2026-11-29 13:00:00] server_args={'tp_size': 2, 'dp_size': 1}",
        "[2026-11-29 13:00:00 TP0] Init parallel begin.",
        "[2026-11-29 13:00:00 TP1] Init parallel begin.",
        "[2026-11-29 13:00:09 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "RuntimeError: [/pytorch/third_party/gloo] Connection closed by peer [127.0.0.1]:1234",
    ]
    found = diagnose(lines)
    assert (found.status, found.verdict.kind, found.verdict.rank) == ("FAILED", "dead_rank", None)
    named = diagnose([*lines, "[2026-11-29 13:00:10] Rank 1 scheduler died during initialization (exit code: -9)."])
    assert (named.verdict.kind, named.verdict.rank) == ("dead_rank", "TP1")
    assert any("no proof of the OOM killer" in line for line in named.verdict.advice)


@given(st.lists(st.text(max_size=60) | st.sampled_from(lines_of("cpu-hook-exception")), max_size=80))
def test_any_text_gets_a_verdict(lines: list[str]) -> None:
    found = diagnose(lines)
    assert found.status in ("STARTING", "READY", "SLOW", "HUNG", "FAILED")
    assert diagnose([]).verdict.kind == "none"


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("models/deepseek_v2.py", "ValueError: too many values to unpack (expected 2)"),
        ("models/kimi_k25.py", "ValueError: not enough values to unpack (expected 2, got 1)"),
        ("layers/aux_hidden_states.py", "RuntimeError: captured 1 of 3 aux hidden states"),
    ],
)
def test_a_model_that_returns_no_states_is_told_from_any_other_exception(file: str, error: str) -> None:
    name = "cpu-deepseek-warmup-shape-error"
    lines = lines_of(name)
    end = next(number for number, line in enumerate(lines) if line.startswith("RuntimeError"))
    frame = f'  File "/sgl/srt/{file}", line 3418, in forward'
    found = diagnose([*lines[: end - 2], frame, "    hidden_states, aux = hidden_states", error, *lines[end + 1 :]])
    assert (found.status, found.verdict.kind, found.verdict.rank) == ("FAILED", "capture_patch", "TP0")
    assert any("models/" in line or "aux_hidden_states" in line for line in found.verdict.evidence)


def test_the_same_words_from_elsewhere_are_just_an_exception() -> None:
    lines = lines_of("cpu-deepseek-warmup-shape-error")
    end = next(number for number, line in enumerate(lines) if line.startswith("RuntimeError"))
    frame, error = '  File "/sgl/srt/managers/io_struct.py", line 7, in split', "ValueError: too many values to unpack"
    found = diagnose([*lines[: end - 2], frame, "    a, b = parts", error, *lines[end + 1 :]])
    assert found.verdict.kind == "exception"


@pytest.mark.parametrize("name", CASES)
def test_what_went_wrong_is_told_from_the_text_and_no_more_than_that(name: str) -> None:
    case = CASES[name]
    found = diagnose(list(case.lines))
    assert (found.status, found.verdict.kind, found.verdict.rank) == (case.status, case.kind, case.rank)
    assert case.words in " ".join((found.verdict.summary, *found.verdict.evidence, *found.verdict.advice))
    if case.kind not in ("none", "unknown"):
        assert found.verdict.evidence
        assert found.verdict.advice


@pytest.mark.parametrize("name", [name for name in CASES if "program" not in name and "web" not in name])
def test_a_container_around_the_log_does_not_change_the_verdict(name: str) -> None:
    case = CASES[name]
    found = diagnose([f"sglang-1  | {line}" for line in case.lines])
    assert (found.status, found.verdict.kind, found.verdict.rank) == (case.status, case.kind, case.rank)


@pytest.mark.parametrize("name", ["a rank late, still waited for", "memory", "a good start"])
def test_a_clock_without_a_date_tells_silence_too(name: str) -> None:
    case = CASES[name]
    found = diagnose(undated(case.lines), now=2e9)
    assert (found.status, found.verdict.kind, found.verdict.rank) == (case.status, case.kind, case.rank)


def test_the_lines_that_matched_no_phase_are_counted() -> None:
    lines = list(CASES["a good start, cut while it loads"].lines)
    found = diagnose([*lines, "[2026-11-29 13:02:00 TP0] Model weights loaded", "[2026-11-29 13:02:20 TP0] x"])
    assert (found.unmatched, found.unmatched_s) == (1, 20.0)


def test_a_log_that_ends_in_the_middle_says_what_its_silence_can_and_cannot_be() -> None:
    found = diagnose(list(CASES["a good start, cut while it loads"].lines))
    assert "load weights: 0 of 2 ranks past it; the log ends there" in found.reason
    assert "slow storage" in found.reason
    assert "it cannot be the interconnect" in found.reason
    hung = hang("h200-kimi-width-graph-capture-ready", "Capture target decode CUDA graph begin", 100)
    assert any("the first forward pass and all-reduce" in line for line in hung.verdict.evidence)
    assert any("storage" in text for text in hung.verdict.ruled_out)
