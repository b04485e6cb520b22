"""What the replay's keys do to its player, for one board."""

from collections.abc import Callable

from textual.screen import Screen

from kimi_agent.errors import KimiError
from kimi_console.source.player import Player
from kimi_console.source.when import parse_at
from kimi_console.tui.actions import ACTIONS
from kimi_console.tui.cells import Line
from kimi_console.tui.log_view import LogView
from kimi_console.tui.replay_bar import Position, draw
from kimi_console.tui.screens.ask import Ask

HINTED = ("play", "back", "far_back", "step", "next_mark", "help")
"""The actions whose keys stand beside the bar."""


class ReplayKeys:
    """Moves a player; what cannot be done is said."""

    def __init__(self, screen: Screen[None], player: Player, log: LogView) -> None:
        self._screen = screen
        self._player = player
        self._log = log
        self._told = False

    def doers(self) -> dict[str, Callable[[], object]]:
        """What each of the registry's replay actions does."""
        player = self._player
        return {
            "play": player.toggle, "step": lambda: player.step(1), "step_back": lambda: player.step(-1),
            "back": lambda: player.jump(-5), "ahead": lambda: player.jump(5),
            "far_back": lambda: player.jump(-60), "far_ahead": lambda: player.jump(60),
            "faster": lambda: player.faster(1), "slower": lambda: player.faster(-1),
            "next_mark": lambda: self._mark(1), "previous_mark": lambda: self._mark(-1),
            "go_to": self._go_to, "rewind": self._rewind, "to_end": lambda: player.go(player.end),
            "share": self._share,
            "next": lambda: self.find(backward=False), "previous": lambda: self.find(backward=True),
        }  # fmt: skip

    def bar(self, cells: int) -> Line:
        """The bar for the footer's place."""
        player = self._player
        at = Position(
            player.playing, player.ended, player.speed, player.begin, player.now, max(player.end, player.now),
            player.marks, "reading on" if player.growing else "cut short" if player.trouble else "",
        )  # fmt: skip
        if player.trouble and not self._told:
            self._told = True
            self._screen.notify(player.trouble, severity="error", timeout=30, markup=False)
        keys: Line = []
        for action in (action for action in ACTIONS if action.id in HINTED):
            keys += [(f" {action.shown}", "focus"), (f" {action.label}", "dim")]
        return draw(at, [(" ", "plain"), *keys], cells)

    def find(self, *, backward: bool) -> None:
        """Go to the next line of the recording that the search matches, or the one before."""
        if self._log.query_search is None:
            self._screen.notify("search for something first: /", severity="warning", markup=False)
            return
        self._screen.run_worker(self._find(backward=backward), group="find", exclusive=True, exit_on_error=False)

    async def _find(self, *, backward: bool) -> None:
        query = self._log.query_search
        if query is None:
            return
        try:
            place = await self._player.find(query.pattern.search, backward=backward)
        except KimiError as error:
            self._screen.notify(str(error), severity="error", markup=False)
            return
        if place is None:
            where = "before" if backward else "further on"
            self._screen.notify(f"nothing {where} matches {query.text}", severity="warning", markup=False)
            return
        self._player.playing = False
        self._player.go_behind(place)
        self._screen.call_after_refresh(self._log.set_search, query.text)

    def _share(self) -> None:
        from kimi_console.tui.sharing import Sharing  # noqa: PLC0415 - brings what takes names out

        Sharing(self._screen, self._player).ask()

    def _rewind(self) -> None:
        self._player.playing = False
        self._player.go_behind(-1)

    def _mark(self, by: int) -> None:
        found = self._player.mark(by)
        text = found.text if found is not None else f"no mark {'further on' if by > 0 else 'before'}"
        self._screen.notify(text, timeout=3, markup=False)

    def _go_to(self) -> None:
        def answered(text: str | None) -> None:
            if text:
                try:
                    self._player.go(parse_at(text, self._player.begin))
                except KimiError as error:
                    self._screen.notify(str(error), severity="error", markup=False)

        self._screen.app.push_screen(Ask("Go to", "14:03:22, +1:30 or an ISO date and time"), answered)
