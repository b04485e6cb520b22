"""What a screen gets of a dump and of a shard: right, bounded, and harmless."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from kimi_agent.errors import KimiError, UsageError
from kimi_agent.shards.dumps import find_dumps
from kimi_agent.shards.show import list_dumps, list_shards, show_shard
from kimi_agent.shards.stats import aggregate, dump_statistics
from kimi_agent.shards.tokens import load_vocabulary
from kimi_agent.wire.codec import MAX_LINE
from kimi_capture.format import COMMITS, Commit, Sample, ShardMeta
from kimi_capture.statistics import Statistics

Maker = Callable[..., Any]
FIRST = "shard-TP0-000000.safetensors"


def test_dumps_are_found_and_summed_from_their_commits_alone(make_dump: Maker, tmp_path: Path) -> None:
    for name, shards in (("a", 2), ("b", 0)):
        writer = make_dump(name)
        for _ in range(shards):
            writer.add().write_bytes(b"the commits are what counts")
    (tmp_path / "dumps" / "empty").mkdir()
    listed = list_dumps(tmp_path)
    assert [dump["dump"] for dump in listed] == ["a", "b"]
    assert {key: listed[0][key] for key in ("samples", "rows", "shards", "time")} == {
        "samples": 4, "rows": 22, "shards": 2, "time": 1.7e9 + 1,
    }  # fmt: skip
    assert listed[1]["shards"] == 0
    assert listed[1]["time"] == 1.7e9


def test_a_dump_is_found_when_its_own_directory_is_given(dump: Any) -> None:
    assert [found.directory for found in find_dumps(dump.directory)] == [dump.directory]


def test_no_root_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory"):
        list_dumps(tmp_path / "no")


def test_shards_are_listed_with_their_layers_in_every_convention(dump: Any) -> None:
    listing = list_shards(dump.directory)
    assert listing["boundaries"] == [2, 3, 4]
    assert listing["conventions"]["3"] == {"sglang_flag": 3, "sglang_internal": 3, "vllm": 3, "specforge": 2}
    assert [(shard["rows"], shard["samples"]) for shard in listing["shards"]] == [(11, 2)] * 3
    assert listing["problems"] == []


def test_a_listing_names_what_is_plainly_wrong(dump: Any) -> None:
    (dump.directory / FIRST).unlink()
    second = dump.directory / "shard-TP0-000001.safetensors"
    second.write_bytes(b"short")
    problems = list_shards(dump.directory)["problems"]
    assert problems[0] == f"{FIRST}: is committed, but the file is not there"
    assert problems[1].startswith(f"{second.name}: has 5 bytes, ")


def test_the_newest_shards_of_a_long_dump_are_listed_and_the_rest_counted(dump: Any) -> None:
    listing = list_shards(dump.directory, 2)
    assert [shard["shard"][-18:] for shard in listing["shards"]] == ["000001.safetensors", "000002.safetensors"]
    assert listing["more"] == 1
    assert list_shards(dump.directory, 0)["more"] == 3


def test_a_listing_spells_out_so_many_problems_and_counts_the_rest(dump: Any) -> None:
    for place in range(300):
        dump.commit(Commit(f"gone-{place}", 1, 1, 1, "0", 1.0))
    problems = list_shards(dump.directory)["problems"]
    assert len(problems) == 201
    assert problems[-1] == "100 more problems"


def test_a_shard_is_shown_with_the_norms_of_its_rows(dump: Any) -> None:
    shown = show_shard(dump.directory, FIRST)
    assert shown["committed"]
    assert shown["tensors"]["aux_hidden_states"] == {"dtype": "BF16", "shape": [11, 3, 16]}
    assert shown["tensors"]["token_ids"] == {"dtype": "I64", "shape": [11]}
    assert list(shown["statistics"]) == ["2", "3", "4", "last"]
    assert [(sample["rid"], sample["rows"]) for sample in shown["samples"]] == [("r0-0", 7), ("r0-1", 4)]
    tokens = shown["samples"][0]["tokens"]
    assert [token["position"] for token in tokens] == list(range(7))
    assert all(token["bad"] is None for token in tokens)
    rows = [token["norm"]["3"] ** 2 for sample in shown["samples"] for token in sample["tokens"]]
    assert np.sqrt(sum(rows) / (11 * 16)) == pytest.approx(shown["statistics"]["3"]["rms"], rel=1e-4)
    assert shown["more"] == 0
    assert shown["text_source"] == "ids only: the model /nowhere/tiny is not on this host"


def test_the_dump_s_statistics_stand_beside_the_shard_s(dump: Any) -> None:
    shown = show_shard(dump.directory, FIRST)
    assert list(shown["dump_statistics"]) == list(shown["statistics"])
    assert shown["dump_statistics"]["last"]["rms"] == pytest.approx(shown["statistics"]["last"]["rms"], rel=0.5)


def test_samples_and_tokens_are_shown_from_where_they_are_asked(make_dump: Maker) -> None:
    writer = make_dump()
    path = writer.add(writer.samples(((5, 3),) * 6))
    shown = show_shard(writer.directory, path.name, first=2, samples=3, token=4, tokens=5)
    assert [sample["rid"] for sample in shown["samples"]] == ["r0-2", "r0-3", "r0-4"]
    assert [[token["position"] for token in sample["tokens"]] for sample in shown["samples"]] == [[4, 5, 6], [4, 5], []]
    assert shown["more"] == 1
    assert show_shard(writer.directory, path.name, first=99)["samples"] == []
    assert show_shard(writer.directory, path.name, first=99)["more"] == 0


def damage(tensors: dict[str, Any]) -> None:
    """Two bad rows and a position out of place."""
    tensors["aux_hidden_states"][1, 0, 0] = 0x7F81
    tensors["last_hidden_state"][2] = 0
    tensors["positions"][3] = 8


def test_bad_tokens_are_marked_with_why(make_dump: Maker) -> None:
    writer = make_dump()
    path = writer.add(change=damage)
    first, second = show_shard(writer.directory, path.name)["samples"]
    assert (first["bad"], second["bad"]) == (3, 0)
    assert show_shard(writer.directory, path.name, tokens=0)["samples"][0]["bad"] == 3
    tokens = first["tokens"]
    assert [token["bad"] for token in tokens[:5]] == [
        None, "not finite at 2", "all zero at last", "position 8 is out of place", None,
    ]  # fmt: skip
    assert tokens[1]["norm"]["2"] is None


def test_an_answer_fits_one_line_of_the_wire_whatever_the_shard_holds(make_dump: Maker, tmp_path: Path) -> None:
    text = "\U0001f600" * 16
    vocabulary = "".join(f"{base64.b64encode(text.encode()).decode()} {token}\n" for token in range(500))
    (tmp_path / "tiktoken.model").write_text(vocabulary)
    writer = make_dump(model={"path": str(tmp_path)})
    path = writer.add(tuple(Sample(f"{'r' * 5000}{place}", 900, 1, 900, "x" * 5000) for place in range(25)))
    shown = show_shard(writer.directory, path.name, samples=1000, tokens=10**9)
    assert len(orjson.dumps({"id": 2**53, "result": shown})) < MAX_LINE
    assert sum(len(sample["tokens"]) for sample in shown["samples"]) > 1000


def test_text_from_a_shard_cannot_act_on_a_terminal(make_dump: Maker) -> None:
    writer = make_dump()
    path = writer.add((Sample("\x1b[2Jr", 5, 3, 7, "\x1b]0;x\x07stop"),))
    answer = json.dumps(show_shard(writer.directory, path.name), ensure_ascii=False)
    assert "\\u001b" not in answer
    assert show_shard(writer.directory, path.name)["samples"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("name", ["no.safetensors", "../d1/" + FIRST, "..", "", "a\0b", "/etc/passwd"])
def test_what_is_not_a_shard_of_the_dump_is_a_usage_error(dump: Any, name: str) -> None:
    with pytest.raises(UsageError, match="there is no shard"):
        show_shard(dump.directory, name)


def test_a_damaged_shard_cannot_be_shown_and_says_so(dump: Any) -> None:
    (dump.directory / FIRST).write_bytes(b"short")
    with pytest.raises(KimiError, match=f"{FIRST} cannot be shown: .*5 bytes are too few.*shards verify"):
        show_shard(dump.directory, FIRST)


# --- text -------------------------------------------------------------------------------------------------------------


def write_kimi_tokenizer(directory: Path) -> None:
    """Kimi's kind of tokenizer: ranks in tiktoken.model, special tokens in tokenizer_config.json."""
    pieces = [b"Hello", b" ", b"w\xc3", b"\xb6rld", b"\x1b[31m"]
    lines = [f"{base64.b64encode(piece).decode()} {rank}" for rank, piece in enumerate(pieces)]
    (directory / "tiktoken.model").write_text("\n".join(lines) + "\n")
    special = {"added_tokens_decoder": {"7": {"content": "<|im_end|>", "special": True}}}
    (directory / "tokenizer_config.json").write_text(json.dumps(special))


