"""The app of many hosts: the start screen, and a board for every host that is open."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from textual.screen import Screen

from kimi_agent.errors import KimiError
from kimi_agent.profile import Profile
from kimi_console.places import Place
from kimi_console.source.questions import Questions
from kimi_console.source.session import Session
from kimi_console.source.watching import Watching
from kimi_console.tui.board import Board
from kimi_console.tui.clock import HostClock
from kimi_console.tui.screens.home import Home
from kimi_console.tui.screens.question import ask_on_screen
from kimi_console.tui.shell import Shell
from kimi_console.tui.terminal import check_terminal


class HostsApp(Shell):
    """Opens places; ends with a place that it cannot show itself, or with none when the operator leaves.

    Args:
        listed: what the start screen offers.
        watching: the hosts that are open.
        profiles: what the launch form offers.
        problem: what is wrong with the list, in words.
    """

    def __init__(
        self,
        listed: Sequence[Place],
        watching: Watching,
        *,
        profiles: Sequence[Path | Profile] = (),
        problem: str = "",
        ascii: bool = False,  # noqa: A002 - the option's name
        theme: str | None = None,
    ) -> None:
        super().__init__(ascii=ascii, theme=theme)
        self._watching = watching
        self._profiles = profiles
        self._ascii = ascii
        self.boards: dict[str, Board] = {}
        self.home = Home(listed, self._look, self.open_place, problem=problem, ascii=ascii)

    def get_default_screen(self) -> Screen[None]:
        """The start screen."""
        return self.home

    def _look(self, host: str) -> tuple[Session, float] | None:
        board = self.boards.get(host)
        if board is None:
            return None
        session = board.session
        return session, board.clock.now(session.link, session.state.time)

    def open_place(self, place: Place) -> None:
        """Show a host's board, which is kept from then on; leave for everything else."""
        if place.kind != "host":
            self.exit(place)
            return
        if place.name not in self.boards:
            try:
                session = self._watching.open(place.name)
            except KimiError as error:
                self.notify(str(error), severity="error", timeout=15, markup=False)
                return
            session.elsewhere = self.go_home
            board = self.boards[place.name] = Board(session, self._profiles, HostClock(), ascii=self._ascii)
            self.install_screen(board, f"host-{len(self.boards)}")
        self.push_screen(self.boards[place.name])

    def go_home(self) -> None:
        """Back to the list; the host stays open."""
        if isinstance(self.screen, Board):
            self.pop_screen()


async def run_hosts(app: HostsApp, watching: Watching, questions: Questions, *, mouse: bool = True) -> Place | None:
    """Show the start screen until the operator leaves or chooses what is not a host.

    Raises:
        UsageError: there is no terminal that can show it.
    """
    check_terminal(os.environ)
    app.owns_terminal = True
    questions.handler = partial(ask_on_screen, app)
    try:
        chosen = await app.run_async(mouse=mouse)
    finally:
        await watching.close()
    return chosen if isinstance(chosen, Place) else None
