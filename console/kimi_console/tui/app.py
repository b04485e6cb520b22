"""The console's app: one session, one board."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.text import Text
from textual.screen import Screen

from kimi_agent.errors import KimiError
from kimi_agent.profile import Profile
from kimi_console.source.questions import Questions
from kimi_console.source.session import Session
from kimi_console.tui.actions import BY_ID
from kimi_console.tui.board import Board
from kimi_console.tui.clock import HostClock
from kimi_console.tui.screens.question import ask_on_screen
from kimi_console.tui.shell import Shell
from kimi_console.tui.terminal import check_terminal


class KimiApp(Shell):
    """Draws a session and acts on it.

    Args:
        session: what is shown; the app runs it and lets go of it.
        profiles: what the launch form offers, as files or already read.
        on_ready: id of an action to do once there is something to act on, such as `launch`.
        ascii: draw with ASCII only.
        theme: name of a theme; an unknown one is said and the default taken.
        farewell: said on leaving a server that is alive; empty for where it goes on.
        clock: the host's clock.
    """

    def __init__(
        self,
        session: Session,
        *,
        profiles: Sequence[Path | Profile] = (),
        on_ready: str | None = None,
        ascii: bool = False,  # noqa: A002 - the option's name
        theme: str | None = None,
        farewell: str = "",
        clock: HostClock | None = None,
    ) -> None:
        super().__init__(ascii=ascii, theme=theme)
        self.session = session
        self._on_ready = on_ready
        self._farewell = farewell
        self.board = Board(session, profiles, clock or HostClock(), ascii=ascii)

    def get_default_screen(self) -> Screen[None]:
        """The board."""
        return self.board

    def on_mount(self) -> None:
        """Start the session."""
        self.session.on_change(self._first_batch)
        self.run_worker(self._watch(), group="session", exit_on_error=False)

    async def _watch(self) -> None:
        try:
            await self.session.run()
        except KimiError as error:
            self.notify(str(error), severity="error", timeout=30, markup=False)

    def _first_batch(self) -> None:
        if self._on_ready is not None and self.session.link.state != "connecting":
            action, self._on_ready = self._on_ready, None
            if action in BY_ID:
                self.call_later(self.board.action_run, action)

    async def action_quit(self) -> None:
        """Leave; the last line says what becomes of a server that runs."""
        run, agent = self.session.state.run, self.session.state.agent
        if self.session.control is None or run is None or not run.alive or agent is None:
            self.exit()
            return
        where = f"{agent.host}, pid {run.started.pid}, port {run.started.port}"
        self.exit(message=Text(self._farewell or f"The server goes on: {where}. Connect again to see it."))


async def run_app(
    session: Session,
    *,
    profiles: Sequence[Path | Profile] = (),
    on_ready: str | None = None,
    ascii: bool = False,  # noqa: A002 - the option's name
    theme: str | None = None,
    mouse: bool = True,
    farewell: str = "",
    questions: Questions | None = None,
) -> int:
    """Show a session until the operator leaves; the exit code.

    What a login asks from now on is asked on the screen.

    Raises:
        UsageError: there is no terminal that can show it.
    """
    check_terminal(os.environ)
    app = KimiApp(session, profiles=profiles, on_ready=on_ready, ascii=ascii, theme=theme, farewell=farewell)
    app.owns_terminal = True
    if questions is not None:
        questions.handler = partial(ask_on_screen, app)
    try:
        await app.run_async(mouse=mouse)
    finally:
        await session.close()
    return app.return_code or 0
