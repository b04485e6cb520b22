"""The redactor: nothing planted survives, what is harmless stays, and the cut of the text does not matter."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent import redact
from kimi_agent.redact import LONGEST, Redactor
from kimi_agent.redact_patterns import Guarded

from .planted import API_KEY, FQDN, HOME, HOST, PLANTS, USER

HARMLESS = (
    "[2026-11-29 14:03:01 TP0] Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, token usage: 0.00",
    "Decode batch, #running-req: 1, #token: 40, token usage: 0.00, gen throughput (token/s): 71.23, #queue-req: 0, ",
    "server_args=ServerArgs(model_path='/models/Kimi-K2.5', tokenizer_path='/models/K', api_key=None, tp_size=8)",
    "Load weight end. elapsed=152.02 s, type=KimiK25ForConditionalGeneration, avail mem=20.1 GB",
    "max_total_num_tokens=190000, chunked_prefill_size=8192, bos_token='<s>', pad_token=[PAD], eos_token_id=163585",
    "INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)",
    "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. 0000:41:00.0",
    "std::runtime_error at torch::jit::load _ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7func_wr",
    "root cause: user error; localhost ::1 0.0.0.0 12:34:56 sglang==0.5.23 torch 2.11.0+cu130",
    "Loading safetensors checkpoint shards:  23% Completed | 14/64 [01:10<03:59,  4.79s/it]",
    "flashinfer_batch_prefill_with_kv_cache_dtype_q_bf16_dtype_kv_bf16_head_dim_512 compiled from https://github.com/x/y",
    "apply_all (utils/hf_transformers_patches.py:65) npm_config_cache_directory sk-learn-contrib-extras",
    "weights 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
)


def redactor() -> Redactor:
    return Redactor(hosts=[HOST, FQDN, "localhost"], users=[USER, "root"], homes=[HOME, "/"], secrets=[API_KEY, "x"])


def gone(value: str, text: str) -> bool:
    return value.lower() not in text.lower()


PLANTED = [(plant.value, template) for plant in PLANTS for template in plant.templates]


@pytest.mark.parametrize(("value", "template"), PLANTED, ids=[t.format(v, v) for v, t in PLANTED])
def test_nothing_planted_survives_in_text_or_in_data(value: str, template: str) -> None:
    for form in {value, json.dumps(value)[1:-1]}:
        text = template.format(form, form)
        for line in (text, f"[2026-11-29 14:03:01 TP0] {text}", f"before {text} after"):
            assert gone(form, redactor().text(line)), redactor().text(line)
    kept = redactor()
    assert gone(value, json.dumps(kept.data({"log": [text], "n": 1}), ensure_ascii=False))
    assert sum(kept.report().values()) > 0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "--admin-api-key=8f3a1c api_key='plain-and-short-1', cookie=a=1; b=2 model='x'",
            "--admin-api-key=<secret> api_key='<secret>', cookie=<secret> model='x'",
        ),
        ("--admin-api-key=8f3a1c Cookie: session=8f3a1c", "--admin-api-key=<secret> Cookie: <secret>"),
        ("Cookie: session=8f3a1c api_key='8f3a1c', served_model_name='x'", "Cookie: <secret>, served_model_name='x'"),
    ],
)
def test_what_stands_behind_a_secret_is_seen_by_itself(line: str, expected: str) -> None:
    assert redactor().text(line) == expected


@pytest.mark.parametrize("line", HARMLESS)
def test_what_a_diagnosis_needs_stays(line: str) -> None:
    kept = redactor()
    assert kept.text(line) == line
    assert kept.report() == {}


@given(
    pieces=st.lists(st.sampled_from([t.format(v, v) for v, t in PLANTED] + list(HARMLESS)), max_size=8),
    ends=st.lists(st.sampled_from(["\n", "\n\n", " ", " | "]), min_size=8, max_size=8),
    cuts=st.lists(st.integers(0, 1500), max_size=12),
)
def test_the_cut_of_the_text_does_not_matter(pieces: list[str], ends: list[str], cuts: list[int]) -> None:
    text = "".join(piece + end for piece, end in zip(pieces, ends, strict=False))
    whole = redactor().text(text)
    cut = redactor()
    stream = cut.stream()
    at = sorted({0, *(min(place, len(text)) for place in cuts), len(text)})
    out = "".join(stream.feed(text[a:b]) for a, b in pairwise(at)) + stream.end()
    assert out == whole
    for value in (plant.value for plant in PLANTS if plant.value in text):
        assert gone(value, out)


FRAGMENTS = st.sampled_from(sorted({
    *(word for line in (*HARMLESS, *(template.format(value, value) for value, template in PLANTED))
      for word in line.split()),
    "token", "new-token: 5", "TOKEN: 5", "Token=12%,", "token: 5x!", "fe80::1%eth0", "1:2:3:4:5:6:7:8",
    "\u0130p-1-2-3-4", "ALICE", "a\u017fk", "::ffff:10.0.0.9", "10.0.0.7:80", "00-1a-2b-3c-4d-5e", "\u212aEY=abc",
}))  # fmt: skip


@given(st.lists(FRAGMENTS, max_size=12), st.sampled_from([" ", "", "=", ": ", ", ", "\u00e9 "]))
def test_a_guard_lets_every_match_through(fragments: list[str], between: str) -> None:
    line = between.join(fragments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Guarded, "may_match", lambda self, line: True)
        patch.setattr(redact, "may_name_secrets", lambda line: True)
        for marks in ("MAC_MARKS", "IPV6_MARKS", "IPV4_MARKS", "LONG", "SHORTEST_LONG_ADDRESS"):
            patch.setattr(redact, marks, 0)
        unguarded = redactor().line(line)
    assert redactor().line(line) == unguarded


@given(st.lists(st.sampled_from([t.format(v, v) for v, t in PLANTED] + list(HARMLESS)), max_size=6))
def test_what_is_redacted_stays_as_it_is_when_redacted_again(lines: list[str]) -> None:
    once = redactor().text("\n".join(lines))
    assert redactor().text(once) == once or re.search(r"(?:host|user|home|addr|mac|email)-\d", once)
    assert "<secret><secret>" not in redactor().text(once)


@given(st.text(max_size=300))
def test_any_text_is_taken_and_keeps_its_lines(text: str) -> None:
    assert redactor().text(text).count("\n") == text.count("\n")


def test_the_same_name_gets_the_same_stand_in_everywhere() -> None:
    kept = redactor()
    first = kept.text(f"{HOST} 10.0.0.1 and 10.0.0.2 {USER}")
    assert first == "host-1 addr-1 and addr-2 user-1"
    assert kept.data({"host": HOST, "peers": ["10.0.0.2", "10.0.0.3"]}) == {
        "host": "host-1", "peers": ["addr-2", "addr-3"],
    }  # fmt: skip
    assert kept.report() == {"address": 4, "host": 2, "user": 1}


def test_data_loses_secrets_by_the_name_they_stand_under_and_keeps_numbers() -> None:
    kept = redactor()
    argv = ["python", "--api-key", "weak", "--port", "30000", "--tokenizer-path", "/m"]
    assert kept.data({"env": {"HF_TOKEN": "weak", "HOME_PORT": "1"}, "argv": argv, "pid": 7, "prompt": "hello"}) == {
        "env": {"HF_TOKEN": "<secret>", "HOME_PORT": "1"},
        "argv": ["python", "--api-key", "<secret>", "--port", "30000", "--tokenizer-path", "/m"],
        "pid": 7, "prompt": "<prompt>",
    }  # fmt: skip


def test_a_line_without_end_is_cut_before_a_word_that_would_be_half_a_secret() -> None:
    secret = "hf_" + "a" * 40
    text = "x" * (LONGEST - 20) + f" {secret}" + "y" * 100
    out = redactor().text(text)
    assert out.endswith(" <cut>")
    assert "hf_" not in out
    stream = redactor().stream()
    assert "".join(stream.feed(text[at : at + 4096]) for at in range(0, len(text), 4096)) + stream.end() == out


def test_long_lines_take_no_long_time() -> None:
    for line in ("a" * 200_000, "token" * 40_000, "/home" * 40_000, "1." * 100_000, "::" * 100_000, "a@" * 100_000,
                 "-" * 200_000, "key=" * 50_000, "https://" * 25_000, "a.internal" * 20_000):  # fmt: skip
        assert redactor().text(line)
