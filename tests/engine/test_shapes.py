"""Every shape a log comes in: all versions' wording, wrapped by containers, replaced by loggers, mixed with noise."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_agent.engine.loglines import parse, split_lines
from kimi_agent.engine.logscan import LogScanner
from kimi_agent.engine.phases import Entered, PhaseTracker, Progress
from kimi_agent.model.phases import ORDER

from .starts import VERSIONS, VLLM, start

LOGS = Path(__file__).parents[1] / "logs"
FRAME = '  File "a.py", line 1, in f'
REAL = {path.stem: path.read_bytes() for path in sorted(LOGS.glob("*.log"))}


def scan(data: bytes, *, chunk: int = 1 << 20, ranks: tuple[str, ...] = ()) -> PhaseTracker:
    tracker = PhaseTracker(ranks)
    scanner = LogScanner(tracker)
    for begin in range(0, len(data), chunk):
        scanner.feed(data[begin : begin + chunk])
    scanner.finish()
    return tracker


def text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def outcome(tracker: PhaseTracker) -> dict[str, object]:
    """What a reader of the log concludes from it."""
    failures = tracker.failures
    return {
        "phases": tracker.phases, "ready": tracker.ready, "first": str(tracker.first_exception),
        "rank": tracker.first_exception.rank if tracker.first_exception else None, "failed": failures.failed,
        "port": failures.port_line, "memory": failures.memory_line, "died": failures.died,
        "stopping": tracker.stopping, "follower": tracker.follower, "unmatched": tracker.unmatched,
        "hints": set(tracker.hints.mentions),
    }  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_a_start_in_every_versions_words_passes_every_phase_on_both_ranks(version: str) -> None:
    tracker = PhaseTracker()
    changes = [change for line in start(version) for change in tracker.feed(parse(line))]
    assert tracker.ready, tracker.phases
    assert len(tracker.phases) == 2
    assert tracker.unmatched == 0
    for rank in tracker.phases:
        entered = [change.phase for change in changes if isinstance(change, Entered) and change.rank == rank]
        wanted = ["join ranks", "load weights", "after load", "KV cache", "graphs", "port", "warm-up", "ready"]
        assert entered == [phase for phase in wanted if phase != "KV cache" or version not in VERSIONS[:3]]
        assert rank == tracker.ranks[0] or tracker.since[rank] > 0
    assert any(isinstance(change, Progress) and change.phase == "load weights" for change in changes)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("late", [0, 1])
def test_how_many_ranks_are_past_a_phase_is_known_at_every_line(version: str, late: int) -> None:
    """One rank falls silent at its load: the other goes on, and the late one is the one that is behind."""
    lines = start(version)
    tag = (" TP0", " TP1")[late]
    begun = next(number for number, line in enumerate(lines) if tag in line and "Load weight begin" in line)
    rest = [line for line in lines[begun + 1 :] if tag not in line and "% Completed" not in line and "%|" not in line]
    cut = next(n for n, line in enumerate(rest) if "max_total_num_tokens" in line or "Started server" in line)
    tracker = scan(text([*lines[: begun + 1], *rest[:cut]]))
    places = sorted(tracker.phases.items(), key=lambda item: ORDER[item[1]])
    assert places[0][0].startswith(("TP0", "TP1")[late])
    assert (places[0][1], places[1][1]) == ("load weights", "graphs")


def test_vllm() -> None:
    tracker = scan(text(VLLM))
    assert tracker.phases == {"TP0": "ready", "TP1": "ready"}
    halfway = scan(text(VLLM[:9]))
    assert halfway.phases == {"TP0": "after load", "TP1": "load weights"}
    assert tracker.unmatched == 0


def test_vllms_own_clock_is_no_progress() -> None:
    head = "(EngineCore pid=200) INFO 11-29 13:{}:00 [shm_broadcast.py:466] "
    complaint = "No available shared memory broadcast block found in 60 seconds."
    tracker = scan(text([*VLLM[:9], *(head.format(minute) + complaint for minute in range(46, 51))]))
    assert (tracker.last_time or 0.0) - (tracker.progress_time or 0.0) > 200
    assert tracker.hints.mentions["broadcast"].count == 5


def test_an_exception_whose_every_line_has_a_header_is_read_and_given_to_its_worker() -> None:
    head = "(Worker_TP1 pid=302) ERROR 11-29 13:46:00 [multiproc_executor.py:597] "
    tracker = scan(text([*VLLM[:9], *(head + line for line in (
        "WorkerProc hit an exception.", "Traceback (most recent call last):", '  File "/x/model.py", line 7, in run',
        "    return self.run()", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"))]))  # fmt: skip
    first = tracker.first_exception
    assert first is not None
    assert (first.rank, first.type) == ("TP1", "torch.OutOfMemoryError")
    assert first.where == 'File "/x/model.py", line 7, in run'


WRAPPERS: dict[str, Callable[[str], str]] = {
    "compose": lambda line: f"sglang-kimi-k2-1  | {line}",
    "kubectl": lambda line: f"[pod/kimi-7c9f/server] {line}",
    "kubectl --timestamps": lambda line: f"2026-11-29T12:45:04.123456789Z {line}",
    "kubelet": lambda line: f"2026-11-29T12:45:04.123456789+00:00 stdout F {line}",
    "docker logs -t in compose": lambda line: f"kimi | 2026-11-29T12:45:04.1Z {line}",
    "journal, ISO": lambda line: f"2026-11-29T12:45:04+0000 gpu-07 sglang[4711]: {line}",
    "kubectl --prefix --timestamps": lambda line: f"[pod/kimi-7c9f/server] 2026-11-29T12:45:04.123456789Z {line}",
    "journal": lambda line: f"Nov 29 13:45:04 gpu-07 sglang[4711]: {line}",
    "ray": lambda line: f"(SGLangEngine pid=12, ip=10.0.0.7) {line}",
    "docker's file": lambda line: json.dumps(
        {"log": f"{line}\n", "stream": "stderr", "time": "2026-11-29T12:45:04.1Z"}
    ),
    "colours": lambda line: f"\x1b[32m{line[:30]}\x1b[0m{line[30:]}",
    "carriage return": lambda line: f"{line}\r",
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", REAL)
def test_a_wrapper_does_not_change_what_a_log_says(wrapper: str, name: str) -> None:
    lines = split_lines(REAL[name] + b"\n", b"")[0]
    assert outcome(scan(text([WRAPPERS[wrapper](line) for line in lines]))) == outcome(scan(REAL[name]))


LOGGERS: dict[str, Callable[[str, str, str], str]] = {
    "levels": lambda time, rank, message: f"{time},123 - sglang.srt.managers - INFO - {message}",
    "loguru": lambda time, rank, message: f"{time}.123 | INFO     | sglang.srt.model:load:12 - {message}",
    "ISO": lambda time, rank, message: f"{time.replace(' ', 'T')}.123Z INFO {message}",
    "bracketed": lambda time, rank, message: f"[{time},123] [INFO] [sglang.srt.x] {message}",
    "coloured": lambda time, rank, message: f"\x1b[2m{time}\x1b[0m \x1b[32m[INFO]\x1b[0m {message}",
    "JSON": lambda time, rank, message: json.dumps({"asctime": f"{time},123", "levelname": "INFO", "message": message}),
}


def replaced(lines: list[str], logger: Callable[[str, str, str], str]) -> list[str]:
    made = []
    for line in lines:
        head, separator, message = line.partition("] ")
        if line.startswith("[") and separator:
            time, _, rank = head[1:].partition(" TP")
            made.append(logger(time, rank, message))
        else:
            made.append(line)
    return made


@pytest.mark.parametrize("logger", LOGGERS)
def test_a_logger_that_drops_the_rank_tags_leaves_how_many_ranks_are_past_each_phase(logger: str) -> None:
    lines = start("0.5.23")
    whole = scan(text(replaced(lines, LOGGERS[logger])))
    assert (whole.phases, whole.untagged) == ({"TP0": "ready", "TP1": "ready"}, True)
    late = next(number for number, line in enumerate(lines) if "TP1] Load weight end" in line)
    half = scan(text(replaced(lines[:late], LOGGERS[logger])))
    assert sorted(half.phases.values()) == ["after load", "load weights"]
    tagged = scan(text([line.replace("TP0] ", "TP0] [INFO] ") for line in lines]))
    assert (tagged.phases, tagged.untagged) == ({"TP0": "ready", "TP1": "ready"}, False)


def test_a_record_of_several_lines_is_a_whole_traceback() -> None:
    message = (
        'Scheduler hit an exception: Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: no'
    )
    lines = [json.dumps({"time": "2026-11-29T13:45:04Z", "level": "ERROR", "message": message, "tp_rank": 1})]
    first = scan(text(lines), ranks=("TP0", "TP1")).first_exception
    assert first is not None
    assert (first.rank, str(first)) == ("TP1", "ValueError: no")


@pytest.mark.parametrize("tag", ["DP0 PP1 TP3 EP3", "TP3 EP3 PP1 DP0", "DP0 TP3 EP3 PP1"])
def test_a_rank_tag_is_a_set(tag: str) -> None:
    assert parse(f"[2026-11-29 13:45:04 {tag}] x").rank == "DP0 PP1 TP3 EP3"


def test_vendor_lines_in_between_change_nothing_and_cost_little() -> None:
    vendors = [f"gpu-07:{41230 + n % 8}:41999 [{n % 8}] NCCL INFO Channel {n}/0 : 3[3] -> 4[4]" for n in range(20_000)]
    vendors += [f"[aiter] type hints mismatch, override to --> mha_fwd({n})" for n in range(20_000)]
    lines = start("0.5.23")
    middle = next(number for number, line in enumerate(lines) if "Load weight begin" in line)
    tracker = scan(text([*lines[:middle], *vendors, *lines[middle:]]))
    assert outcome(tracker) == outcome(scan(text(lines)))
    assert tracker.lines == len(lines) + 40_000


def test_a_header_glued_to_a_bar_or_to_a_hundred_kilobytes_is_found() -> None:
    header = "[2026-11-29 13:45:04 TP1] Load weight end. elapsed=1.0 s, type=X, avail mem=1 GB"
    bar = "Capturing batches (bs=8 avail_mem=7.10 GB):  43%|####    | 10/23 [00:04<00:05,  2.2it/s]"
    for glue in (bar, "x" * 100_000, "\u00e9" * 50_000, "https://nanobind/refleaks.html"):
        tracker = scan(f"{glue}{header}\n".encode(), ranks=("TP0", "TP1"))
        assert tracker.phases["TP1"] == "after load", glue[:20]


@pytest.mark.parametrize(
    "message",
    ["Loading model weights started", "Model weights loaded in 12.1 s", "KV cache allocated: 12.4 GB",
     "Begin capturing graphs", "The engine is up and running", "Distributed init finished", "Finished warm-up"],
)  # fmt: skip
def test_a_rewording_is_counted_with_the_seconds_until_the_next_known_line(message: str) -> None:
    lines = start("0.5.23")
    place = next(number for number, line in enumerate(lines) if "Load weight begin" in line)
    later = [line.replace("13:", "14:") for line in lines[place:]]
    tracker = scan(text([*lines[:place], f"[2026-11-29 13:30:00 TP0] {message}", *later]))
    assert tracker.unmatched == 1
    assert tracker.unmatched_seconds == pytest.approx(1800, abs=120)


@pytest.mark.parametrize("name", REAL)
def test_nothing_of_a_real_log_of_a_known_version_is_taken_for_a_rewording(name: str) -> None:
    assert scan(REAL[name]).unmatched == 0


def test_batch_access_and_vendor_lines_are_never_counted_as_rewordings() -> None:
    noise = [
        "[2026-11-29 13:45:04 TP0] Decode batch, #running-req: 1, cuda graph: True, gen throughput (token/s): 71.23",
        '[2026-11-29 13:45:04] INFO:     127.0.0.1:1 - "POST /server/weights/loading/started HTTP/1.1" 200 OK',
        "gpu-07:1:2 [0] NCCL INFO Init COMPLETE - server graph loaded", "[aiter] kernel graph capture started",
        "Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:01<00:00]",
    ]  # fmt: skip
    assert scan(text(noise), ranks=("TP0", "TP1")).unmatched == 0


LINES = st.sampled_from([line for data in REAL.values() for line in data.replace(b"\r", b"\n").split(b"\n")])
OTHER = st.binary(max_size=60) | st.sampled_from([line.encode() for line in (*VLLM, *start("0.4.6"))])


@given(st.lists(LINES | OTHER, max_size=60), st.integers(1, 97))
def test_how_the_bytes_arrive_changes_nothing(lines: list[bytes], size: int) -> None:
    data = b"\n".join(lines)
    whole, pieces = scan(data), scan(data, chunk=size)
    assert outcome(whole) == outcome(pieces)
    assert whole.lines == pieces.lines


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("size", [7, 1000, 1 << 20])
def test_the_clock_is_read_of_skipped_lines_too(name: str, size: int) -> None:
    slow = PhaseTracker()
    for line in split_lines(REAL[name] + b"\n", b"")[0]:
        slow.feed(parse(line))
    fast = scan(REAL[name] + b"\n", chunk=size)
    assert (fast.last_time, fast.progress_time, fast.first_time) == (
        slow.last_time,
        slow.progress_time,
        slow.first_time,
    )
    assert fast.since == slow.since


@given(st.lists(LINES | OTHER, max_size=60))
def test_what_is_skipped_as_bytes_would_have_changed_nothing(lines: list[bytes]) -> None:
    data = b"\n".join(lines) + b"\n"
    slow = PhaseTracker()
    for line in split_lines(data, b"")[0]:
        slow.feed(parse(line))
    fast = scan(data)
    assert outcome(fast) == outcome(slow)
    assert fast.lines == slow.lines


@given(st.lists(LINES, max_size=40), st.sampled_from(sorted(WRAPPERS)))
def test_wrapped_lines_mean_the_same_in_any_order(lines: list[bytes], wrapper: str) -> None:
    plain = split_lines(b"\n".join(lines) + b"\n", b"")[0]
    assert outcome(scan(text([WRAPPERS[wrapper](line) for line in plain]))) == outcome(scan(text(plain)))


def test_a_librarys_header_without_a_year_does_not_move_the_clock() -> None:
    lines = start("0.5.23")
    other = "INFO 11-29 16:19:26 __init__.py:190] Automatically detected platform cuda."
    plain, mixed = scan(text(lines)), scan(text([other, *lines[:4], other, *lines[4:]]))
    assert (mixed.first_time, mixed.last_time, mixed.progress_time) == (
        plain.first_time, plain.last_time, plain.progress_time,
    )  # fmt: skip
    assert mixed.phases == plain.phases


def test_vllms_engine_core_is_no_rank() -> None:
    core = "(EngineCore_DP0 pid=9) INFO 09-21 12:30:{:02d} [x.py:1] {}"
    words = ["rank 0 in world size 1 is assigned as DP rank 0, PP rank 0, TP rank 0, EP rank 0",
             "Loading model from scratch...", "Model loading took 2.2845 GiB and 74.270197 seconds",
             "GPU KV cache size: 855,790 tokens"]  # fmt: skip
    assert scan(text([core.format(n, word) for n, word in enumerate(words)])).phases == {"TP0": "KV cache"}
    both = [line.replace("(EngineCore pid", "(EngineCore_DP0 pid") for line in VLLM]
    assert scan(text(both)).phases == {"TP0": "ready", "TP1": "ready"}


def test_a_tag_alone_is_a_header_too() -> None:
    tracker = scan(b"[TP0] Load weight begin. avail mem=60.87 GB\n[TP1] Load weight begin. avail mem=61.11 GB\n")
    assert tracker.phases == {"TP0": "load weights", "TP1": "load weights"}


def test_of_a_log_with_several_starts_the_last_one_counts() -> None:
    crash = ["[2026-11-29 12:00:01 TP0] Scheduler hit an exception: Traceback (most recent call last):", FRAME,
             "ValueError: of the first start"]  # fmt: skip
    first, second = start("0.5.23"), start("0.5.23")
    again = scan(text([*first[:6], *crash, *second]))
    assert (again.ready, again.first_exception, again.starts) == (True, None, 2)
    half = scan(text([*first, *second[:12]]))
    assert not half.ready
    assert set(half.phases) == {"TP0", "TP1"}
    assert (half.progress_time or 0.0) >= (half.first_time or 0.0)
    known = scan(text([*first, *second[:12]]), ranks=("TP0", "TP1"))
    assert known.ready, "of a run under watch the log is one start's"


@pytest.mark.parametrize("version", ["0.4.9", "0.5.9", "0.5.23"])
def test_a_rank_that_never_wrote_a_line_is_known_from_the_servers_arguments(version: str) -> None:
    lines = [line for line in start(version) if " TP1]" not in line]
    tracker = scan(text(lines[:6]))
    assert tracker.phases["TP1"] == "import"
    assert tracker.phases["TP0"] != "import"
