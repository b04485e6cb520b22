"""The agent's side of the inspector: a real process that may die, hang or be left, and never holds up the agent."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from kimi_agent.child import run_command
from kimi_agent.errors import KimiError, UsageError
from kimi_agent.paths import Home
from kimi_agent.shards.inspect import child, matching
from kimi_agent.shards.inspect.index import FILE
from kimi_agent.shards.inspect.serve import CACHE, Inspector
from kimi_agent.wire.rpc import READ_ONLY
from kimi_capture.format import COMMITS

Maker = Callable[..., Any]
FIRST = "shard-TP0-000000.safetensors"
WORKER = "kimi_agent.shards.inspect.worker"


@pytest.fixture
async def inspector(tmp_path: Path) -> AsyncIterator[Inspector]:
    made = Inspector(Home(tmp_path / "home"), lambda: [tmp_path / "dumps"])
    yield made
    await made.close()


def children(word: str) -> list[psutil.Process]:
    """Processes below this one that have a word in their command line, and all below them."""
    found: list[psutil.Process] = []
    for one in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if one.status() != psutil.STATUS_ZOMBIE and any(word in part for part in one.cmdline()):
                found += [one, *one.children(recursive=True)]
    return found


def began(count: int, word: str) -> list[psutil.Process]:
    """So many of them, once there are."""
    while len(found := children(word)) < count:
        os.sched_yield()
    return found


def worker(word: str = WORKER) -> psutil.Process:
    (found,) = children(word)
    return found


async def gone(process: psutil.Process) -> None:
    await asyncio.to_thread(process.wait)


async def whole(ask: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """An answer once nothing is missing of it, asked for as a screen does."""
    answer = await ask()
    while "running" in answer or answer.get("state", "done") != "done" or not answer.get("checked", True):
        answer = await ask()
    return answer


async def test_every_step_is_answered_by_one_process_and_the_index_is_kept(dump: Any, inspector: Inspector) -> None:
    methods = inspector.methods()
    assert [one["dump"] for one in await methods["dumps"]()] == ["d1"]
    shards = await methods["shards"](dump="d1")
    assert shards["shards"][0]["shard"] == FIRST
    samples = await methods["samples"](dump="d1", sort="rows", search="r1")
    assert [sample["rid"] for sample in samples["samples"]] == ["r1-0", "r1-1"]
    where = {"dump": "d1", "shard": FIRST, "place": 0}
    facts = await whole(partial(methods["sample"], **where))
    assert (facts["read"], facts["damaged"]) == (7, [])
    assert len((await methods["tokens"](**where))["tokens"]) == 7
    assert (await methods["compare"](**where, other=where))["same"]
    assert (await whole(partial(methods["compare_dumps"], dump="d1", other="d1")))["same"]
    process = worker()
    await inspector.close()
    await gone(process)
    assert (dump.directory / FILE).is_file()


def test_a_read_only_connection_may_look_into_everything(inspector: Inspector) -> None:
    assert set(inspector.methods()) <= READ_ONLY


async def test_refusals_come_through_as_they_are(dump: Any, inspector: Inspector) -> None:
    methods = inspector.methods()
    for name in ("no", "", "..", "../d1", "d1/.."):
        with pytest.raises(UsageError, match="there is no dump"):
            await methods["samples"](dump=name)
    with pytest.raises(KimiError, match="cannot be sorted by size") as refused:
        await methods["samples"](dump="d1", sort="size")
    assert refused.value.slug == "usage"
    (dump.directory / FIRST).unlink()
    with pytest.raises(KimiError, match="the file is not there") as damaged:
        await methods["sample"](dump="d1", shard=FIRST, place=0)
    assert (damaged.value.slug, "shards verify" in damaged.value.hint) == ("damaged", True)


async def test_a_process_that_dies_is_named_and_replaced(dump: Any, inspector: Inspector) -> None:
    methods = inspector.methods()
    await methods["dumps"]()
    process = worker()
    process.suspend()
    asked = [asyncio.ensure_future(methods["samples"](dump="d1")) for _ in range(3)]
    await asyncio.sleep(0.05)
    process.send_signal(signal.SIGBUS)
    process.resume()
    for task in asked:
        with pytest.raises(KimiError, match="a shard was cut short, or its disk failed"):
            await task
    assert (await methods["samples"](dump="d1"))["total"] == 6


async def test_a_disk_that_does_not_answer_costs_the_agent_nothing(
    dump: Any, make_dump: Maker, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = make_dump("stuck")
    os.mkfifo(stuck.directory / COMMITS)  # whoever reads it waits for ever
    methods = inspector.methods()
    await methods["samples"](dump="d1")
    monkeypatch.setattr(child, "DEADLINE", 5.0)
    process, ticks = worker(), 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.05)
            ticks += 1

    ticking = asyncio.create_task(tick())
    with pytest.raises(KimiError, match="took longer than"):
        await methods["samples"](dump="stuck")
    ticking.cancel()
    assert ticks > 10
    await gone(process)
    monkeypatch.undo()
    assert (await methods["samples"](dump="d1"))["total"] == 6


async def test_an_idle_process_is_let_go(dump: Any, inspector: Inspector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "IDLE", 0.1)
    assert (await inspector.methods()["samples"](dump="d1"))["total"] == 6
    for process in children(WORKER):  # none, when it was quicker
        await gone(process)
    assert children(WORKER) == []
    assert (await inspector.methods()["samples"](dump="d1"))["total"] == 6


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("started", [True, False])
async def test_whoever_leaves_takes_the_command_and_its_children_with_him(
    dump: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, started: bool, times: int
) -> None:
    go_on, start = asyncio.Event(), asyncio.create_subprocess_exec

    async def slowly(*command: str, **options: Any) -> asyncio.subprocess.Process:
        """As asyncio when its loop is slow: it ends what it starts when it is cancelled meanwhile, but that alone."""
        process = await start(*command, **options)
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        return process

    if not started:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", slowly)
    model, python = tmp_path / "model", tmp_path / "python"
    model.mkdir()
    (model / "config.json").write_text('{"hidden_size": 16, "num_hidden_layers": 6}')
    header = b'{"lm_head.weight":{"dtype":"BF16","shape":[0,16],"data_offsets":[0,0]}}'
    (model / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    python.write_text("#!/bin/sh\nexec sleep 1000\n")  # a model that is never done
    python.chmod(0o755)
    arguments = ("shards", "match", str(dump.directory), "--model", str(model), "--python", str(python))
    task = asyncio.create_task(run_command(*arguments, deadline=60))
    command, sleeper = await asyncio.to_thread(began, 2, str(dump.directory))
    assert sleeper.parent() == command
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone(command)
    await gone(sleeper)


async def test_a_forward_pass_ends_when_nobody_asks_for_it(
    make_dump: Maker, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = make_dump("stuck")
    os.mkfifo(stuck.directory / COMMITS)
    monkeypatch.setattr(matching, "PATIENCE", 0.05)
    monkeypatch.setattr(matching, "ASKED", 3.0)
    where = {"dump": "stuck", "shard": FIRST, "place": 0}
    boundary = inspector.methods()["boundary"]
    running = await boundary(**where)
    (process,) = await asyncio.to_thread(began, 1, str(stuck.directory))
    while running["running"] < 4.0:  # as long as it is asked for, it goes on
        running = await boundary(**where)
    assert process.is_running()
    await gone(process)


async def test_what_a_forward_pass_finds_is_asked_for_until_it_is_there(dump: Any, inspector: Inspector) -> None:
    answer = await whole(partial(inspector.methods()["boundary"], dump="d1", shard=FIRST, place=0))
    assert "the model's weights are needed: /nowhere/tiny" in answer["why"]
    with pytest.raises(KimiError, match="there is no sample 9"):
        await whole(partial(inspector.methods()["boundary"], dump="d1", shard=FIRST, place=9))


async def test_indexes_of_others_dumps_are_kept_in_the_home(dump: Any, inspector: Inspector, tmp_path: Path) -> None:
    (dump.directory / FILE).mkdir()
    assert (await inspector.methods()["samples"](dump="d1"))["total"] == 6
    await inspector.close()
    assert len(list((tmp_path / "home" / CACHE).glob("*.index"))) == 1
