"""What the commands do once their arguments are read: open a source, then show it on a screen or without one."""

import asyncio
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from kimi_agent.errors import Exit
from kimi_agent.model.state import State
from kimi_agent.profile import Profile, load
from kimi_console.compare.comparison import Comparison
from kimi_console.compare.files import compare_files
from kimi_console.compare.text import comparison_text
from kimi_console.headless.bundle import bundle_from
from kimi_console.headless.diagnose import EXITS, Report, is_file, report_file, report_host
from kimi_console.headless.stream import stream
from kimi_console.headless.terminal import terminal_handler
from kimi_console.hosts import host_settings
from kimi_console.paths import profiles_dir
from kimi_console.places import remember_recording
from kimi_console.source.client import Dial
from kimi_console.source.fetch import taken_out
from kimi_console.source.growing import GrowingSource
from kimi_console.source.importing import PIPE
from kimi_console.source.live import LiveSource
from kimi_console.source.local import check_python, local_dial, local_python
from kimi_console.source.opening import Opened
from kimi_console.source.questions import Questions
from kimi_console.source.recorder import Batches, Recorder
from kimi_console.source.replay import ReplaySource
from kimi_console.source.session import Session
from kimi_console.source.watching import keep_in_mind
from kimi_console.store.file import FileLines


@dataclass(frozen=True, slots=True)
class Show:
    """How a source is shown."""

    headless: bool = False
    as_json: bool = False
    """Without a screen, as NDJSON."""
    ascii: bool = False
    theme: str | None = None
    mouse: bool = True

    @property
    def screen(self) -> bool:
        """Whether there is a screen at all."""
        return not (self.headless or self.as_json)


@dataclass(frozen=True, slots=True)
class Watch:
    """What `connect` and `local` share."""

    python: str | None
    profile: Profile | None
    """The one given on the command line."""
    others: tuple[Path, ...]
    """The config directory's; one that is wrong is told in the launch form."""
    read_only: bool
    record: Path | None
    show: Show

    @classmethod
    def of(cls, python: str | None, profile: Path | None, read_only: bool, record: Path | None, **show: Any) -> "Watch":
        """From the options of the command line.

        Raises:
            UsageError: the profile is wrong.
        """
        loaded = load(profile) if profile is not None else None
        kept = sorted(profiles_dir().glob("*.toml")) if profiles_dir().is_dir() else []
        others = tuple(path for path in kept if profile is None or path.resolve() != profile.resolve())
        return cls(python, loaded, others, read_only, record, Show(**show))

    @property
    def interpreter(self) -> str | None:
        """The Python asked for: the command line's, else the profile's."""
        return self.python or (self.profile.server.python if self.profile is not None else None)

    def interpreter_on(self, host: str) -> str | None:
        """The Python asked for on a host: the command line's, else that of hosts.toml, else the profile's.

        Raises:
            UsageError: hosts.toml is wrong.
        """
        return self.python or host_settings(host).python or self.interpreter

    def over_ssh(self, host: str, config: Path | None) -> int:
        """Watch a far host until the operator leaves.

        Raises:
            KimiError: the first connection failed.
        """
        from kimi_console.remote.dial import ssh_dial  # noqa: PLC0415 - asyncssh costs 0.2 s

        questions = Questions(terminal_handler())
        dial = ssh_dial(host, self.interpreter_on(host), config, read_only=self.read_only, questions=questions)
        return self._watch(host, dial, questions)

    def on_this_machine(self, home: Path | None) -> int:
        """Watch this machine until the operator leaves.

        Raises:
            KimiError: the agent could not be started.
        """
        python = local_python(self.interpreter)
        asyncio.run(check_python(python))
        return self._watch("this machine", local_dial(python, home, read_only=self.read_only))

    def _watch(self, title: str, dial: Dial, questions: Questions | None = None) -> int:
        live = LiveSource(title, dial, read_only=self.read_only, snapshot=self.show.screen)
        source = Recorder(live, self.record) if self.record is not None else live
        if self.record is not None:
            remember_recording(self.record)
        profiles: list[Profile | Path] = [*([self.profile] if self.profile is not None else []), *self.others]
        return asyncio.run(_present(source, live, profiles, self.show, questions))


