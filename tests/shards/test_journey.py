"""Feeding a real server, and the way from a dataset to a trained drafter, with kills on it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kimi_agent.shards.masks import FED, GENERATED
from kimi_agent.shards.samples import Samples
from kimi_console.demo.engine import Engine

from .journey import Host, conversations, travel


@pytest.fixture
def host(engine: Engine, tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path, engine)
    yield made
    made.close()


@pytest.mark.engine
def test_a_feed_accounts_for_every_row_and_sends_none_twice(host: Host, tmp_path: Path) -> None:
    dataset = tmp_path / "rows.jsonl"
    rows = [*conversations(24), {"input_ids": [7, 8, 9, 10], "loss_mask": [0, 0, 1, 1]}, {"input_ids": [11] * 5}]
    bad = ["", "{broken", json.dumps({"messages": []}), json.dumps({"input_ids": [5] * 3000})]
    dataset.write_text("\n".join([*map(json.dumps, rows), *bad, json.dumps(rows[3]), json.dumps({"prompt": "go on"})]))
    host.launch()

    lines = host.feed(dataset)
    done = lines[-1]
    assert (done["rows"], done["captured"], done["duplicates"]) == (32, 27, 1)
    assert done["missing"] == {"empty": 2, "malformed": 1, "too long": 1}
    assert done["exit"] == 5
    last = [line for line in lines if line["event"] == "progress"][-1]
    assert (last["done"], last["of"], last["in_flight"], last["bytes_to_come"]) == (27, 27, 0, 0)
    named = {line["row"]: line["kind"] for line in lines if line.get("event") == "row"}
    assert named == {26: "empty", 27: "malformed", 28: "empty", 29: "too long"}

    samples = {one.sample.rid: one for one in Samples(host.dump)}
    assert len(samples) == 27
    assert {one.mask_source for one in samples.values()} == {FED, "all tokens"}
    assert GENERATED not in {one.mask_source for one in samples.values()}
    ids = next(one for one in samples.values() if one.token_ids.tolist() == [7, 8, 9, 10])
    assert ids.loss_mask.tolist() == [0, 0, 1, 1]
    made = [one for one in samples.values() if len(one.token_ids) > one.sample.prompt_tokens]
    assert len(made) == 7, "six conversations and a prompt were left to the server to answer"
    for one in made:
        assert one.loss_mask[one.sample.prompt_tokens :].all()

    again = host.feed(dataset)
    assert again[-1]["captured"] == 27
    assert not [line for line in again if line["event"] == "progress"], "nothing was sent again"
    assert len(Samples(host.dump)) == 27
    elsewhere = host.feed(dataset, dump=tmp_path / "other" / "dump")[-1]
    assert (elsewhere["exit"], "where this launch writes its dumps" in elsewhere["stderr"]) == (2, True)


@pytest.mark.engine
@pytest.mark.long
def test_from_a_dataset_to_a_drafter_over_two_kills(host: Host, trainers: Path) -> None:
    seen = travel(host, trainers, 240)

    assert seen["verify"]["samples"] == 240
    assert seen["exports"]["specforge"]["samples"] == seen["exports"]["speculators"]["samples"] == 240
    assert seen["exports"]["specforge"]["loss_masks"] == {FED: 240}
