"""`bundle`: a run's bundle from a host, without a screen."""

from pathlib import Path

from kimi_console.headless.ask import connected
from kimi_console.source.client import Dial
from kimi_console.source.fetch import fetch_bundle


async def bundle_from(dial: Dial, host: str, run: str | None, output: Path | None) -> tuple[Path, dict[str, int]]:
    """Bring a bundle over a connection of its own.

    `host` is the name under which the operator knows the host; it is taken out too. `run` is the newest when not
    given, `output` a file in the current directory.

    Raises:
        KimiError: the agent cannot be reached or refuses, or the file cannot be written.
    """
    directory, name = (output.parent, output.name) if output is not None else (Path.cwd(), None)
    async with connected(dial) as client:
        return await fetch_bundle(client.request, directory, run=run, hosts=[host], name=name)
