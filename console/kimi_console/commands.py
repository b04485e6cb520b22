"""Watching a host: open a live source, then show it on a screen or without one."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_agent.profile import Profile, load
from kimi_console.headless.terminal import terminal_handler
from kimi_console.hosts import host_settings
from kimi_console.paths import profiles_dir
from kimi_console.places import remember_recording
from kimi_console.showing import Show, present
from kimi_console.source.client import Dial
from kimi_console.source.live import LiveSource
from kimi_console.source.local import check_python, local_dial, local_python
from kimi_console.source.questions import Questions
from kimi_console.source.recorder import Recorder


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
        return asyncio.run(present(source, self.show, live, profiles=profiles, questions=questions))
