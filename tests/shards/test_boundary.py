"""Which of a real model's states captured rows are: its own states under right and wrong names."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from kimi_agent.shards.model import runner_for
from kimi_agent.shards.weights import Weights
from kimi_capture.format import Sample
from kimi_console.demo.engine import Engine

Maker = Callable[..., Any]
ROWS = 24


@pytest.mark.engine
@pytest.mark.long
def test_rows_are_called_by_what_they_are_and_not_by_their_labels(make_dump: Maker, engine: Engine) -> None:
    model = engine.models / "tiny-kimi25"
    weights = Weights(model)
    tokens = np.random.default_rng(3).integers(5, 400, ROWS)
    (states,) = runner_for(weights, str(engine.python)).states([tokens])
    hidden = states.shape[2]
    writer = make_dump(hidden_size=hidden, num_layers=len(states) - 2, model={"path": str(model)})
    for held in ((2, 3, 4), (3, 4, 5)):

        def filled(tensors: dict[str, Any], held: tuple[int, ...] = held) -> None:
            captured = (states.view(np.uint32) >> 16).astype(np.uint16)
            tensors["aux_hidden_states"][:] = captured[list(held)].transpose(1, 0, 2)
            tensors["last_hidden_state"][:] = captured[-1]
            tensors["token_ids"][:] = tokens

        writer.add((Sample(f"r{held[0]}", ROWS, 1, ROWS, "stop"),), filled, hidden=hidden)
    for rid, code, best, findings in (
        ("r2", 0, "boundary 2", []),
        ("r3", 5, "boundary 3", ["layer identity: the boundaries are 3 4 5, labelled 2 3 4: 1 layer too late"]),
    ):
        done = match(writer.directory, "--rid", rid, "--python", engine.python, "--json")
        answer = orjson.loads(done.stdout)
        assert (done.returncode, answer["rows"], answer["findings"]) == (code, ROWS, findings)
        assert answer["columns"][0]["best"] == best
        assert all(column["fits"] for column in answer["columns"])


def match(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kimi_agent", "shards", "match", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_model_of_another_size_is_refused_by_its_numbers(make_dump: Maker, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"hidden_size": 99, "num_hidden_layers": 6}')
    header = b'{"lm_head.weight":{"dtype":"BF16","shape":[0,99],"data_offsets":[0,0]}}'
    (model / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    writer = make_dump(model={"path": str(model)})
    writer.add()
    done = match(writer.directory)
    assert done.returncode == 2
    assert "is not the dump's model: it has hidden size and layers 99 and 6, the dump 16 and 6" in done.stderr
