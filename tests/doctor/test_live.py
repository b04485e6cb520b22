"""The doctor beside the real server: each cause by its name and its rank, within a minute of the last sign of life."""

import fcntl
import json
import os
import signal
import socket
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from kimi_agent.doctor.rules import heartbeat
from kimi_agent.host.proc import port_holder
from kimi_agent.model.phases import ORDER
from kimi_console.demo.engine import Engine

from .watching import WITHIN, Launch, Watch, watched

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("py_spy")]

START = 600.0
"""Seconds within which a server gets there on a crowded machine."""
ACCEPTED = 10.0
"""Seconds within which a stopped or killed rank is named."""


def ask(port: int) -> None:
    """A request that decodes for a while."""
    body = {"input_ids": list(range(20, 80)), "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with suppress(OSError):
        urllib.request.urlopen(request, timeout=120).read()


async def stop_and_name(watch: Watch, rank: str) -> None:
    """Stop a rank; it is named in time, and its stacks are looked at."""
    os.kill(watch.pid(rank), signal.SIGSTOP)
    word, verdict, took = await watch.until(lambda _, verdict: verdict.kind != "none", ACCEPTED)
    assert (word, verdict.kind, verdict.rank) == ("HUNG", "straggler", rank)
    assert verdict.summary.startswith(f"{rank} is stopped. ")
    assert took <= ACCEPTED
    watch.note(verdict, took)
    assert f"resume it: kill -CONT {watch.pid(rank)}, if nobody debugs it" in verdict.advice


async def test_a_rank_stopped_or_killed_is_named_within_seconds(engine: Engine, tmp_path: Path) -> None:
    async with watched(engine, tmp_path) as watch:
        await watch.until(lambda *_: watch.tracker.phases["TP1"] == "load weights", START)
        await stop_and_name(watch, "TP1")
        # The other rank goes on to the barrier after loading, where the close look finds it.
        _, verdict, _ = await watch.until(
            lambda _, verdict: any(line.startswith("stack: TP0") for line in verdict.evidence), 60
        )
        assert any(line.startswith("a crash (2 of 2 ranks alive)") for line in verdict.ruled_out)
        os.kill(watch.pid("TP1"), signal.SIGCONT)

        await watch.until(lambda word, _: word == "READY", START)
        for rank in ("TP0", "TP1"):
            order = [ORDER[change.phase] for change in watch.entered if change.rank == rank]
            assert order == sorted(set(order))
        assert {"join ranks", "load weights", "after load", "graphs", "warm-up", "ready"} <= {
            change.phase for change in watch.entered if change.rank == "TP1"
        }
        assert (port_holder(watch.port) or "").startswith(f"pid {watch.process.pid} (")
        assert {sample.rank for sample in watch.sampler.sample()} == {"main", "TP0", "TP1", "detokenizer"}
        assert "/v1/loads" not in watch.tail().partition("fired up")[2]

        await stop_and_name(watch, "TP1")
        # The heartbeat alone would have told it too, without a rank: HTTP answers all the while.
        await watch.until(lambda *_: watch.evidence is not None and heartbeat(watch.evidence) is not None, 30)
        os.kill(watch.pid("TP1"), signal.SIGCONT)
        await watch.until(lambda word, _: word == "READY", 30)

        client = threading.Thread(target=ask, args=(watch.port,))
        client.start()
        await watch.until(lambda *_: watch.state.run.throughput.running, 30)  # type: ignore[union-attr]
        await stop_and_name(watch, "TP1")
        os.kill(watch.pid("TP1"), signal.SIGCONT)
        await watch.until(lambda word, _: word == "READY", 30)

        os.kill(watch.pid("TP1"), signal.SIGKILL)
        word, verdict, took = await watch.until(lambda _, verdict: verdict.kind != "none", ACCEPTED)
        assert (word, verdict.kind, verdict.rank) == ("FAILED", "dead_rank", "TP1")
        watch.note(verdict, took)
        client.join()


async def test_a_rank_killed_while_it_loads(engine: Engine, tmp_path: Path) -> None:
    async with watched(engine, tmp_path, Launch("tiny-llama")) as watch:
        await watch.until(lambda *_: watch.tracker.phases["TP0"] == "load weights", START)
        os.kill(watch.pid("TP0"), signal.SIGKILL)
        word, verdict, took = await watch.until(lambda _, verdict: verdict.kind != "none", ACCEPTED)
        assert (word, verdict.kind, verdict.rank) == ("FAILED", "dead_rank", "TP0")
        watch.note(verdict, took)


async def test_all_ranks_stuck_in_their_start(engine: Engine, tmp_path: Path) -> None:
    launch = Launch("tiny-llama", tp=1, env={"SGLANG_TEST_STUCK_SCHEDULER_INIT": "600"})
    async with watched(engine, tmp_path, launch) as watch:
        verdict = await watch.named("deadlock")
        assert (verdict.rank, verdict.summary) == ("TP0", "TP0 stands still in Scheduler.__init__; nothing computes")
        assert any(line.startswith("stack: TP0: ") and "scheduler.py" in line for line in verdict.evidence)
        assert any("1 of 1 ranks unmoved in two looks" in line for line in verdict.evidence)


async def test_one_rank_raises_and_the_other_is_not_blamed(engine: Engine, tmp_path: Path) -> None:
    async with watched(engine, tmp_path, Launch("tiny-llama", fault="load-raises:1")) as watch:
        verdict = await watch.named("exception")
        assert verdict.rank == "TP1"
        assert "a weight of layer 3 has the wrong shape" in verdict.summary


async def test_the_model_forgets_the_states_in_its_forward_pass(engine: Engine, tmp_path: Path) -> None:
    async with watched(engine, tmp_path, Launch(tp=1, fault="forward-forgets", layers=(2, 3, 4))) as watch:
        verdict = await watch.named("capture_patch")
        assert any("too many values to unpack" in line for line in verdict.evidence)


async def test_a_lock_that_nobody_holds_then_one_that_is_held_then_a_compiler_at_work(
    engine: Engine, tmp_path: Path
) -> None:
    baton, lock = (tmp_path / name / "lock" for name in ("kimi_old", "kimi_slow"))
    for path in (baton, lock):
        path.parent.mkdir()
        path.touch()
    launch = Launch("tiny-llama", tp=1, fault="compiles", env={"TORCH_EXTENSIONS_DIR": str(tmp_path)})
    async with watched(engine, tmp_path, launch) as watch:
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            verdict = await watch.named("lock_wait")
            assert verdict.rank == "TP0"
            assert "a dead process left behind" in verdict.summary
            assert any(f"rm {baton}" in line for line in verdict.advice)

            baton.unlink()
            _, verdict, took = await watch.until(lambda _, verdict: "holds" in verdict.summary, WITHIN)
            assert (verdict.kind, verdict.rank) == ("lock_wait", "TP0")
            assert f"pid {os.getpid()} (" in verdict.summary
            watch.note(verdict, took)
        word, verdict, took = await watch.until(lambda _, verdict: verdict.kind == "compiling", WITHIN)
        assert (word, verdict.kind, verdict.rank) == ("SLOW", "compiling", "TP0")
        watch.note(verdict, took)


async def test_taken_ports_are_told_before_the_server_gets_there(engine: Engine, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for launch in (Launch(port=port), Launch(flags=("--dist-init-addr", f"127.0.0.1:{port}"))):
            async with watched(engine, tmp_path, launch) as watch:
                verdict = await watch.named("port_in_use", 60)
                assert f"pid {os.getpid()} (" in verdict.summary
                assert str(port) in verdict.summary


async def test_a_missing_tokenizer(engine: Engine, tmp_path: Path) -> None:
    model = copy_of(engine.models / "tiny-llama", tmp_path / "model", without="token")
    async with watched(engine, tmp_path, Launch(model=str(model), tp=1)) as watch:
        verdict = await watch.named("exception")
        assert any("tokenizer" in line for line in verdict.advice)


async def test_a_proxy_in_the_environment_that_swallows_the_warm_up(engine: Engine, tmp_path: Path) -> None:
    proxies = {"http_proxy": "http://user:secret@127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}
    async with watched(engine, tmp_path, Launch(model="tiny-llama", tp=1, env=proxies)) as watch:
        verdict = await watch.named("proxy")
        assert "http_proxy" in verdict.summary
        assert "secret" not in repr(verdict)


async def test_a_capture_plugin_that_sglang_does_not_load(engine: Engine, tmp_path: Path) -> None:
    launch = Launch("tiny-llama", tp=1, plugin=True, env={"SGLANG_PLUGINS": "another"})
    async with watched(engine, tmp_path, launch) as watch:
        verdict = await watch.named("plugin_missing")
        assert "TP0" in verdict.summary


def copy_of(model: Path, to: Path, without: str = "") -> Path:
    """A copy of a model's directory, by links, without the files whose name holds a word."""
    to.mkdir()
    for file in model.iterdir():
        if not without or without not in file.name:
            (to / file.name).symlink_to(file.resolve())
    return to
