"""Comparing two files, whatever they are."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from kimi_agent.record.format import SUFFIX
from kimi_agent.record.reader import Recording
from kimi_console.compare.comparison import Comparison, compare
from kimi_console.source.importing import batched, import_events
from kimi_console.source.kinds import readable
from kimi_console.source.replay import open_events


@contextmanager
def whole(path: Path) -> Iterator[Recording]:
    """A file as a recording, for as long as the block runs; anything else than a recording is read to its end first.

    Raises:
        UsageError: it cannot be read, or is nothing that can be played.
    """
    with ExitStack() as stack:
        if readable(path) != "recording":
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kimi-replay-")))
            import_events(batched(open_events(path)), directory / f"whole{SUFFIX}", scratch=True)
            path = directory / f"whole{SUFFIX}"
        yield stack.enter_context(closing(Recording(path)))


def compare_files(a: Path, b: Path) -> Comparison:
    """Compare the last runs of two files.

    Raises:
        UsageError: one cannot be read, or is nothing that can be played.
    """
    with whole(a) as first, whole(b) as second:
        return compare(first, a.name, second, b.name)
