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

CACHE: Final = "indexes"
"""In the agent's home: the indexes of dumps that this user cannot write."""


class Inspector:
    """The dumps of one agent."""

    def __init__(self, home: Home, roots: Callable[[], list[Path]]) -> None:
        """`roots` are the directories that dumps are in, now."""
        self._cache = home.root / CACHE
        self._roots = roots
        self._child: InspectorChild | None = None
        self._starting = asyncio.Lock()

    def methods(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """What a client may call."""
        return {"dumps": self.dumps} | {
            name: partial(self._of_dump, name)
            for name in ("shards", "samples", "sample", "tokens", "next_bad", "bad_sample")
        }

    async def close(self) -> None:
        """End the process, if there is one."""
        if self._child is not None:
            await self._child.close()

    async def dumps(self) -> Any:
        """All dumps below the known dump roots, newest first."""
        return await self._ask("dumps", roots=[str(root) for root in self._roots()])

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
            return self._child

    def _forget(self, child: InspectorChild) -> None:
        if self._child is child:
            self._child = None
