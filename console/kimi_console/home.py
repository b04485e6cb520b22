"""`kimi-console` alone: the start screen, and what is chosen on it."""

import asyncio
from pathlib import Path

from kimi_console.hosts import host_settings
from kimi_console.paths import profiles_dir
from kimi_console.places import Place, known_hosts_of, places
from kimi_console.source.client import Dial
from kimi_console.source.questions import Questions
from kimi_console.source.watching import Watching


def show_home(config: Path | None = None, *, ascii: bool = False, theme: str | None = None) -> int:  # noqa: A002
    """Show the start screen, and again after a recording; the exit code.

    Raises:
        KimiError: there is no terminal, or what was chosen cannot be shown.
    """
    while (chosen := asyncio.run(_choose(config, ascii=ascii, theme=theme))) is not None:
        if chosen.kind == "demo":
            from kimi_console.demo.command import run_demo  # noqa: PLC0415 - only when it was chosen

            return int(run_demo())
        from kimi_console.playing import play  # noqa: PLC0415 - imports what plays recordings

        play(Path(chosen.name), 1.0, None, ascii=ascii, theme=theme)
    return 0


async def _choose(config: Path | None, *, ascii: bool, theme: str | None) -> Place | None:  # noqa: A002
    from kimi_console.remote.dial import ssh_dial  # noqa: PLC0415 - asyncssh costs 0.2 s
    from kimi_console.tui.hosts_app import HostsApp, run_hosts  # noqa: PLC0415 - textual costs 0.2 s

    questions = Questions()

    def dial(host: str) -> Dial:
        return ssh_dial(host, host_settings(host).python, config, questions=questions)

    hosts, problem = known_hosts_of(config)
    watching = Watching(dial)
    profiles = sorted(profiles_dir().glob("*.toml")) if profiles_dir().is_dir() else []
    app = HostsApp(places(hosts), watching, profiles=profiles, problem=problem, ascii=ascii, theme=theme)
    return await run_hosts(app, watching, questions)
