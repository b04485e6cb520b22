"""Which boundaries flags give for a model class, and what a drafter wants."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.engine.layers import (
    Target,
    drafter_match,
    drafter_problems,
    layer_problems,
    read_drafter,
    read_target,
    support_problems,
)
from kimi_agent.errors import UsageError

ENGINE = Path(__file__).parents[2] / ".engine"
KIMI = Target("KimiK25ForConditionalGeneration", 61)
LLAMA = Target("LlamaForCausalLM", 32)
GPT = Target("GptOssForCausalLM", 36)


@pytest.mark.parametrize(
    ("target", "ids", "boundaries"),
    [
        (KIMI, [3, 31, 59], (3, 31, 59)),
        (KIMI, [1, 29, 57], (2, 30, 58)),
        (KIMI, [0, 29, 57], (0, 29, 57)),
        (KIMI, [], (2, 30, 58)),
        (LLAMA, [1, 15, 28], (2, 16, 29)),
        (GPT, [1, 17, 36], (1, 17, 36)),
        (GPT, [1, 17, 32], (2, 18, 33)),
    ],
)
def test_what_flags_capture(target: Target, ids: list[int], boundaries: tuple[int, ...]) -> None:
    assert target.boundaries(ids) == boundaries


@given(st.sampled_from([KIMI, LLAMA]), st.sets(st.integers(0, 30), min_size=1, max_size=4))
def test_the_flags_for_boundaries_capture_them(target: Target, wanted: set[int]) -> None:
    ids = target.ids(sorted(wanted))
    if ids is not None:
        assert target.boundaries(ids) == tuple(sorted(wanted))
    else:
        assert min(wanted) < 2


def drafter(tmp_path: Path, config: dict[str, Any], target: Target = KIMI) -> Any:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return read_drafter(tmp_path, target)


def test_the_published_kimi_drafters_are_one_layer_off_the_usual_flags(tmp_path: Path) -> None:
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True}}
    wanted = drafter(tmp_path, config)
    (problem,) = drafter_problems(KIMI, [3, 31, 59], wanted)
    assert "captures boundaries 3 31 59" in problem.message
    assert "wants 2 30 58 as read by SGLang and vLLM" in problem.message
    assert "capture.layers = [2, 30, 58]" in problem.hint
    assert drafter_problems(KIMI, [2, 30, 58], wanted) == []
    assert drafter_match(KIMI, [2, 30, 58], wanted).startswith("boundaries 2 30 58 are what the drafter")


def test_engines_that_read_the_same_ids_otherwise_are_told_apart(tmp_path: Path) -> None:
    wanted = drafter(tmp_path, {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}, LLAMA)
    assert wanted.readings == {"SGLang": (3, 17, 30), "vLLM": (2, 16, 29)}
    assert drafter_match(LLAMA, [1, 15, 28], wanted).endswith("as read by vLLM; SGLang would read 3 17 30")
    (problem,) = drafter_problems(LLAMA, [4, 5, 6], wanted)
    assert "[2, 16, 29] for SGLang or capture.layers = [1, 15, 28] for vLLM" in problem.hint


def test_block_outputs_from_zero(tmp_path: Path) -> None:
    wanted = drafter(tmp_path, {"model": {"aux_hidden_state_layer_ids": [1, 29, 57]}})
    assert wanted.readings == {"0-based block outputs": (2, 30, 58)}
    assert drafter_problems(KIMI, [2, 30, 58], wanted) == []
    assert drafter_problems(KIMI, [1, 29, 57], wanted) == []


def test_a_config_without_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not say which layers"):
        drafter(tmp_path, {"architectures": ["LlamaForCausalLMEagle3"]})
    with pytest.raises(UsageError, match="cannot be read"):
        read_drafter(tmp_path / "nothing", KIMI)


def test_layers_beyond_the_model_are_refused() -> None:
    assert layer_problems(KIMI, [3, 31, 60]) == []
    (problem,) = layer_problems(KIMI, [3, 31, 61])
    assert "boundaries 61 cannot be captured: the model has 61 blocks" in problem.message
    assert layer_problems(LLAMA, [30, 31])[0].slug == "capture-layers"


def test_a_target_is_read_from_its_config(tmp_path: Path) -> None:
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": {"num_hidden_layers": 61}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_target(tmp_path) == KIMI
    assert read_target(tmp_path / "nothing") is None


def test_support_is_read_from_the_source(tmp_path: Path) -> None:
    models = tmp_path / "srt" / "models"
    models.mkdir(parents=True)
    (models / "a.py").write_text("class Base(nn.Module):\n    def set_eagle3_layers_to_capture(self): ...\n")
    (models / "b.py").write_text("class Derived(Base, metaclass=M):\n    pass\n")
    (models / "c.py").write_text("class Other(nn.Module):\n    pass\n")
    names = ("Base", "Derived", "Other", "Unknown")
    found = [bool(support_problems(Target(name, 4), tmp_path)) for name in names]
    assert found == [False, False, True, False]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "supported"),
    [("KimiK25ForConditionalGeneration", True), ("DeepseekV3ForCausalLM", True), ("Qwen3ForCausalLM", True),
     ("GPT2LMHeadModel", False)],
)  # fmt: skip
def test_support_in_the_installed_sglang(name: str, supported: bool) -> None:
    (package,) = ENGINE.glob("lib/python3*/site-packages/sglang")
    assert bool(support_problems(Target(name, 4), package)) is not supported
