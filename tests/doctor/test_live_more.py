"""The doctor beside the real server, the longer list: each cause by its name and its rank, within a minute."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from kimi_agent.bundle import ensure_bundle
from kimi_console.demo.engine import Engine

from .hub import hub
from .test_live import ACCEPTED, START, copy_of
from .throttling import LIMIT, MEMORY, cgroup, full_disk, need, slow_disk
from .watching import WITHIN, Launch, Watch, watched

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.usefixtures("py_spy")]

WATCHDOG = ("--soft-watchdog-timeout", "600")


async def killed(watch: Watch, rank: str) -> None:
    """Kill a rank; it is named in time, and not its peer that dies of it."""
    os.kill(watch.pid(rank), signal.SIGKILL)
    word, verdict, took = await watch.until(lambda _, verdict: verdict.kind == "dead_rank", ACCEPTED)
    assert (word, verdict.rank) == ("FAILED", rank)
    watch.note(verdict, took)


async def test_a_rank_killed_in_the_barrier(engine: Engine, tmp_path: Path) -> None:
    async with watched(engine, tmp_path, Launch("tiny-llama")) as watch:
        await watch.until(lambda *_: watch.tracker.phases["TP0"] == "load weights", START)
        os.kill(watch.pid("TP0"), signal.SIGSTOP)
        word, verdict, took = await watch.until(lambda _, verdict: verdict.kind != "none", ACCEPTED)
        assert (word, verdict.kind, verdict.rank) == ("HUNG", "straggler", "TP0")
        watch.note(verdict, took)
        await killed(watch, "TP1")


async def test_a_rank_killed_while_the_server_is_idle(engine: Engine, tmp_path: Path) -> None:
    async with watched(engine, tmp_path, Launch("tiny-llama")) as watch:
        await watch.until(lambda word, _: word == "READY", START)
        await killed(watch, "TP0")


async def test_a_detokenizer_that_is_stuck(engine: Engine, tmp_path: Path) -> None:
    """It lets the warm-up pass and stands still behind it: the server is ready, and answers nobody."""
    launch = Launch("tiny-llama", tp=1, flags=WATCHDOG, env={"SGLANG_TEST_STUCK_DETOKENIZER": "600"})
    async with watched(engine, tmp_path, launch) as watch:
        await watch.named("deadlock")
        await watch.until(lambda _, verdict: "the detokenizer stands in _WatchdogReal.feed" in verdict.summary, 30)
        assert watch.silent <= WITHIN


async def test_a_tokenizer_that_is_stuck(engine: Engine, tmp_path: Path) -> None:
    launch = Launch("tiny-llama", tp=1, flags=WATCHDOG, env={"SGLANG_TEST_STUCK_TOKENIZER": "600"})
    async with watched(engine, tmp_path, launch) as watch:
        await watch.named("warmup")
        words = "the main process, which holds the tokenizer, stands in"
        await watch.until(lambda _, verdict: words in verdict.summary, 30)
        assert watch.silent <= WITHIN


async def test_all_ranks_raise(engine: Engine, tmp_path: Path) -> None:
    async with watched(engine, tmp_path, Launch("tiny-llama", fault="load-raises")) as watch:
        verdict = await watch.named("exception")
        assert verdict.rank in ("TP0", "TP1")


async def test_the_warm_up_raises(engine: Engine, tmp_path: Path) -> None:
    async with watched(engine, tmp_path, Launch("tiny-llama", tp=1, fault="forward-raises")) as watch:
        verdict = await watch.named("exception")
        assert verdict.rank == "TP0"
        assert "the first forward pass failed" in verdict.summary


async def test_a_weight_file_that_is_cut_short(engine: Engine, tmp_path: Path) -> None:
    model = copy_of(engine.models / "tiny-llama", tmp_path / "model", without="safetensors")
    whole = (engine.models / "tiny-llama" / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    async with watched(engine, tmp_path, Launch(str(model), tp=1)) as watch:
        verdict = await watch.named("exception")
        assert verdict.rank == "TP0"
        assert any("one is cut short or damaged" in line for line in verdict.advice)


async def test_a_node_that_was_given_another_address(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    nodes = ("--nnodes", "2", "--node-rank")
    first = Launch("tiny-llama", flags=(*nodes, "0", "--dist-init-addr", "127.0.0.1:34101"))
    second = Launch("tiny-llama", flags=(*nodes, "1", "--dist-init-addr", "127.0.0.1:34177"))
    async with watched(engine, tmp_path / "one", first) as one, watched(engine, tmp_path / "two", second) as two:
        verdict = await one.named("straggler")
        assert verdict.rank == "TP1"
        assert "on another node has not joined" in verdict.summary
        other = await two.named("straggler")
        assert other.rank == "TP0"


async def test_a_plugin_that_raises_when_it_is_loaded(engine: Engine, tmp_path: Path) -> None:
    # Without KIMI_CAPTURE_ROOT, which the launcher gives, the plugin's entry point raises.
    env = {"KIMI_CAPTURE_SOCKETS": str(tmp_path / "s"), "KIMI_CAPTURE_RUN": "r"}
    path = os.pathsep.join([str(ensure_bundle()), str(engine.shims)])
    launch = Launch("tiny-llama", tp=1, plugin=True, env={**env, "PYTHONPATH": path})
    async with watched(engine, tmp_path, launch) as watch:
        await watch.named("plugin_missing")


async def test_a_full_file_system(engine: Engine, tmp_path: Path) -> None:
    with full_disk(tmp_path) as place:
        launch = Launch("tiny-llama", tp=1, env={"TMPDIR": str(place), "SGLANG_CACHE_DIR": str(place)})
        async with watched(engine, tmp_path, launch) as watch:
            verdict = await watch.named("storage")
            assert "a file system is full" in verdict.summary
            assert any(line.startswith("disk: temporary files") for line in verdict.evidence)


async def test_a_cgroup_that_is_too_small(engine: Engine, tmp_path: Path) -> None:
    need(MEMORY / LIMIT, "memory cgroup")
    with cgroup(MEMORY, LIMIT, str(700 << 20)) as prefix:
        async with watched(engine, tmp_path, Launch("tiny-llama", tp=1, wrapper=prefix)) as watch:
            verdict = await watch.named("out_of_memory")
            assert any(line.startswith("cgroup: the OOM killer took") for line in verdict.evidence)


async def test_weights_on_a_slow_disk(engine: Engine, tmp_path: Path) -> None:
    # Half a megabyte at a time, of which each takes 9 s: whether the disk still gives depends on when it is looked at.
    with slow_disk(engine.models / "tiny-llama", 60_000) as (model, prefix):
        async with watched(engine, tmp_path, Launch(str(model), tp=1, wrapper=prefix)) as watch:
            verdict = await watch.named("storage")
            assert verdict.rank == "TP0"
            assert any("is on ext4" in line for line in verdict.evidence)


async def test_weights_that_are_still_downloaded(engine: Engine, tmp_path: Path) -> None:
    # Longer than the pieces of 10 MB in which the hub's client writes.
    model = copy_of(engine.models / "tiny-llama", tmp_path / "model", without="safetensors")
    with (model / "model.safetensors").open("wb") as file:
        file.truncate(400 << 20)
    with hub(model, 2_000_000) as endpoint:
        online = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        env = {**online, "HF_HOME": str(tmp_path / "hf")}
        async with watched(engine, tmp_path, Launch("kimi/tiny", tp=1, env=env)) as watch:
            verdict = await watch.named("downloading")
            assert "MB/s" in verdict.summary


async def test_nothing_is_said_of_a_good_start(engine: Engine, tmp_path: Path) -> None:
    said: list[str] = []
    async with watched(engine, tmp_path, Launch(model="tiny-llama", tp=1)) as watch:

        def ready(word: str, verdict: object) -> bool:
            said.append(getattr(verdict, "kind", ""))
            return word == "READY"

        await watch.until(ready, START)
        await asyncio.sleep(3)
        word, verdict = await watch.look()
        assert (word, verdict.kind) == ("READY", "none")
    assert set(said) == {"none"}
