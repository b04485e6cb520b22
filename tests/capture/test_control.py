"""The plugin's socket, its guard, and what it says about where it runs."""

import fcntl
import json
import socket
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kimi_capture import hook
from kimi_capture.checks import fingerprint
from kimi_capture.control import MAX_LINE, Control, Refused, peer_uid, stacks
from kimi_capture.facts import rank_tag, redact
from kimi_capture.guard import LIMIT, Guard

from .conftest import ask


def refuse(request: dict[str, Any]) -> dict[str, Any]:
    raise Refused("no", "not now", "later")


def broken(request: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("boom")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "cap-1.sock"
    Control(path, {"echo": lambda request: {"got": request["text"]}, "refuse": refuse, "broken": broken})
    return path


def raw(path: Path, data: bytes) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as lines:
        connection.settimeout(20)
        connection.connect(str(path))
        connection.sendall(data)
        answer: dict[str, Any] = json.loads(lines.readline())
    return answer


def test_requests_are_answered_in_turn_on_one_connection(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as lines:
        connection.connect(str(path))
        connection.sendall(b'{"op":"echo","text":"a"}\n{"op":"echo","text":"b"}\n')
        assert [json.loads(lines.readline())["got"] for _ in range(2)] == ["a", "b"]


def test_only_its_owner_can_open_the_socket(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    one, other = socket.socketpair()
    with one, other:
        assert peer_uid(one) == path.stat().st_uid


@pytest.mark.parametrize(
    ("line", "slug"),
    [
        (b"nonsense\n", "bad-request"),
        (b"[1]\n", "bad-request"),
        (b'{"op":"launch"}\n', "bad-request"),
        (b'{"op":"refuse"}\n', "no"),
        (b'{"op":"broken"}\n', "internal"),
        (b'{"op":"echo"}\n', "internal"),
    ],
)
def test_a_bad_request_gets_an_answer_and_the_socket_lives(path: Path, line: bytes, slug: str) -> None:
    answer = raw(path, line)
    assert (answer["ok"], answer["slug"]) == (False, slug)
    assert ask(path, {"op": "echo", "text": "still"})["got"] == "still"


def test_an_endless_line_is_cut_off(path: Path) -> None:
    assert raw(path, b"x" * (MAX_LINE + 1))["slug"] == "too-long"


def test_a_slow_operation_holds_up_nobody_else(tmp_path: Path) -> None:
    release = threading.Event()

    def slow(request: dict[str, Any]) -> dict[str, Any]:
        release.wait(20)
        return {}

    path = tmp_path / "s.sock"
    Control(path, {"slow": slow, "fast": lambda request: {}})
    waiting = threading.Thread(target=ask, args=(path, {"op": "slow"}))
    waiting.start()
    assert ask(path, {"op": "fast"}) == {"ok": True}
    assert waiting.is_alive()
    release.set()
    waiting.join(20)


def test_stacks_name_the_thread_and_the_function() -> None:
    assert "test_stacks_name_the_thread_and_the_function" in stacks()
    assert "MainThread" in stacks()


def test_a_stack_is_whole_while_its_generators_come_and_go(tmp_path: Path) -> None:
    """SGLang's loop takes a lock in a context manager each step; a stack without the loop names nothing."""
    ended = threading.Event()
    file = (tmp_path / "lock").open("w")

    @contextmanager
    def held() -> Iterator[None]:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def the_event_loop() -> None:
        while not ended.is_set():
            with held():
                pass

    looping = threading.Thread(target=the_event_loop, name="loop")
    looping.start()
    with ThreadPoolExecutor(1) as younger:  # as the plugin's own thread is: its stack comes first
        seen = [younger.submit(stacks).result() for _ in range(100)]
    ended.set()
    looping.join()
    file.close()
    assert sum("the_event_loop" not in text for text in seen) == 0


def test_a_failure_is_counted_reported_and_swallowed() -> None:
    guard = Guard()
    reasons: list[str] = []
    guard.on_limit = reasons.append

    @guard
    def fails() -> None:
        raise RuntimeError("no hidden states")

    for _ in range(LIMIT):
        assert reasons == []
        fails()
    assert (guard.errors, guard.last_error) == (LIMIT, "fails: RuntimeError: no hidden states")
    assert len(reasons) == 1


def test_a_process_that_is_no_scheduler_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIMI_CAPTURE_SOCKETS", str(tmp_path))
    hook.register()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("title", "rank"),
    [
        ("sglang::scheduler", "TP0"),
        ("sglang::scheduler_TP3", "TP3"),
        ("sglang::scheduler_DP0_TP1", "DP0 TP1"),
        ("sglang::scheduler_DP1_PP0_ATTN_CP2_MOE_DP0_TP5_EP5", "DP1 PP0 ATTN_CP2 MOE_DP0 TP5 EP5"),
    ],
)
def test_a_rank_is_spelled_as_in_the_log(title: str, rank: str) -> None:
    assert rank_tag(title) == rank


def test_keys_do_not_reach_the_manifest() -> None:
    argv = (
        "python",
        "--api-key",
        "s3cret",
        "--admin-api-key=s3cret",
        "--port",
        "1",
        "--ssl-keyfile-password",
        "s3cret",
    )
    assert "s3cret" not in " ".join(redact(argv))
    assert redact(argv)[4:6] == ("--port", "1")


def test_a_changed_function_has_another_fingerprint() -> None:
    assert fingerprint(refuse) != fingerprint(broken)
