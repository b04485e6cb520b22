"""A bundle from the agent's host to a file of the operator's."""

import base64
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from kimi_agent.errors import KimiError
from kimi_agent.text import clean

Ask = Callable[..., Awaitable[Any]]
"""`request` of a `Control`."""


async def fetch_bundle(
    ask: Ask, directory: Path, *, run: str | None = None, hosts: Sequence[str] = (), name: str | None = None
) -> tuple[Path, dict[str, int]]:
    """Have the agent write a bundle and bring it over, piece by piece, into a file that only this user can read.

    `hosts` are names of the host that the agent cannot know. Without `name` the file is called as the agent calls it.

    Returns:
        The file, and how many of each kind of private thing were taken out.

    Raises:
        KimiError: the agent refused, the link is down, or the file exists or cannot be written.
    """
    made = await ask("bundle", run=run, hosts=list(hosts))
    far = str(made["bundle"])
    path = directory / (name or Path(far).name)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            await _copy(ask, far, file.write)
    except FileExistsError as error:
        raise KimiError(f"{path} exists already", "Move it away, or choose another name.") from error
    except OSError as error:
        path.unlink(missing_ok=True)
        raise KimiError(f"{path} cannot be written: {error.strerror}", "Choose another directory.") from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path, {clean(str(kind)): int(count) for kind, count in made["removed"].items()}


async def _copy(ask: Ask, far: str, write: Callable[[bytes], int]) -> None:
    done, size = 0, 1
    while done < size:
        piece = await ask("bundle_read", bundle=far, offset=done)
        data, size = base64.b64decode(piece["data"]), int(piece["size"])
        if not data and done < size:
            raise KimiError(f"{far} ended after {done} of {size} bytes", "Make the bundle again.")
        write(data)
        done += len(data)


def taken_out(removed: dict[str, int]) -> str:
    """What was taken out, in words."""
    return ", ".join(f"{count} × {kind}" for kind, count in removed.items()) or "nothing"
