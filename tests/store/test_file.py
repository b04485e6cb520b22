"""A file's lines, found by a thread: those of the agent's own reader, wherever chunks and line ends fall."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_console.source.logfile import log_lines
from kimi_console.store import file as store
from kimi_console.store.file import FileLines

LOGS = Path(__file__).parent.parent / "logs"


def scanned(path: Path) -> FileLines:
    """The file once it has been looked through."""
    lines = FileLines(path)
    lines._thread.join()
    return lines


@given(
    parts=st.lists(st.sampled_from([b"a", b"bc\xff", b"\n", b"\r", b"\r\n", b"\n\n"]), min_size=1),
    size=st.integers(1, 9),
)
def test_lines_end_as_everywhere_else(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], size: int) -> None:
    path = tmp_path_factory.mktemp("file") / "a.log"
    path.write_bytes(b"".join(parts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "BYTES", size)
        lines = scanned(path)
    assert lines.lines(0, len(lines)) == list(log_lines(path))
    lines.close()


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_real_logs_have_the_same_lines(path: Path) -> None:
    lines = scanned(path)
    expected = list(log_lines(path))
    assert lines.lines(0, len(lines)) == expected
    pattern = re.compile("error", re.IGNORECASE)
    places = [number for number, line in enumerate(expected) if pattern.search(line)]
    assert lines.matches(pattern, 0, len(lines)) == places
    assert lines.search(pattern, 0) == (places[0] if places else None)
    assert lines.search(pattern, len(lines) - 1, backward=True) == (places[-1] if places else None)
    lines.close()


def test_a_large_file_can_be_read_while_it_is_looked_through(tmp_path: Path) -> None:
    path = tmp_path / "big.log"
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(3_000_000)))
    lines = FileLines(path)
    while not len(lines):
        time.sleep(0.001)
    assert lines.line(0) == "line 0"
    lines._thread.join()
    assert len(lines) == 3_000_000
    assert lines.line(2_999_999) == "line 2999999"
    lines.close()
    lines.close()
