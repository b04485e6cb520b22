"""What a client may ask of an agent about dumps: handed on to the inspector's process, which is started on demand.

The agent reads no dump itself: tensors and indexes must cost neither its memory nor its pace.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from kimi_agent.errors import UsageError
from kimi_agent.paths import Home, private_dir
from kimi_agent.shards.inspect.child import InspectorChild
from kimi_agent.shards.inspect.matching import Match

CACHE: Final = "indexes"
"""In the agent's home: the indexes of dumps that this user cannot write."""


class Inspector:
    """The dumps of one agent."""

    def __init__(self, home: Home, roots: Callable[[], list[Path]]) -> None:
        """`roots` are the directories that dumps are in, now."""
        self._cache = home.root / CACHE
        self._roots = roots
        self._child: InspectorChild | None = None
        """The one that takes requests."""
        self._children: set[InspectorChild] = set()
        """All that have not ended."""
        self._starting = asyncio.Lock()
        self._match: Match | None = None

    def methods(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """What a client may call."""
        return (
            {"dumps": self.dumps}
            | {
                name: partial(self._of_dump, name)
                for name in ("shards", "samples", "sample", "tokens", "next_bad", "bad_sample")
            }
            | {"compare": self.compare, "compare_dumps": self.compare_dumps, "boundary": self.boundary}
        )

    async def close(self) -> None:
        """End all that was started."""
        if self._match is not None:
            await self._match.close()
        await asyncio.gather(*(child.close() for child in self._children))

    async def dumps(self) -> Any:
        """All dumps below the known dump roots, newest first."""
        return await self._ask("dumps", roots=[str(root) for root in self._roots()])

    async def compare(self, dump: str, shard: str, place: int, other: dict[str, Any]) -> Any:
        """A sample beside another one: {"dump", "shard", "place"}."""
        if not isinstance(other, dict) or set(other) != {"dump", "shard", "place"}:
            raise UsageError("other must name dump, shard and place", "Correct the parameters.")
        beside = {"directory": self._directory(other["dump"]), "shard": other["shard"], "place": other["place"]}
        return await self._ask("compare", directory=self._directory(dump), shard=shard, place=place, other=beside)

    async def compare_dumps(self, dump: str, other: str) -> Any:
        """A dump beside another one, as far as it was compared; it goes on while this is asked for."""
        return await self._ask("compare_dumps", directory=self._directory(dump), other=self._directory(other))

    async def boundary(self, dump: str, shard: str, place: int) -> Any:
        """Which of the model's states a sample's rows are: {"running": seconds} until it is known.

        The model is run while this is asked for; it is killed when nobody has asked for `ASKED` seconds.
        """
        key = (self._directory(dump), str(shard), int(place))
        match = before = self._match
        if match is None or match.key != key:
            self._match = match = Match(key)
            if before is not None:
                await before.close()
        return await match.look()

    async def _of_dump(self, operation: str, dump: str, **params: Any) -> Any:
        return await self._ask(operation, directory=self._directory(dump), **params)

    def _directory(self, dump: str) -> str:
        if isinstance(dump, str) and dump and Path(dump).name == dump and dump not in (".", ".."):
            for root in self._roots():
                if (root / dump).is_dir():
                    return str(root / dump)
        raise UsageError(f"there is no dump {dump!r} on this host", "List the dumps again.", slug="no_dump")

    async def _ask(self, operation: str, **params: Any) -> Any:
        return await (await self._running()).ask(operation, params)

    async def _running(self) -> InspectorChild:
        async with self._starting:
            if self._child is None:
                private_dir(self._cache)
                self._child = await InspectorChild.start(self._cache, self._forget)
                self._children = {child for child in self._children if not child.ended} | {self._child}
            return self._child

    def _forget(self, child: InspectorChild) -> None:
        if self._child is child:
            self._child = None
