"""What the weights of the final norm and of the head say of rows, on small safetensors files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kimi_agent.errors import UsageError
from kimi_agent.shards.head import check_head, check_norm, log_likelihood
from kimi_agent.shards.model import verify_with_model
from kimi_agent.shards.verify import verify
from kimi_agent.shards.weights import NoWeight, Weights
from kimi_capture.format import Sample, read_shard

from .conftest import HIDDEN, DumpWriter

VOCABULARY = 40
Array = npt.NDArray[Any]


def save_model(directory: Path, tensors: dict[str, tuple[str, Array]], **config: Any) -> Path:
    """A model directory with one safetensors file; bf16 values are given as float32."""
    directory.mkdir(parents=True)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, values) in tensors.items():
        stored = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) if dtype == "BF16" else values
        header[name] = {
            "dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), len(data) + stored.nbytes]
        }  # fmt: skip
        data += stored.tobytes()
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    whole = {"hidden_size": HIDDEN, "num_hidden_layers": 6, "model_type": "kimi_k2", "rms_norm_eps": 1e-6} | config
    (directory / "config.json").write_text(json.dumps({"text_config": whole}))
    return directory


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A head that tells tokens well apart, and a norm that is not all ones."""
    random = np.random.default_rng(3)
    head = random.normal(size=(VOCABULARY, HIDDEN)).astype(np.float32)
    norm = random.uniform(0.5, 2, HIDDEN).astype(np.float32)
    return save_model(
        tmp_path / "model",
        {
            "language_model.lm_head.weight": ("BF16", head),
            "language_model.model.norm.weight": ("BF16", norm),
            "language_model.model.layers.0.norm.weight": ("BF16", norm),
            "vision_tower.norm.weight": ("BF16", norm),
        },
    )


def greedy_dump(make_dump: Callable[..., DumpWriter], weights: Weights, change: Any = None) -> DumpWriter:
    """A shard of two requests whose every token is the head's choice after the row before."""
    samples = (Sample("one", 3, 18, 20, "length"), Sample("two", 3, 18, 20, "length"))
    norm = weights.final_norm()
    head = next(weights.blocks(weights.head()))[1]

    def fill(tensors: dict[str, Array]) -> None:
        random = np.random.default_rng(11)
        rows = random.normal(size=(40, HIDDEN)).astype(np.float32)
        last = rows / np.sqrt(np.square(rows).mean(axis=1, keepdims=True)) * norm
        tokens = np.concatenate([[0], (last @ head.T).argmax(axis=1)[:-1]])
        tensors["last_hidden_state"] = (last.view(np.uint32) >> 16).astype(np.uint16)
        tensors["token_ids"] = tokens
        if change is not None:
            change(tensors)

    dump = make_dump()
    dump.add(samples, fill)
    return dump


def kinds_of_head(dump: DumpWriter, weights: Weights) -> set[str]:
    (path,) = dump.directory.glob("*.safetensors")
    rows, found = check_head(read_shard(path), weights)
    assert rows == 40
    return {kind for kind, _ in found}


def test_right_tokens_pass(make_dump: Callable[..., DumpWriter], model: Path) -> None:
    weights = Weights(model)
    dump = greedy_dump(make_dump, weights)
    assert kinds_of_head(dump, weights) == set()
    (path,) = dump.directory.glob("*.safetensors")
    assert list(check_norm(read_shard(path), weights.final_norm())) == []


@pytest.mark.parametrize("step", [-1, 1])
def test_shifted_tokens_are_told_by_the_head_alone(
    make_dump: Callable[..., DumpWriter], model: Path, step: int
) -> None:
    weights = Weights(model)

    def shift(tensors: dict[str, Array]) -> None:
        tensors["token_ids"] = np.roll(tensors["token_ids"], step)

    assert "token shift" in kinds_of_head(greedy_dump(make_dump, weights, shift), weights)


def test_swapped_requests_are_told_by_the_head_alone(make_dump: Callable[..., DumpWriter], model: Path) -> None:
    weights = Weights(model)

    def swap(tensors: dict[str, Array]) -> None:
        tensors["last_hidden_state"] = np.roll(tensors["last_hidden_state"], 20, axis=0)

    assert kinds_of_head(greedy_dump(make_dump, weights, swap), weights) == {"swapped requests"}


