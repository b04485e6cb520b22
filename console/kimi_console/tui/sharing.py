"""Writing what is on the screen to a file: the slice that is played, its log, its state, the screen itself."""

import asyncio
from pathlib import Path

from textual.screen import Screen

from kimi_agent.errors import KimiError, UsageError
from kimi_console.share.export import KINDS, Wanted, export, report_words
from kimi_console.share.writing import new_file
from kimi_console.source.player import Player
from kimi_console.source.when import parse_at
from kimi_console.tui.screens.ask import Ask

ANONYMISE = "anonymise"
HINT = f"a file ({' '.join(KINDS)}), then from and to if not all, then {ANONYMISE}"


class Sharing:
    """Asks what to write, and writes it."""

    def __init__(self, screen: Screen[None], player: Player) -> None:
        self._screen = screen
        self._player = player

    def ask(self) -> None:
        """Ask for a file, and what of it."""

        def answered(text: str | None) -> None:
            if text:
                self._screen.run_worker(self._write(text), group="share", exit_on_error=False)

        self._screen.app.push_screen(Ask("Write to", HINT), answered)

    async def _write(self, text: str) -> None:
        try:
            wanted = self._wanted(text.split())
            if wanted.kind == "screen":
                told = self._picture(wanted)
            else:
                report = await asyncio.to_thread(export, self._player.recording, wanted)
                told = f"; replaced: {report_words(report)}" if wanted.anonymise else ""
        except KimiError as error:
            self._screen.notify(str(error), severity="error", markup=False)
            return
        self._screen.notify(f"wrote {wanted.path}{told}", timeout=10, markup=False)

    def _wanted(self, words: list[str]) -> Wanted:
        anonymise = ANONYMISE in words
        path, *times = [word for word in words if word != ANONYMISE]
        if len(times) > 2:
            raise UsageError("a file, a beginning and an end are enough", f"Write {HINT}.")
        moments = [parse_at(time, self._player.begin) for time in times]
        begin, end = [*moments, None, None][:2]
        return Wanted(Path(path).expanduser(), begin, end, anonymise)

    def _picture(self, wanted: Wanted) -> str:
        if wanted.anonymise:
            raise UsageError(
                "the screen as it is holds names", "Write it with kimi-console export FILE OUT.svg --anonymise."
            )
        with new_file(wanted.path):
            wanted.path.write_text(self._screen.app.export_screenshot(), "utf-8")
        return ""
