"""What a feed makes of a dataset's rows, what it would send, and how it keeps account of every one."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.errors import KimiError
from kimi_agent.feed.accounts import account
from kimi_agent.feed.drive import QUEUE_HIGH, QUEUE_LOW, Failure, adjusted
from kimi_agent.feed.requests import Batch, Missing, Request, Wanted, gather
from kimi_agent.feed.rows import Conversation, Prompt, RowError, Tokens, parse_row
from kimi_agent.shards.masks import Mask
from kimi_console.demo.engine import Engine

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


@pytest.fixture
def spool() -> Iterator[Any]:
    with tempfile.TemporaryFile() as file:
        yield file


def write(path: Path, *rows: object) -> Path:
    """A JSONL file; text goes into it as it is."""
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def wanted(dataset: Path, python: Path | str = sys.executable, tokenizer: str = "/nowhere", **more: Any) -> Wanted:
    plain: dict[str, Any] = {
        "trust": False, "template": None, "regenerate": False, "new": 4, "temperature": 0.0, "longest": 64,
    }  # fmt: skip
    return Wanted(dataset, tokenizer, str(python), **plain | more)


@pytest.mark.parametrize(
    ("value", "row"),
    [
        ({"input_ids": [1, 2], "loss_mask": [0, 1]}, Tokens((1, 2), (0, 1))),
        ({"prompt": "hi", "completion": "yes"}, Prompt("hi", "yes")),
        ({"text": "hi", "input_ids": None}, Prompt("hi", None)),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            Conversation(({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})),
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
            Conversation(({"role": "user", "content": "ab"},)),
        ),
    ],
)
def test_the_shapes_of_datasets_are_known(value: object, row: object) -> None:
    assert parse_row(value) == row


@pytest.mark.parametrize(
    ("value", "kind", "why"),
    [
        ([1, 2], "malformed", "a row is a JSON object"),
        ({"question": "?"}, "malformed", "none of input_ids, messages"),
        ({"input_ids": []}, "empty", "input_ids is empty"),
        ({"input_ids": [1, -2]}, "malformed", "not a list of token ids"),
        ({"input_ids": [1, True]}, "malformed", "not a list of token ids"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "malformed", "2 zeros and ones"),
        ({"messages": []}, "empty", "no turns"),
        ({"messages": "hello"}, "malformed", "not a list of turns"),
        ({"messages": [{"role": "user", "content": ""}]}, "empty", "turn 0 is empty"),
        ({"messages": [{"role": "\x1b[2Jevil", "content": "a"}]}, "malformed", "turn 0 is said by"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "malformed", "no turn to answer"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "malformed", "not of text alone",
        ),
        ({"prompt": 7}, "malformed", "not text"),
    ],
)  # fmt: skip
def test_other_rows_are_told_by_kind(value: object, kind: str, why: str) -> None:
    with pytest.raises(RowError, match=why) as raised:
        parse_row(value)
    assert raised.value.kind == kind
    assert "\x1b" not in raised.value.why


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["messages", "conversations", "role", "from", "content", "prompt", "input_ids", "loss_mask"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_value_is_a_row_or_says_why_not(value: object) -> None:
    with contextlib.suppress(RowError):
        assert isinstance(parse_row(value), Conversation | Prompt | Tokens)


def test_rows_become_requests_named_by_their_content_and_the_rest_goes_on(tmp_path: Path, spool: Any) -> None:
    dataset = write(
        tmp_path / "d.jsonl", {"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}, "", "{broken", {"input_ids": [5] * 65},
        {"input_ids": [5, 6, 7]}, {"input_ids": [9]}, {"input_ids": []},
    )  # fmt: skip
    batch = gather(wanted(dataset), spool)

    assert batch.rows == 7
    assert [(one.row, one.kind) for one in batch.missing] == [
        (1, "empty"), (2, "malformed"), (3, "too long"), (6, "empty")
    ]  # fmt: skip
    assert "65 tokens, the server takes 64" in batch.missing[2].why
    first, second = batch.requests
    assert (first.row, first.tokens, first.new, first.rows) == (0, 3, 0, 3)
    assert first.mask == Mask(((1, 3),), output=False)
    assert second.mask is None, "nothing is said of its tokens"
    assert (batch.ids(first), batch.ids(second)) == ([5, 6, 7], [9])
    assert batch.duplicates == {first.rid: [4]}


def test_the_same_content_has_the_same_name_in_every_dataset(tmp_path: Path) -> None:
    rows: list[object] = [{"input_ids": [n, n + 1]} for n in range(5)]
    names = []
    for order in (rows, rows[::-1]):
        with tempfile.TemporaryFile() as spool:
            batch = gather(wanted(write(tmp_path / "d.jsonl", *order)), spool)
        names.append({request.rid for request in batch.requests})
    with tempfile.TemporaryFile() as spool:
        made = gather(wanted(write(tmp_path / "d.jsonl", *rows), regenerate=True), spool)

    assert names[0] == names[1]
    assert names[0].isdisjoint(request.rid for request in made.requests), "a generated answer is another content"
    assert all(request.mask == Mask((), output=True) for request in made.requests)


def test_a_package_or_tokenizer_that_is_not_there_is_one_sentence(tmp_path: Path, spool: Any) -> None:
    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    with pytest.raises(KimiError, match="the Python package pyarrow is needed"):
        gather(wanted(tmp_path / "d.parquet"), spool)
    with pytest.raises(KimiError, match="the Python package transformers is needed"):
        gather(wanted(write(tmp_path / "d.jsonl", {"prompt": "hi"})), spool)


@pytest.mark.engine
def test_the_servers_tokenizer_and_a_template_make_the_mask(engine: Engine, tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "A state."},
        {"role": "user", "content": "Whose?"},
        {"role": "assistant", "content": "The model's."},
    ]
    dataset = write(
        tmp_path / "d.jsonl", {"messages": turns}, {"messages": turns[:3]}, {"prompt": "Tell me", "completion": " now"},
        {"prompt": "Tell me"},
    )  # fmt: skip
    template = tmp_path / "t.jinja"
    template.write_text(TEMPLATE)
    how: dict[str, Any] = {"python": engine.python, "tokenizer": str(engine.models / "tiny-kimi"), "longest": None}
    found: dict[str, Batch] = {}
    more: dict[str, Any]
    for name, more in (("given", {}), ("new", {"regenerate": True}), ("bare", {"template": None})):
        with tempfile.TemporaryFile() as spool:
            found[name] = gather(wanted(dataset, **{"template": template} | how | more), spool)

    replayed, answered, completed, prompted = found["given"].requests
    assert [one.new for one in found["given"].requests] == [0, 4, 0, 4]
    assert replayed.mask is not None
    assert len(replayed.mask.spans) == 2
    assert replayed.mask.spans[1][1] == replayed.tokens, "the last assistant turn reaches the end"
    assert answered.mask == Mask(replayed.mask.spans[:1], output=True)
    assert completed.mask is not None
    assert completed.mask.spans == ((prompted.tokens, completed.tokens),)
    anew = found["new"].requests
    assert anew[0].mask == Mask(replayed.mask.spans[:1], output=True)
    assert found["new"].duplicates == {anew[0].rid: [1], anew[1].rid: [3]}
    assert [(one.row, one.kind) for one in found["bare"].missing] == [(0, "template"), (1, "template")]
    assert "--chat-template" in found["bare"].missing[0].why


@given(st.integers(1, 500), st.integers(0, 500), st.integers(0, 500), st.integers(1, 300))
def test_the_number_in_flight_keeps_a_queue_and_its_bounds(limit: int, flying: int, waiting: int, most: int) -> None:
    found = adjusted(limit, flying, waiting, most)
    assert 1 <= found <= most
    if waiting > QUEUE_HIGH:
        assert found <= max(flying, 1)
    if waiting < QUEUE_LOW and flying >= limit:
        assert found > limit or found == most
    if QUEUE_LOW <= waiting <= QUEUE_HIGH:
        assert found == min(limit, most)


@given(
    st.lists(st.sampled_from(["captured", "lost", "refused", "unsent"]), max_size=20), st.integers(0, 5),
    st.lists(st.integers(0, 19), max_size=6),
)  # fmt: skip
def test_every_row_is_accounted_for_once(fates: list[str], unusable: int, twins: list[int]) -> None:
    with tempfile.TemporaryFile() as spool:
        batch = Batch(spool)
        batch.requests = [Request(row, f"r{row}", 0, 1, 0, None) for row in range(len(fates))]
        batch.missing = [Missing(len(fates) + n, "empty", "") for n in range(unusable)]
        same = [twin for twin in twins if twin < len(fates)]
        for place, twin in enumerate(same):
            batch.duplicates.setdefault(f"r{twin}", []).append(len(fates) + unusable + place)
        batch.rows = len(fates) + unusable + len(same)
        committed = {f"r{row}" for row, fate in enumerate(fates) if fate == "captured"}
        sent = {f"r{row}" for row, fate in enumerate(fates) if fate != "unsent"}
        failures = {f"r{row}": Failure("no", final=True) for row, fate in enumerate(fates) if fate == "refused"}
        found = account(batch, committed, failures, "the server is gone", sent)

    assert found.rows == found.captured + found.duplicates + len(found.missing) == batch.rows
    assert len({one.row for one in found.missing}) == len(found.missing)
    assert found.captured == fates.count("captured")
    assert found.duplicates == sum(fates[twin] == "captured" for twin in same)
    assert all(one.why for one in found.missing if one.kind != "empty")
    assert found.kinds.get("refused", 0) == fates.count("refused") + sum(fates[twin] == "refused" for twin in same)


@pytest.mark.engine
def test_parquet_is_read_where_pyarrow_is(
    engine: Engine, trainers: Path, tmp_path: Path, spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(trainers))
    dataset = tmp_path / "d.parquet"
    write_it = (
        "import sys, pyarrow as pa, pyarrow.parquet as pq\n"
        "pq.write_table(pa.table({'input_ids': [[5, 6], [], [7]], 'loss_mask': [[0, 1], [], [1]]}), sys.argv[1])"
    )
    subprocess.run([engine.python, "-c", write_it, dataset], check=True, timeout=120)
    batch = gather(wanted(dataset, engine.python), spool)

    assert [batch.ids(request) for request in batch.requests] == [[5, 6], [7]]
    assert batch.requests[0].mask == Mask(((1, 2),), output=False)
    assert [(one.row, one.kind) for one in batch.missing] == [(1, "empty")]
