"""What the server-side actions do: requests to the agent, and the screens around them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from textual.screen import Screen

from kimi_agent.counts import many
from kimi_agent.errors import KimiError
from kimi_agent.profile import Profile
from kimi_console.source.session import Session
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Line
from kimi_console.tui.panes.dump import active
from kimi_console.tui.screens.confirm import Confirm


class Commands:
    """Launch, stop, dump, inspect and redial, for one board."""

    def __init__(
        self,
        screen: Screen[Any],
        session: Session,
        profiles: Sequence[Path | Profile],
        *,
        ascii: bool = False,  # noqa: A002
    ) -> None:
        self._screen = screen
        self._session = session
        self._profiles = profiles
        self._ascii = ascii

    async def _ask(self, method: str, told: Callable[[Any], str], **params: Any) -> None:
        control = self._session.control
        if control is None:
            return
        try:
            answer = await control.request(method, **params)
        except KimiError as error:
            self._screen.notify(str(error), severity="error", timeout=15, markup=False)
            return
        self._screen.notify(told(answer), markup=False)

    def _start(self, method: str, told: Callable[[Any], str], **params: Any) -> None:
        self._screen.run_worker(self._ask(method, told, **params), group="request", exit_on_error=False)

    def launch(self) -> None:
        """Open the launch form."""
        control = self._session.control
        if control is None:
            return

        def launched(run: str | None) -> None:
            if run is not None:
                self._screen.notify(f"launched run {run}", markup=False)

        from kimi_console.tui.screens.launch_form import LaunchForm  # noqa: PLC0415 - a screen costs when it is opened

        self._screen.app.push_screen(LaunchForm(control, self._profiles, self._host, ascii=self._ascii), launched)

    def stop(self) -> None:
        """Ask, then stop the server."""
        run = self._session.state.run
        if run is None:
            return
        started = run.started
        facts: list[Line] = [
            [(" model  ", "dim"), (started.model, "bright")],
            [(" host   ", "dim"), (self._host, "bright"), (f"   pid {started.pid}", "bright")],
            [(" run    ", "dim"), (f"{started.run}, {run.status} for "
                                   f"{fmt.duration((self._session.state.time or 0) - run.status_since)}", "plain")],
        ]  # fmt: skip
        if active(run):
            facts.append([(" A dump is written: what is captured is committed first.", "warn")])

        def answered(yes: bool | None) -> None:
            if yes:
                self._start("stop", _stopped)

        question = Confirm("Stop this server?", facts, "stop it", "leave it", ascii=self._ascii)
        self._screen.app.push_screen(question, answered)

    def dump(self) -> None:
        """Start a dump, or end the one that is written."""
        if active(self._session.state.run):
            self._screen.notify("ending the dump: requests under way are finished first", markup=False)
            self._start("dump_stop", _dump_stopped)
        else:
            self._start("dump_start", _dump_started, name=None)

    def inspect(self) -> None:
        """Open the shard browser."""
        control = self._session.control
        if control is not None:
            from kimi_console.tui.screens.shards import ShardBrowser  # noqa: PLC0415 - a screen costs when it is opened

            self._screen.app.push_screen(ShardBrowser(control, ascii=self._ascii))

    def feed(self) -> None:
        """Open the feed."""
        control = self._session.control
        if control is not None:
            from kimi_console.tui.screens.feed import FeedScreen  # noqa: PLC0415 - a screen costs when it is opened

            self._screen.app.push_screen(FeedScreen(control, ascii=self._ascii))

    def bisect(self) -> None:
        """Open the bisection."""
        from kimi_console.tui.screens.bisect import BisectScreen  # noqa: PLC0415 - a screen costs when it is opened

        self._screen.app.push_screen(BisectScreen(self._session, ascii=self._ascii))

    def bundle(self) -> None:
        """Bring a bundle of the run to the directory that the console was started in."""
        self._screen.notify("writing a bundle: log, verdict, stacks, versions", markup=False)
        self._screen.run_worker(self._bundle(), group="bundle", exclusive=True, exit_on_error=False)

    async def _bundle(self) -> None:
        from kimi_console.source.fetch import fetch_bundle, taken_out  # noqa: PLC0415 - rarely wanted

        control = self._session.control
        if control is None:
            return
        try:
            path, removed = await fetch_bundle(control.request, Path.cwd(), hosts=[self._session.source.title])
        except KimiError as error:
            self._screen.notify(str(error), severity="error", timeout=15, markup=False)
            return
        self._screen.notify(f"{path}; taken out: {taken_out(removed)}", timeout=15, markup=False)

    def redial(self) -> None:
        """Try to connect at once."""
        if self._session.control is not None:
            self._session.control.redial()

    @property
    def _host(self) -> str:
        agent = self._session.state.agent
        return agent.host if agent is not None else self._session.source.title


def _stopped(answer: dict[str, Any]) -> str:
    left = answer.get("left") or []
    return f"stopped run {answer['run']}" + (f"; left behind: {', '.join(map(str, left))}" if left else "")


def _dump_started(answer: dict[str, Any]) -> str:
    layers = " ".join(map(str, answer["boundaries"]))
    return f"dump {answer['dump']}: boundaries {layers} + last, to {answer['directory']}"


def _dump_stopped(answer: dict[str, Any]) -> str:
    counts = ", ".join(many(answer[f"{noun}s"], noun) for noun in ("row", "sample", "shard"))
    return f"dump {answer['dump']} ended: {counts}"