def compare_with(file: Path, other: Path, speed: float | None, at: str | None, **show: Any) -> int:
    """Compare two files: as one JSON object, as text, or on the screen that plays the first.

    Raises:
        UsageError: one of them cannot be read, or is nothing that can be played.
    """
    shown, found = Show(**show), compare_files(file, other)
    if shown.screen:
        opened = Opened(file, speed=math.inf if speed is None else speed, at=at)
        return asyncio.run(_play(opened, shown, found))
    if shown.as_json:
        sys.stdout.buffer.write(orjson.dumps(found.as_dict(), option=orjson.OPT_APPEND_NEWLINE))
    else:
        sys.stdout.write(comparison_text(found))
    return Exit.OK


def play(file: Path, speed: float | None, at: str | None, *, follow: bool = False, **show: Any) -> int:
    """Play back a file.

    Returns:
        Without a screen, the exit code of the last status; else the screen's.

    Raises:
        UsageError: the file cannot be played.
    """
    shown = Show(**show)
    if shown.screen and file.is_file():
        remember_recording(file)
    if not shown.screen and (follow or str(file) == PIPE):
        return asyncio.run(_present(GrowingSource(str(file)), None, (), shown))
    if not shown.screen:
        return asyncio.run(_present(ReplaySource(file, speed, at), None, (), shown))
    return asyncio.run(_play(Opened(file, speed=math.inf if speed is None else speed, at=at, follow=follow), shown))


async def _play(opened: Opened, show: Show, comparison: Comparison | None = None) -> int:
    """Show a recording on a screen until the operator leaves."""
    # The screen's modules take as long to load as a large file's first lines to be read: both at once.
    loading = asyncio.create_task(asyncio.to_thread(import_module, "kimi_console.tui.app"))
    try:
        player = await opened.open()
        await loading
        return await _present(player, None, (), show, comparison=comparison, log=opened.log)
    finally:
        await opened.close()


def diagnose_target(target: str, python: str | None, config: Path | None) -> Report:
    """A report of a file, or of a host over SSH.

    Raises:
        KimiError: it cannot be read or reached.
    """
    if is_file(target):
        return report_file(Path(target))
    from kimi_console.remote.dial import ssh_dial  # noqa: PLC0415 - asyncssh costs 0.2 s

    questions, python = Questions(terminal_handler()), python or host_settings(target).python
    return asyncio.run(report_host(ssh_dial(target, python, config, read_only=True, questions=questions)))


def bundle_host(host: str, run: str | None, output: Path | None, python: str | None, config: Path | None) -> str:
    """Bring a bundle from a host over SSH; where it is and what was taken out, in words.

    Raises:
        KimiError: the host cannot be reached, or the file cannot be written.
    """
    from kimi_console.remote.dial import ssh_dial  # noqa: PLC0415 - asyncssh costs 0.2 s

    questions, python = Questions(terminal_handler()), python or host_settings(host).python
    dial = ssh_dial(host, python, config, questions=questions)
    path, removed = asyncio.run(bundle_from(dial, host, run, output))
    return f"{path}  taken out: {taken_out(removed)}"


async def _present(
    source: Batches,
    live: LiveSource | None,
    profiles: Sequence[Profile | Path],
    show: Show,
    questions: Questions | None = None,
    *,
    comparison: Comparison | None = None,
    log: FileLines | None = None,
) -> int:
    """Show a source on a screen or without one until it ends or the operator leaves."""
    try:
        if live is not None:
            await live.start()
        if not show.screen:
            return status_exit(await stream(source, as_json=show.as_json))
        from kimi_console.tui.app import run_app  # noqa: PLC0415 - textual costs 0.2 s

        session = Session(source, live, log)
        session.comparison = comparison
        if live is not None and questions is not None:
            keep_in_mind(session, live.title)
        return await run_app(
            session, profiles=profiles, ascii=show.ascii, theme=show.theme, mouse=show.mouse, questions=questions
        )
    finally:
        await source.close()


def status_exit(state: State) -> int:
    """The exit code that a state's status word means."""
    return EXITS.get(state.run.status, Exit.OK) if state.run is not None else Exit.OK
