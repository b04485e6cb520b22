"""The agent's side of the plugin: one unix socket a rank, JSON lines."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_agent.errors import KimiError
from kimi_agent.host.procfs import starttime
from kimi_agent.wire.codec import MAX_LINE, WireError, decode, encode
from kimi_agent.wire.peer import same_user

DEADLINE = 5.0


class PluginError(KimiError):
    """A rank's plugin refused, or did not answer."""

    slug = "plugin"


@dataclass(frozen=True, slots=True)
class RankPlugin:
    """One rank's plugin and its last status."""

    socket: Path
    status: dict[str, Any]

    @property
    def rank(self) -> str | None:
        return self.status.get("rank")

    @property
    def writer(self) -> bool:
        return bool(self.status.get("writer"))


async def call(path: Path, request: dict[str, Any], deadline: float = DEADLINE) -> dict[str, Any]:
    """Ask one plugin.

    Raises:
        PluginError: it refused (with its own words), or did not answer within `deadline` seconds.
    """
    try:
        reply = await asyncio.wait_for(_exchange(path, encode(request) + b"\n"), deadline)
    except asyncio.TimeoutError as error:  # another class than TimeoutError before Python 3.11
        raise PluginError(f"the plugin at {path.name} did not answer in {deadline:.0f} s") from error
    except (OSError, WireError, ValueError) as error:
        raise PluginError(f"the plugin at {path.name} cannot be reached: {error}") from error
    if not reply.get("ok"):
        raise PluginError(
            str(reply.get("message", "refused")), str(reply.get("hint", "")), slug=str(reply.get("slug", "plugin"))
        )
    return reply


async def _exchange(path: Path, line: bytes) -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(str(path), limit=MAX_LINE)
    try:
        if not same_user(writer.get_extra_info("socket")):
            raise OSError("it belongs to another user")
        writer.write(line)
        await writer.drain()
        return decode(await reader.readline())
    finally:
        writer.close()


def socket_of(directory: Path, pid: int) -> Path:
    """Where the plugin of a process listens."""
    return directory / f"cap-{pid}.sock"


def pids(directory: Path) -> frozenset[int]:
    """The processes whose plugin has begun to listen, dead ones too."""
    return frozenset(int(path.stem.removeprefix("cap-")) for path in directory.glob("cap-*.sock"))


def silent(directory: Path, answered: Iterable[RankPlugin]) -> list[int]:
    """The processes that live and whose plugin did not answer."""
    heard = {int(one.status["pid"]) for one in answered}
    return sorted(pid for pid in pids(directory) - heard if starttime(pid) is not None)


async def poll(directory: Path) -> list[RankPlugin]:
    """The status of every plugin that answers; one that does not is left out."""
    paths = sorted(directory.glob("cap-*.sock"))
    replies = await asyncio.gather(*(call(path, {"op": "status"}) for path in paths), return_exceptions=True)
    return [
        RankPlugin(path, reply["status"])
        for path, reply in zip(paths, replies, strict=True)
        if isinstance(reply, dict) and isinstance(reply.get("status"), dict)
    ]