def test_kimi_s_vocabulary_gives_text_with_characters_whole(tmp_path: Path) -> None:
    write_kimi_tokenizer(tmp_path)
    words = load_vocabulary(str(tmp_path), range(10))
    assert words.source == str(tmp_path / "tiktoken.model")
    assert words.text([0, 1, 2, 3, 7]) == "Hello wörld<|im_end|>"
    assert [words.piece(token) for token in (0, 1, 2, 7, 9)] == ["Hello", " ", "w\ufffd", "<|im_end|>", ""]
    assert words.piece(4) == ""


def test_only_the_tokens_asked_for_are_kept(tmp_path: Path) -> None:
    write_kimi_tokenizer(tmp_path)
    assert set(load_vocabulary(str(tmp_path), [1, 7, 10**9]).table) == {1, 7}


def test_a_byte_level_tokenizer_json_gives_text_with_characters_whole(tmp_path: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = tokenizer.encode("Grüße, 世界 <|end|>").ids
    words = load_vocabulary(str(tmp_path), [*ids, 9999, -1])
    assert words.source == str(tmp_path / "tokenizer.json")
    assert words.text(ids) == "Grüße, 世界 <|end|>"
    assert words.piece(9999) == ""


def test_a_sentencepiece_tokenizer_json_keeps_spaces_and_bytes(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "▁Hello": 1, "▁world": 2, "<0xC3>": 3, "<0xB6>": 4, "s": 5}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    words = load_vocabulary(str(tmp_path), range(6))
    assert words.text([1, 2, 5, 3, 4]) == " Hello worldsö"


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        (None, "", "has neither tiktoken.model nor tokenizer.json"),
        ("tokenizer.json", "{", "cannot be read"),
        ("tiktoken.model", "!!! 1\n", "the token of rank 1 is not base64"),
    ],
)
def test_without_a_readable_vocabulary_there_are_ids_and_the_reason(
    tmp_path: Path, file: str | None, content: str, says: str
) -> None:
    if file is not None:
        (tmp_path / file).write_text(content)
    words = load_vocabulary(str(tmp_path), [1])
    assert words.source.startswith("ids only: ")
    assert says in words.source
    assert words.text([1]) == ""


