"""Showing a source of events: on a screen, or without one as lines of text or NDJSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_console.headless.exits import status_exit
from kimi_console.headless.stream import stream
from kimi_console.source.session import Session

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_agent.profile import Profile
    from kimi_console.compare.comparison import Comparison
    from kimi_console.source.live import LiveSource
    from kimi_console.source.questions import Questions
    from kimi_console.source.recorder import Batches
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


async def present(
    source: "Batches",
    show: Show,
    live: "LiveSource | None" = None,
    *,
    profiles: "Sequence[Profile | Path]" = (),
    questions: "Questions | None" = None,
    comparison: "Comparison | None" = None,
    log: "FileLines | None" = None,
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
            from kimi_console.source.watching import keep_in_mind  # noqa: PLC0415 - a replay has no host

            keep_in_mind(session, live.title)
        return await run_app(
            session, profiles=profiles, ascii=show.ascii, theme=show.theme, mouse=show.mouse, questions=questions
        )
    finally:
        await source.close()