def test_a_state_before_the_norm_is_told_by_its_weight_alone(make_dump: Callable[..., DumpWriter], model: Path) -> None:
    weights = Weights(model)

    def unnormed(tensors: dict[str, Array]) -> None:
        tensors["last_hidden_state"] = tensors["last_hidden_state"] + np.uint16(5 << 7)  # times 32

    dump = greedy_dump(make_dump, weights, unnormed)
    (path,) = dump.directory.glob("*.safetensors")
    ((kind, text),) = check_norm(read_shard(path), weights.final_norm())
    assert kind == "final norm"
    assert "its rms is 31.9" in text


def test_log_likelihoods_are_those_of_the_whole_head(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Weights(model)
    states = np.random.default_rng(5).normal(size=(7, HIDDEN)).astype(np.float32)
    head = next(weights.blocks(weights.head()))[1]
    logits = (states @ head.T).astype(np.float64)
    right = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    tokens = np.array([0, 9, 10, 39])
    monkeypatch.setattr("kimi_agent.shards.weights.BLOCK_BYTES", 7 * 4 * HIDDEN)
    assert len(list(weights.blocks(weights.head()))) == 6
    np.testing.assert_allclose(log_likelihood(weights, states, tokens), right[:, tokens], atol=1e-4)


def test_what_the_weights_lack_is_said(tmp_path: Path, make_dump: Callable[..., DumpWriter]) -> None:
    packed = save_model(tmp_path / "packed", {"lm_head.weight": ("I32", np.zeros((4, 2), np.int32))})
    weights = Weights(packed)
    with pytest.raises(NoWeight, match="stored as I32"):
        next(weights.blocks(weights.head()))
    with pytest.raises(NoWeight, match="the final norm is not among the weights"):
        weights.final_norm()
    dump = greedy_dump(make_dump, Weights(_good(tmp_path)))
    result = verify(dump.directory, model=packed, python="/nonexistent/python")
    assert result.model is not None
    assert [check.ok for check in result.model.checks] == [None, None, None]
    assert result.ok
    assert "/nonexistent/python could not run the model" in result.model.checks[2].note


def test_the_norm_of_gemma_adds_one(tmp_path: Path) -> None:
    norm = np.array([0.5, -0.5] * (HIDDEN // 2), np.float32)
    gemma = save_model(tmp_path / "gemma", {"model.norm.weight": ("F32", norm)}, model_type="gemma3_text")
    assert Weights(gemma).final_norm().tolist() == [1.5, 0.5] * (HIDDEN // 2)


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    tied = save_model(
        tmp_path / "tied", {"model.embed_tokens.weight": ("F32", np.ones((3, HIDDEN), np.float32))},
        tie_word_embeddings=True,
    )  # fmt: skip
    assert Weights(tied).head() == "model.embed_tokens.weight"


def test_another_model_is_refused(tmp_path: Path, make_dump: Callable[..., DumpWriter]) -> None:
    dump = make_dump()
    dump.add()
    other = save_model(tmp_path / "other", {"model.norm.weight": ("F32", np.ones(8, np.float32))}, hidden_size=8)
    with pytest.raises(UsageError, match="is not the dump's model"):
        verify(dump.directory, model=other)
    with pytest.raises(UsageError, match="holds no model"):
        Weights(tmp_path)


def test_no_memory_for_the_model_is_said(
    make_dump: Callable[..., DumpWriter], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = greedy_dump(make_dump, Weights(model))
    monkeypatch.setattr("kimi_agent.shards.model.WEIGHTS_SHARE", 0.0)
    result = verify(dump.directory, model=model)
    assert result.model is not None
    assert "layers, order and whose rows they are stay unchecked" in result.model.checks[2].note
    opened = verify_with_model(result.dump, [], model)
    assert opened.checks[0].rows == 0


def _good(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    return save_model(
        tmp_path / "good",
        {
            "lm_head.weight": ("F32", random.normal(size=(VOCABULARY, HIDDEN)).astype(np.float32)),
            "model.norm.weight": ("F32", np.ones(HIDDEN, np.float32)),
        },
    )