def test_a_model_named_as_on_the_hub_is_found_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "hub" / "models--moonshotai--Kimi-K2.5" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    write_kimi_tokenizer(snapshot)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    assert load_vocabulary("moonshotai/Kimi-K2.5", [0]).text([0]) == "Hello"


def test_a_shard_s_tokens_are_shown_as_text(make_dump: Maker, tmp_path: Path) -> None:
    write_kimi_tokenizer(tmp_path)

    def spell(tensors: dict[str, Any]) -> None:
        tensors["token_ids"][:] = [0, 1, 2, 3, 7, 0, 0]

    writer = make_dump(model={"path": str(tmp_path)})
    path = writer.add(writer.samples(((5, 3),)), spell)
    sample = show_shard(writer.directory, path.name)["samples"][0]
    assert sample["text"] == "Hello wörld<|im_end|>HelloHello"
    assert sample["tokens"][4]["text"] == "<|im_end|>"


# --- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_are_weighted_by_rows() -> None:
    def meta(rows: int, rms: float, top: float, zero: int) -> ShardMeta:
        return ShardMeta("d", (Sample("r", rows, 1, rows, "stop"),), {}, {"3": Statistics(rms, top, 1, zero)})

    merged = aggregate([meta(30, 1.0, 5.0, 0), meta(10, 3.0, 2.0, 2)])["3"]
    assert merged["rms"] == pytest.approx(np.sqrt((30 * 1 + 10 * 9) / 40))
    assert merged["rms_spread"] == pytest.approx(np.sqrt((30 * 0.25 + 10 * 2.25) / 40))
    assert (merged["max_abs"], merged["non_finite"], merged["zero_rows"]) == (5.0, 2, 2)


def test_a_dump_s_statistics_are_those_of_all_its_rows(make_dump: Maker) -> None:
    writer = make_dump()
    kept: list[Any] = []
    for lengths in (((5, 3),), ((40, 2), (6, 6))):
        writer.add(writer.samples(lengths), lambda tensors: kept.append(tensors["last_hidden_state"]))
    answer = dump_statistics(writer.directory)
    values = (np.concatenate(kept).astype(np.uint32) << 16).view(np.float32)
    assert answer["statistics"]["last"]["rms"] == pytest.approx(float(np.sqrt((values**2).mean())), rel=1e-4)
    assert answer["statistics"]["last"]["max_abs"] == float(np.abs(values).max())
    assert (answer["rows"], answer["samples"], answer["prompt_tokens"], answer["output_tokens"]) == (59, 3, 51, 11)
    assert answer["finish_reasons"] == {"stop": 3}


def test_a_shard_that_cannot_be_opened_is_left_out_and_named(dump: Any) -> None:
    (dump.directory / FIRST).write_bytes(b"short")
    answer = dump_statistics(dump.directory)
    assert answer["shards"] == 2
    assert answer["problems"][0].startswith(f"{FIRST}: left out, it cannot be opened")


def test_a_dump_without_commits_has_no_statistics(make_dump: Maker) -> None:
    writer = make_dump()
    assert not (writer.directory / COMMITS).exists()
    answer = dump_statistics(writer.directory)
    assert (answer["statistics"], answer["rows"], answer["problems"]) == ({}, 0, [])
