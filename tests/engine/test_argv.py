"""What the server is started with, and what capture refuses."""

import os
import sys
from pathlib import Path

import pytest

from kimi_agent.engine.argv import build_argv, capture_notes, capture_refusals
from kimi_agent.engine.flags import _asked, installed_version, known_flags, unknown_flags
from kimi_agent.engine.options import values
from kimi_agent.errors import UnavailableError

ENGINE = Path(__file__).parents[2] / ".engine"


def build(flags: list[str], layers: list[int] | None = None) -> list[str]:
    return build_argv("/py", "/models/kimi", "127.0.0.1", 31000, 2, 1, flags, layers)


def test_the_command_is_sglangs_own_with_the_users_flags_last() -> None:
    argv = build(["--trust-remote-code", "--context-length", "2048"])
    assert argv[:5] == ["/py", "-m", "sglang.launch_server", "--model-path", "/models/kimi"]
    assert argv[-3:] == ["--trust-remote-code", "--context-length", "2048"]
    assert values(argv, "--tp-size") == ["2"]


def test_the_agents_own_polling_stays_out_of_the_servers_log() -> None:
    given = values(build([]), "--uvicorn-access-log-exclude-prefixes")
    assert given is not None
    assert {"/v1/loads", "/health"} <= set(given)


def test_a_users_own_choice_is_kept() -> None:
    argv = build(["--soft-watchdog-timeout=60", "--uvicorn-access-log-exclude-prefixes", "/metrics"])
    assert values(argv, "--soft-watchdog-timeout") == ["60"]
    assert argv.count("--uvicorn-access-log-exclude-prefixes") == 1


def test_an_older_sglang_is_not_given_flags_it_does_not_know() -> None:
    argv = build_argv("/py", "/m", "::", 1, 1, 1, [], None, known=frozenset({"--soft-watchdog-timeout"}))
    assert "--soft-watchdog-timeout" in argv
    assert "--uvicorn-access-log-exclude-prefixes" not in argv


def test_capture_names_its_convention_and_its_layers() -> None:
    argv = build(["--disable-radix-cache"], [3, 31, 59])
    assert "--enable-return-aux-hidden-states" in argv
    assert values(argv, "--speculative-algorithm") == ["EAGLE3"]
    assert values(argv, "--return-aux-hidden-state-layer-ids") == ["3", "31", "59"]
    assert capture_refusals(argv) == []


@pytest.mark.parametrize(
    ("flags", "slug", "fix"),
    [
        ([], "capture-prefix-cache", "--disable-radix-cache"),
        (["--enable-two-batch-overlap"], "capture-two-batch-overlap", "--enable-two-batch-overlap"),
        (["--pp-size", "2"], "capture-pipeline", "--tp-size"),
        (["--attn-cp-size=2"], "capture-context-parallel", "--attn-cp-size"),
        (["--speculative-draft-model-path", "/draft"], "capture-speculative", "speculative"),
        (["--speculative-algorithm", "NEXTN"], "capture-speculative", "--speculative-algorithm"),
        (["--disaggregation-mode", "prefill"], "capture-disaggregation", "without that flag"),
        (["--enable-pdmux"], "capture-pdmux", "--enable-pdmux"),
        (["--enable-lora"], "capture-lora", "--enable-lora"),
        (["--lora-paths", "a=/adapter"], "capture-lora", "--lora-paths"),
        (["--enable-layernorm-sp"], "capture-sequence-parallel", "--enable-layernorm-sp"),
        (["--enable-mis"], "capture-multi-item", "--enable-mis"),
        (["--dllm-algorithm", "LowConfidence"], "capture-diffusion", "--dllm-algorithm"),
        (["--enable-encoder-swa-bounded-replay"], "capture-encoder-replay", "--enable-encoder-swa-bounded-replay"),
    ],
)
def test_what_capture_cannot_work_with_is_refused_with_the_flag_to_change(
    flags: list[str], slug: str, fix: str
) -> None:
    cache = ["--disable-radix-cache"] if flags else []
    problems = capture_refusals(build([*cache, *flags], [1]))
    assert [problem.slug for problem in problems] == [slug]
    assert fix in problems[0].hint


def test_the_chunk_that_attention_data_parallelism_divides_is_said() -> None:
    flags = ["--dp-size", "2", "--enable-dp-attention", "--chunked-prefill-size", "32"]
    (note,) = capture_notes(flags)
    assert "32 to 16 by the 2 ranks" in note
    assert capture_notes(["--dp-size", "2"]) == []
    assert capture_notes(["--attn-dp-size", "4"])[0].endswith("prefill by the 4 ranks")


def test_an_unknown_flag_is_named_with_the_one_that_was_meant() -> None:
    known = frozenset({"--attention-backend", "--tensor-parallel-size", "--tp-size"})
    problems = unknown_flags(["--attention-backnd", "x", "--tp-size=2", "--tensor-par", "2"], known)
    assert [(problem.message, problem.hint) for problem in problems] == [
        ("the installed SGLang has no flag --attention-backnd", "Did you mean --attention-backend?")
    ]


def test_an_interpreter_without_sglang_is_told_apart_from_one_that_is_not_there() -> None:
    assert installed_version(sys.executable) is None
    with pytest.raises(UnavailableError, match="no SGLang"):
        known_flags(sys.executable)
    with pytest.raises(UnavailableError, match="no interpreter /nowhere/python"):
        installed_version("/nowhere/python")


@pytest.mark.engine
def test_the_flags_read_from_the_source_are_the_parsers_own() -> None:
    python = str(ENGINE / "bin" / "python")
    env = {**os.environ, "PYTHONPATH": str(ENGINE / "shims"), "SGLANG_USE_CPU_ENGINE": "1"}
    assert installed_version(python, env) == "0.5.23"
    known = known_flags(python, env)
    assert set(known) == set(_asked(python, env))
    assert unknown_flags(build(["--disable-radix-cache", "--enable-dp-attention"], [1]), known) == []
