"""Playing a recording: a clock that can be held, hurried, stepped and set, and the events and states it comes to."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from kimi_agent.model.events import Event, Snapshot
from kimi_agent.record.format import Mark
from kimi_agent.record.reader import Recording
from kimi_console.source.base import Link

SPEEDS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, math.inf)
"""Times real time; the last one does not wait at all."""
BATCH: Final = 1000
"""Events handed over at once; the screen is drawn in between."""
LOG_LINES: Final = 5000
"""Lines of the log that are there after a jump."""
GROWTH_PERIOD: Final = 0.5
"""Seconds between two looks whether a recording that is still written has grown."""


class Player:
    """A source whose events come when its clock says so; it stays on the last one and can go back from there."""

    def __init__(
        self, recording: Recording, title: str, *, speed: float = 1.0, at: float | None = None, growing: bool = False
    ) -> None:
        """Begin at the first event, or with everything up to `at` (Unix time) behind it."""
        self.title = title
        self.speed = speed
        self.playing = True
        self.place = 0
        """How many events are behind."""
        self.growing = growing
        """Whether more may still be written to the recording."""
        self.trouble = ""
        """Why nothing more is written to it, when that is too early."""
        self.marks: list[Mark] = []
        self.recording = recording
        self._began = time.time()
        self._clock = at if at is not None else recording.begin
        self._since = time.monotonic()
        self._sought: int | None = recording.place_at(at) if at is not None else None
        self._steps = 0
        self._ahead: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._closed = False

    @property
    def link(self) -> Link:
        """`replay`, or `ended` on the last event of a recording that does not grow."""
        return Link("ended" if self.ended else "replay", "", self._began)

    @property
    def ended(self) -> bool:
        """Whether nothing comes any more."""
        return not self.growing and self._sought is None and self.place >= len(self.recording)

    @property
    def begin(self) -> float:
        """Time of the first event."""
        return self.recording.begin

    @property
    def end(self) -> float:
        """Time of the last event."""
        return self.recording.end

    @property
    def now(self) -> float:
        """The clock, in the recording's time; never beyond its end."""
        if not self.playing or math.isinf(self.speed):
            return self._clock
        return min(self._clock + (time.monotonic() - self._since) * self.speed, max(self.end, self._clock))

    def toggle(self) -> None:
        """Hold the clock, or let it go on; at the end it begins anew."""
        if self.playing and self.ended:
            self._seek(0, self.begin)
            return
        self._set_clock(self.now)
        self.playing = not self.playing

    def faster(self, by: int) -> None:
        """The next speed up or down."""
        slower = sum(1 for speed in SPEEDS if speed < self.speed) - (by > 0 and self.speed not in SPEEDS)
        self._set_clock(self.now)
        self.speed = SPEEDS[max(0, min(slower + by, len(SPEEDS) - 1))]

    def jump(self, seconds: float) -> None:
        """Move the clock."""
        self.go(self.now + seconds)

    def go(self, then: float) -> None:
        """Set the clock; it stays within the recording."""
        then = max(self.begin, min(then, self.end))
        self._seek(self.recording.place_at(then), then)

    def step(self, by: int) -> None:
        """Hold the clock, and take one event more or one back."""
        self.playing = False
        if by > 0:
            self._steps += 1
            self._wake.set()
        elif self.place > 0:
            self.go_behind(self.place - 2)

    def mark(self, by: int) -> Mark | None:
        """Go right behind the next mark, or the one before; `None` when there is none."""
        if by > 0:
            found = next((mark for mark in self.marks if mark.place >= self.place), None)
        else:
            found = next((mark for mark in reversed(self.marks) if mark.place < self.place - 1), None)
        if found is not None:
            self.go_behind(found.place)
        return found

    def go_behind(self, place: int) -> None:
        """Go to where the event at a place is the last that is behind; -1 is the beginning."""
        self._seek(place + 1, self.recording.event(place).time if place >= 0 else self.begin)

    async def find(self, matches: Callable[[str], object], *, backward: bool = False) -> int | None:
        """Place of the next log line that matches, or of the last one before those that are seen."""
        place = max(0, self.place - 1) if backward else self.place
        return await asyncio.to_thread(self.recording.find, matches, place, backward=backward)

    async def batches(self) -> AsyncGenerator[Sequence[Event], None]:
        """The events as their time comes, and a snapshot after each jump; ends after `close` only."""
        if not self._closed:
            self.marks = self.recording.marks()
        while not self._closed:
            self._wake.clear()
            if self._sought is not None:
                yield [self._arrive(self._sought)]
            elif batch := self._due():
                yield batch
                await asyncio.sleep(0)
            else:
                await self._pause()

    async def close(self) -> None:
        """Stop playing and let go of the recording."""
        self._closed = True
        self._wake.set()
        self.recording.close()

    def finish(self, trouble: str = "") -> None:
        """Nothing more is written; `trouble` is why that is too early."""
        self.trouble, self.growing = trouble, False
        self._take_marks()
        self._wake.set()

    def _seek(self, place: int, clock: float) -> None:
        self._sought = max(0, min(place, len(self.recording)))
        self._steps = 0
        self._set_clock(clock)

    def _set_clock(self, clock: float) -> None:
        self._clock, self._since = clock, time.monotonic()
        self._wake.set()

    def _arrive(self, place: int) -> Event:
        """The snapshot at a place that was sought."""
        self.place, self._sought = place, None
        self._ahead.clear()
        state = self.recording.state(place)
        first, lines = self.recording.log(place, LOG_LINES)
        when = state.time if state.time is not None else self.begin
        return Event(state.seq, when, Snapshot(state, first, tuple(lines)))

    def _due(self) -> list[Event]:
        """The next events whose time has come."""
        if not self._ahead and self.place < len(self.recording):
            self._ahead.extend(next(self.recording.batches(self.place), ()))
            if self._ahead and self._clock < self._ahead[0].time and self.place == 0:
                self._set_clock(self._ahead[0].time)  # opened before it had a beginning
        limit = BATCH
        if not self.playing:
            limit, self._steps = min(self._steps, BATCH), 0
        until = math.inf if not self.playing or math.isinf(self.speed) else self.now
        batch: list[Event] = []
        while self._ahead and len(batch) < limit and self._ahead[0].time <= until:
            batch.append(self._ahead.popleft())
        if batch:
            self.place += len(batch)
            if math.isinf(until):
                self._clock, self._since = max(self._clock, batch[-1].time), time.monotonic()
        return batch

    async def _pause(self) -> None:
        """Wait for the next event's time, for growth, or for the operator."""
        wait = GROWTH_PERIOD if self.growing and not self._ahead else None
        if self.playing and self._ahead and not math.isinf(self.speed):
            wait = max(0.0, (self._ahead[0].time - self.now) / self.speed)
        try:
            async with asyncio.timeout(wait):
                await self._wake.wait()
        except TimeoutError:
            if self.growing and not self._closed:
                self._take_marks()

    def _take_marks(self) -> None:
        self.marks += self.recording.marks(self.marks[-1].place if self.marks else -1)
