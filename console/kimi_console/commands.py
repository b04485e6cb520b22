"""What the commands do once their arguments are read: open a source, then show it on a screen or without one."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_agent.errors import Exit
from kimi_agent.model.state import State
from kimi_agent.profile import Profile, load
from kimi_console.headless.diagnose import EXITS, Report, is_file, report_file, report_host
from kimi_console.headless.stream import stream
from kimi_console.paths import profiles_dir
from kimi_console.source.base import Control
from kimi_console.source.client import Dial
from kimi_console.source.live import LiveSource
from kimi_console.source.local import check_python, local_dial, local_python
from kimi_console.source.recorder import Batches, Recorder
from kimi_console.source.replay import ReplaySource
from kimi_console.source.session import Session


@dataclass(frozen=True, slots=True)
class Watch:
    """What `connect` and `local` share."""

    python: str | None
    profiles: tuple[Profile, ...]
    """The given one first, then those of the config directory."""
    given: Profile | None
    read_only: bool
    record: Path | None
    headless: bool
    as_json: bool

    @classmethod
    def of(cls, python: str | None, profile: Path | None, **options: Any) -> "Watch":
        """From the options of the command line.

        Raises:
            UsageError: a profile is wrong.
        """
        given = load(profile) if profile is not None else None
        kept = sorted(profiles_dir().glob("*.toml")) if profiles_dir().is_dir() else []
        others = [load(path) for path in kept if profile is None or path.resolve() != profile.resolve()]
        options["headless"] = options["headless"] or options["as_json"]
        return cls(python, (*([given] if given else []), *others), given, **options)

    @property
    def interpreter(self) -> str | None:
        """The Python asked for: the command line's, else the profile's."""
        return self.python or (self.given.server.python if self.given is not None else None)

    def over_ssh(self, host: str, config: Path | None) -> int:
        """Watch a far host until the operator leaves.

        Raises:
            KimiError: the first connection failed.
        """
        from kimi_console.remote.dial import ssh_dial  # noqa: PLC0415 - asyncssh costs 0.2 s

        return self._watch(host, ssh_dial(host, self.interpreter, config, read_only=self.read_only))

    def on_this_machine(self, home: Path | None) -> int:
        """Watch this machine until the operator leaves.

        Raises:
            KimiError: the agent could not be started.
        """
        python = local_python(self.interpreter)
        asyncio.run(check_python(python))
        return self._watch("this machine", local_dial(python, home, read_only=self.read_only))

    def _watch(self, title: str, dial: Dial) -> int:
        live = LiveSource(title, dial, read_only=self.read_only)
        source = Recorder(live, self.record) if self.record is not None else live
        if self.headless:
            return asyncio.run(_print(source, self.as_json, live))
        return asyncio.run(_show(source, live, self.profiles))


def play(file: Path, speed: float | None, at: str | None, *, headless: bool, as_json: bool) -> int:
    """Play back a file.

    Returns:
        Without a screen, the exit code of the last status; else the screen's.

    Raises:
        UsageError: the file cannot be played.
    """
    source = ReplaySource(file, speed, at)
    if headless or as_json:
        return asyncio.run(_print(source, as_json))
    return asyncio.run(_show(source, None, ()))


def diagnose_target(target: str, python: str | None, config: Path | None) -> Report:
    """A report of a file, or of a host over SSH.

    Raises:
        KimiError: it cannot be read or reached.
    """
    if is_file(target):
        return report_file(Path(target))
    from kimi_console.remote.dial import ssh_dial  # noqa: PLC0415 - asyncssh costs 0.2 s

    return asyncio.run(report_host(ssh_dial(target, python, config, read_only=True)))


async def _print(source: Batches, as_json: bool, live: LiveSource | None = None) -> int:
    try:
        if live is not None:
            await live.start()
        return status_exit(await stream(source, as_json=as_json))
    finally:
        await source.close()


async def _show(source: Batches, live: LiveSource | None, profiles: tuple[Profile, ...]) -> int:
    from kimi_console.tui.app import run_app  # noqa: PLC0415 - textual costs 0.2 s

    control: Control | None = live
    try:
        if live is not None:
            await live.start()
        return int(await run_app(Session(source, control), profiles=list(profiles)))
    finally:
        await source.close()


def status_exit(state: State) -> int:
    """The exit code that a state's status word means."""
    return EXITS.get(state.run.status, Exit.OK) if state.run is not None else Exit.OK
