"""Keys in the order they were typed, each where the one before it has led."""

import asyncio
from collections import deque
from typing import Any, Final

from textual import events
from textual.app import App
from textual.message_pump import MessagePump

PATIENCE: Final = 0.5
"""Seconds that a key gets; what waits behind one that is not done by then goes on."""


class KeysInOrder(App[Any]):
    """An app that deals with one key to its end before it looks at the next.

    A slow link or a paste brings several keys at once, and Textual gives each to what has the focus when it is read:
    of `/stop` all but the first would be commands, since the prompt gets the focus only once the first is dealt with.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._typed: deque[events.Key | events.Paste] = deque()
        self._turn = 0
        self._dealing: asyncio.TimerHandle | None = None

    async def on_event(self, event: events.Event) -> None:
        """See `App.on_event`; a key of the terminal waits for those before it."""
        if isinstance(event, (events.Key, events.Paste)) and not event.is_forwarded:
            self._typed.append(event)
            if self._dealing is None:
                await self._deal()
        else:
            await super().on_event(event)

    async def _deal(self) -> None:
        event = self._typed.popleft()
        self._turn += 1
        self._dealing = asyncio.get_running_loop().call_later(PATIENCE, self.call_later, self._next, self._turn)
        screen, target = self.screen, self.focused or self.screen
        await super().on_event(event)
        # Twice: a key bubbles, and so does the message of a field that the app's binding has submitted for it.
        self._follow(self._turn, screen, [*target.ancestors_with_self] * 2)

    def _follow(self, turn: int, screen: MessagePump, path: list[MessagePump]) -> None:
        """Go behind a key on the way that it bubbles, and behind what it has asked of the app and of a new screen."""
        for place, pump in enumerate(path, 1):
            if pump.call_later(self._follow, turn, screen, path[place:]):
                return
        if self.screen is not screen and self.screen.call_later(self.call_later, self._next, turn):
            return
        self.call_later(self._next, turn)

    async def _next(self, turn: int) -> None:
        if turn != self._turn or self._dealing is None:
            return
        self._dealing.cancel()
        self._dealing = None
        if self._typed:
            await self._deal()
