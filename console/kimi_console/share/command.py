"""`replay FILE --export OUT`."""

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

from kimi_agent.record.format import SUFFIX
from kimi_agent.record.reader import Recording
from kimi_console.compare.files import whole
from kimi_console.share.export import Wanted, export
from kimi_console.source.player import Player
from kimi_console.source.when import parse_at


def export_file(
    file: Path, out: Path, begin: str | None, end: str | None, *, anonymise: bool, theme: str | None
) -> dict[str, int]:
    """Write a slice of a file, or the screen at its end; what was replaced in it.

    Raises:
        UsageError: the file cannot be read, or the other one not be written.
    """
    with whole(file) as recording:
        first, last = (parse_at(text, recording.begin) if text else None for text in (begin, end))
        wanted = Wanted(out, first, last, anonymise)
        if wanted.kind != "screen":
            return export(recording, wanted)
        with tempfile.TemporaryDirectory(prefix="kimi-replay-") as directory:
            part = Path(directory) / f"{'screen' if anonymise else file.stem}{SUFFIX}"
            report = export(recording, replace(wanted, path=part))
            from kimi_console.tui.picture import picture  # noqa: PLC0415 - textual costs 0.2 s

            player = Player(Recording(part), part.stem)
            asyncio.run(picture(player, out, theme=theme))
            return report
