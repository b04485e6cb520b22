"""The demo without a screen: the whole job, its report, and what it leaves behind."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from kimi_agent.shards.verify import verify
from kimi_console.demo.engine import Engine

from .conftest import CONSOLE, os_environment

STEPS = ["agent", "launched", "ready", "dump_started", "served", "dump_stopped", "verified", "stopped", "agent_stopped"]


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_the_whole_job_without_a_screen(
    built: Engine, state: dict[str, str], nothing_left: None, tmp_path: Path
) -> None:
    dump = tmp_path / "kept"
    done = subprocess.run(
        [CONSOLE, "demo", "--headless", "--json", "--dump", str(dump)],
        check=False,
        capture_output=True,
        text=True,
        env=os_environment(state),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert report["ok"] is True
    assert report["reasons"] == []
    assert report["model_class"] == "KimiK25ForConditionalGeneration"
    assert list(report["phases"]) == STEPS
    assert list(report["phases"].values()) == sorted(report["phases"].values())
    assert report["boundaries"] == [2, 3, 4]
    assert report["tokens_captured"] == report["tokens_served"] - report["requests"], "all but each last token"
    assert report["shards"] >= 1
    kept = verify(dump)
    assert kept.ok
    assert sum(shard.rows for shard in kept.shards) == report["tokens_captured"]
    assert report["home"] is None, "the demo's own files are gone"


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_an_interrupted_job_leaves_nothing_and_says_so(
    built: Engine, state: dict[str, str], nothing_left: None
) -> None:
    with subprocess.Popen(
        [CONSOLE, "demo", "--headless", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os_environment(state),
    ) as job:
        assert job.stderr is not None
        while "launched" not in job.stderr.readline():
            assert job.poll() is None, "it ended before it had launched anything"
        job.send_signal(signal.SIGINT)
        out, _ = job.communicate(timeout=120)
    assert job.returncode == 130
    report = json.loads(out)
    assert report["ok"] is False
    assert report["reasons"] == ["interrupted"]
    assert Path(report["home"]).is_dir(), "the server's log is kept for whoever wonders"


def test_without_an_engine_and_a_terminal_one_sentence_says_what_to_run(state: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [CONSOLE, "demo", "--headless", "--json"],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os_environment(state | {"XDG_CACHE_HOME": str(tmp_path / "empty")}),
    )
    assert done.returncode == 6
    assert done.stdout == ""
    assert done.stderr.strip() == (
        "kimi-console: The demo's engine is not built. Build it with: kimi-console demo --yes"
    )


def test_a_dump_is_never_put_where_something_is(built: Engine, state: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mine").touch()
    done = subprocess.run(
        [CONSOLE, "demo", "--headless", "--dump", str(tmp_path / "kept")],
        check=False,
        capture_output=True,
        text=True,
        env=os_environment(state),
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr
