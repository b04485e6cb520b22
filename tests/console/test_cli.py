"""The command line as scripts see it: data on stdout, one line on stderr, exit codes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kimi_agent.errors import Exit
from kimi_agent.paths import Home
from kimi_agent.wire.codec import decode_event
from kimi_console.cli import main
from kimi_console.demo.engine import Engine
from kimi_console.source import local
from kimi_console.source.replay import open_events

LOGS = Path(__file__).parent.parent / "logs"
Here = Callable[..., "subprocess.CompletedProcess[str]"]
HINT = "Give the Python that runs SGLang with --python, or in the profile as [server] python."


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An operator's environment with an empty home."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "KIMI_", "SSH_"))}
    return kept | {"HOME": str(tmp_path)}


def run(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "kimi_console", *arguments],
        check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, env=environment,
    )  # fmt: skip


@pytest.fixture
def here(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Runs the command in this process, which has loaded already what it needs."""
    for name in set(os.environ) - set(environment):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", environment["HOME"])

    def run_here(*arguments: str) -> "subprocess.CompletedProcess[str]":
        code = main(arguments)
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run_here


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("frob",), "No such command 'frob'. See kimi-console --help."),
        (("replay",), "Missing argument 'FILE'. See kimi-console replay --help."),
        (("replay", "nowhere"), "cannot read nowhere: No such file or directory. Check the path and its permissions."),
        (("local",), f"which Python runs SGLang on this machine is not known. {HINT}"),
        (("local", "--python", "/nowhere"), f"there is no program /nowhere on this machine. {HINT}"),
        (("local", "--python", "true"), f"true is not a working Python. {HINT}"),
        (("local", "--python", sys.executable), f"{sys.executable} on this machine has no SGLang. {HINT}"),
        (("connect", "a b"), "'a b' is not a host. Write [user@]host[:port] or a name of your ssh config."),
        (
            ("connect", "h", "--ssh-config", "nowhere"),
            "there is no ssh config nowhere. Correct the path after --ssh-config.",
        ),
        (
            ("diagnose", "nowhere.log"),
            "cannot read nowhere.log: No such file or directory. Check the path and its permissions.",
        ),
        (
            ("local", "--profile", "nowhere.toml"),
            "cannot read profile nowhere.toml: No such file or directory. Give the path of a TOML profile.",
        ),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line_and_exit_2(here: Here, arguments: tuple[str, ...], said: str) -> None:
    done = here(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (Exit.USAGE, "", f"kimi-console: {said}\n")


@pytest.mark.parametrize(
    ("script", "said"),
    [("no program", "cannot be run: Exec format error"), ("#!/bin/sh\nexec sleep 600\n", "gave no answer within 1 s")],
)
def test_a_python_that_is_none_is_one_line_and_exit_2(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setattr(local, "ANSWER_WITHIN", 0.6)
    python = tmp_path / "python"
    python.write_text(script)
    python.chmod(0o755)
    done = here("local", "--python", str(python))
    assert (done.returncode, done.stderr) == (Exit.USAGE, f"kimi-console: {python} {said}. {HINT}\n")


@pytest.mark.parametrize("speed", ["0", "-1", "fast", "nan", "inf"])
def test_a_speed_must_be_positive(here: Here, speed: str) -> None:
    done = here("replay", "f", "--speed", speed)
    assert done.returncode == Exit.USAGE
    assert "is not a speed; write a number such as 8, or max" in done.stderr


def test_help_loads_neither_screen_nor_ssh_nor_a_loop(environment: dict[str, str]) -> None:
    program = "import sys; from kimi_console.cli import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)
    assert "diagnose" in done.stdout
    assert not {"textual", "asyncssh", "asyncio", "msgspec", "numpy", "rich"} & set(done.stdout.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "--headless", "--speed", "max", str(LOGS / "cpu-llama-tp2-ready.log")],
        ["replay", "--json", "--speed", "max", str(LOGS / "cpu-llama-tp2-ready.log")],
        ["diagnose", str(LOGS / "cpu-llama-tp2-ready.log")],
    ],
)
def test_without_a_screen_textual_is_never_loaded(environment: dict[str, str], arguments: list[str]) -> None:
    program = (
        f"import sys; from kimi_console.cli import main; code = main({arguments!r}); print(*sys.modules); exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert not {"textual", "rich", "asyncssh"} & set(done.stdout.rpartition("\n")[0].splitlines()[-1].split())


def test_a_replay_without_a_screen_prints_events_and_leaves_with_the_verdict(environment: dict[str, str]) -> None:
    log = str(LOGS / "cpu-hook-exception.log")
    done = run(environment, "replay", log, "--json", "--speed", "max")
    events = [decode_event(line.encode()) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (Exit.FAILED, "")
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    text = run(environment, "replay", log, "--headless", "--speed", "max")
    assert text.returncode == Exit.FAILED
    assert "READY → FAILED: RuntimeError: plugin writer: disk full (simulated)" in text.stdout


def test_diagnose_prints_the_stable_object(environment: dict[str, str]) -> None:
    done = run(environment, "diagnose", str(LOGS / "cpu-hook-exception.log"), "--json")
    report = json.loads(done.stdout)
    assert done.returncode == Exit.FAILED
    assert list(report) == ["status", "phase", "ranks", "verdict", "silent_s"]
    assert list(report["verdict"]) == ["kind", "rank", "summary", "confidence", "evidence", "advice"]
    assert (report["status"], report["verdict"]["kind"], report["verdict"]["rank"]) == ("failed", "exception", "TP1")
    assert list(report["ranks"]["TP0"]) == ["phase", "since_s", "state"]
    assert run(environment, "diagnose", str(LOGS / "cpu-deepseek-tp1-ready.log")).returncode == Exit.OK


@pytest.mark.parametrize("shape", ["cat LOG | CLI -", "gzip -c LOG | CLI -", "CLI <(cat LOG)", "CLI /dev/stdin < LOG"])
def test_diagnose_reads_what_is_piped_in(environment: dict[str, str], shape: str) -> None:
    cli = f"{sys.executable} -m kimi_console diagnose --json"
    command = shape.replace("CLI", cli).replace("LOG", str(LOGS / "cpu-hook-exception.log"))
    done = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (Exit.FAILED, "")
    assert json.loads(done.stdout)["verdict"]["rank"] == "TP1"


def test_a_pipe_that_replay_cannot_rewind_is_one_sentence(environment: dict[str, str]) -> None:
    command = f"{sys.executable} -m kimi_console replay --json <(cat {LOGS / 'cpu-hook-exception.log'})"
    done = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (Exit.USAGE, "", 1)
    assert done.stderr.endswith("is a pipe. Pipe it into: kimi-console replay -\n")


def test_diagnose_of_a_recording_says_what_the_log_said(environment: dict[str, str], tmp_path: Path) -> None:
    recording = tmp_path / "r.ndjson"
    recording.write_text(
        run(environment, "replay", str(LOGS / "h200-missing-cutlass.log"), "--json", "--speed", "max").stdout
    )
    done = run(environment, "diagnose", str(recording), "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]["kind"], report["phase"]) == (Exit.FAILED, "exception", "load weights")


def test_a_reader_that_leaves_is_no_traceback(environment: dict[str, str]) -> None:
    command = (
        f"{sys.executable} -m kimi_console replay --json --speed max {LOGS / 'cpu-hook-exception.log'} | head -n 1"
    )
    done = subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True, env=environment)
    assert done.stderr == ""
    assert decode_event(done.stdout.encode().strip()).seq == 1


def test_ctrl_c_is_130_without_a_traceback(environment: dict[str, str]) -> None:
    log = str(LOGS / "cpu-hook-exception.log")
    process = subprocess.Popen(
        [sys.executable, "-m", "kimi_console", "replay", "--headless", "--speed", "0.001", log],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors.strip()) == (Exit.INTERRUPTED, "")


def test_paths_version_completion_and_the_hosts_of_the_ssh_config(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host gpu-07 gpu-08\nHost *\n")
    assert run(environment, "--version").stdout.startswith("kimi-console ")
    assert f"config\t{tmp_path}/.config/kimi-console\n" in run(environment, "paths").stdout
    assert "_KIMI_CONSOLE_COMPLETE" in run(environment, "completion", "bash").stdout
    listed = run(environment, "connect")
    assert (listed.returncode, listed.stdout) == (Exit.OK, "gpu-07\ngpu-08\n")
    completing = environment | {
        "_KIMI_CONSOLE_COMPLETE": "bash_complete",
        "COMP_WORDS": "kimi-console connect gpu",
        "COMP_CWORD": "2",
    }
    assert run(completing).stdout == "plain,gpu-07\nplain,gpu-08\n"


@pytest.mark.engine
def test_local_follows_the_agent_of_this_machine_and_records_it(
    environment: dict[str, str], engine: Engine, tmp_path: Path, end_agent: Callable[[Home], None]
) -> None:
    home, recording = tmp_path / "agent", tmp_path / "r.kimirec"
    arguments = ["local", "--python", str(engine.python), "--home", str(home), "--json", "--record", str(recording)]
    process = subprocess.Popen(
        [sys.executable, "-m", "kimi_console", *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == Exit.INTERRUPTED
    assert [decode_event(line.encode()).seq for line in lines] == [1, 2]
    assert [event.seq for event in open_events(recording)][:2] == [1, 2]
    end_agent(Home(home))


@pytest.mark.engine
def test_an_agent_that_cannot_start_says_why_in_one_line(
    environment: dict[str, str], engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    done = run(environment, "local", "--python", str(engine.python), "--home", str(tmp_path / "file"), "--json")
    assert (done.returncode, done.stdout) == (Exit.UNAVAILABLE, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"kimi-console: cannot make {tmp_path / 'file'}")
