"""The console's screen as an SVG, drawn without a terminal."""

from pathlib import Path
from typing import Final

from kimi_console.share.writing import new_file
from kimi_console.source.player import Player
from kimi_console.source.session import Session
from kimi_console.tui.app import KimiApp

SIZE: Final = (120, 40)


async def picture(player: Player, path: Path, *, size: tuple[int, int] = SIZE, theme: str | None = None) -> None:
    """Draw the end of what a player has to play.

    Raises:
        UsageError: the file is there already, or cannot be written.
    """
    player.playing = False
    player.go(player.end)
    app = KimiApp(Session(player), theme=theme)
    try:
        async with app.run_test(size=size) as pilot:
            while not player.ended:
                await pilot.pause()
            await pilot.pause(0.2)
            app.board.draw()
            await pilot.pause(0.2)
            drawn = app.export_screenshot()
    finally:
        await player.close()
    with new_file(path):
        path.write_text(drawn, "utf-8")
