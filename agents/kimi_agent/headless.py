"""`kimi-agent run`: a launch without a screen. The agent stays a daemon, so a console may attach at any time."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kimi_agent import daemon
from kimi_agent.errors import Exit, KimiError
from kimi_agent.model.events import Event, LogLines, RunExited
from kimi_agent.model.reduce import reduce
from kimi_agent.model.state import RunState, State
from kimi_agent.paths import Home
from kimi_agent.policy import Keeper, Policy
from kimi_agent.profile import Profile
from kimi_agent.record.writer import FLUSH_PERIOD, RecordingWriter
from kimi_agent.wire.client import Client
from kimi_agent.wire.codec import decode_event

WORDS = {"SLOW": Exit.SLOW, "HUNG": Exit.HUNG, "FAILED": Exit.FAILED}
LAST_WORDS = ("FAILED", "IDLE")
LAST_WORD_WITHIN = 5.0
"""Seconds after a run's end by the events' own clock."""
REASONS = {"lifetime": "its lifetime is over", "idle": "it had no requests", "hung": "it hung"}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What `run` waits for and how it speaks."""

    until: str
    """`ready` leaves the server running; `exit` waits for its end."""
    dump: Path | None
    timeout: float | None
    as_json: bool
    record: Path | None = None
    policy: Policy = field(default_factory=Policy)
    end_agent: bool = False
    """Whether the agent ends with the run, as under a service manager."""
    resume: bool = False
    """Whether the dump is one of an earlier run that is gone on with."""
    force: bool = False
    """Whether it is launched in spite of what its model's files and its ports show."""


class _Asked(BaseException):
    """SIGTERM: whoever manages this command wants its end."""


class _LateError(KimiError):
    """The deadline passed."""

    def __init__(self, run: RunState | None, timeout: float) -> None:
        super().__init__(f"not done after {timeout:.0f} s, the server was stopped: {_words(run)}")
        self.exit = WORDS.get(run.status, Exit.SLOW) if run else Exit.FAILED


def run_headless(profile: Profile, home: Home, options: RunOptions) -> int:
    """Launch, follow the events, and leave with the verdict's exit code; an interrupt stops the server.

    Raises:
        KimiError: the launch was refused, the agent was lost, or the recording cannot be written.
    """
    tables = profile.to_dict()
    if options.dump is not None:
        tables["capture"]["directory"] = str(options.dump.absolute().parent)
    client = daemon.connect(home, start=True)
    with _sigterm_asks():
        headless = _Headless(client, home, tables, options)
        try:
            return headless.run()
        except (KeyboardInterrupt, BrokenPipeError, _Asked, _LateError) as reason:
            return headless.leave(reason)
        finally:
            headless.close()


@contextmanager
def _sigterm_asks() -> Iterator[None]:
    def ask(number: int, frame: object) -> None:
        raise _Asked

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Headless:
    """One command: its runs one after the other, and what is said of them."""

    def __init__(self, client: Client, home: Home, tables: dict[str, Any], options: RunOptions) -> None:
        self._client = client
        self._home = home
        self._tables = tables
        self._options = options
        self._state = State()
        self._keeper = Keeper(options.policy)
        self._resume = options.resume
        self._hung = False
        """Whether the last run was stopped because it hung."""
        self._recording = RecordingWriter(options.record) if options.record is not None else None
        self._flushed = time.monotonic()
        self._deadline = None if options.timeout is None else time.monotonic() + options.timeout
        client.request("subscribe", epoch=client.hello["epoch"], after=client.hello["last"])
        self._lines = client.events()

    def run(self) -> int:
        """Launch and follow until it is over; a server that ends by itself is started again as the policy says."""
        while True:
            self._keeper.launched()
            run = self._client.request("launch", profile=self._tables, force=self._options.force)["run"]
            code = self._follow(run)
            if code is not None:
                return code
            delay = self._keeper.retry()
            if delay is None:
                return int(Exit.HUNG) if self._hung else _left(self._run_state)
            why = "the server hung" if self._hung else _words(self._run_state)
            where = f"{self._keeper.failures} of {self._options.policy.restarts}"
            _talk(f"{why}; starting again in {delay:.0f} s ({where})")
            time.sleep(delay)

    def _follow(self, run: str) -> int | None:
        """The exit code once this run has come to where it should; `None` when it has failed."""
        dumping, due = False, None
        while True:
            event = self._next()
            state = self._run_state
            if state is None or state.started.run != run:
                continue
            if isinstance(event.body, RunExited):
                self._hung = due == "hung"
                self._to_the_last_word(event.time)
                return _left(self._run_state) if event.body.asked and not self._hung else None
            if due is None and (due := self._keeper.take(event, state)) is not None:
                _talk(f"stopping the server: {REASONS[due]}")
                self._client.request("stop")
            elif state.status == "READY" and not dumping and self._options.dump is not None:
                self._client.request("dump_start", name=self._options.dump.name, resume=self._resume)
                dumping = self._resume = True
            if self._options.until == "ready" and state.status == "READY":
                return int(Exit.OK)

    def _to_the_last_word(self, ended: float) -> None:
        """Read what the agent makes of a run's end, which follows it at once."""
        while (run := self._run_state) is not None and run.status not in LAST_WORDS:
            if self._next().time > ended + LAST_WORD_WITHIN:
                return

    @property
    def _run_state(self) -> RunState | None:
        return self._state.run

    def _next(self) -> Event:
        try:
            line = next(self._lines)
        except StopIteration:
            # A signal that came while it waited has ended the generator, not the stream.
            self._lines = self._client.events()
            line = next(self._lines)
        event = decode_event(line)
        before, self._state = self._state, reduce(self._state, event)
        self._record(event, before)
        if self._options.as_json:
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()
        elif isinstance(event.body, LogLines):
            print("\n".join(event.body.lines), flush=True)
        if self._deadline is not None and time.monotonic() > self._deadline:
            self._deadline = None
            raise _LateError(self._state.run, self._options.timeout or 0.0)
        return event

    def _record(self, event: Event, before: State) -> None:
        if self._recording is None:
            return
        self._recording.append([event], before)
        if time.monotonic() - self._flushed > FLUSH_PERIOD:
            self._recording.flush()
            self._flushed = time.monotonic()

    def leave(self, reason: BaseException) -> int:
        """Stop the server and follow it to its end; the exit code."""
        run = self._client.request("status")["run"]
        left: list[str] = []
        if run is not None and run["alive"]:
            left = self._client.request("stop")["left"]
            self._to_the_end(run["run"])
        for what in left:
            _talk(f"could not be released: {what}")
        if isinstance(reason, _LateError):
            _talk(str(reason))
            return int(reason.exit)
        if isinstance(reason, _Asked):
            return int(Exit.FAILED if left else Exit.OK)
        return int(Exit.INTERRUPTED)

    def _to_the_end(self, run: str) -> None:
        with suppress(BrokenPipeError):
            while True:
                body = self._next().body
                if isinstance(body, RunExited) and body.run == run:
                    self._to_the_last_word(self._state.time or 0.0)
                    return

    def close(self) -> None:
        """Close the recording, and end the agent where that is wanted."""
        if self._recording is not None:
            self._recording.close()
        if self._options.end_agent:
            self._client.request("shutdown")
        self._client.close()


def _talk(words: str) -> None:
    print(f"kimi-agent: {words}", file=sys.stderr, flush=True)


def _left(run: RunState | None) -> int:
    """The exit code of a run that has ended; why it ended is said when nobody asked for it."""
    if run is not None and run.exited is not None and run.exited.asked and not run.exited.left:
        return int(Exit.OK)
    _talk(_words(run))
    return int(Exit.FAILED)


def _words(run: RunState | None) -> str:
    if run is None:
        return "the run never appeared"
    why = run.verdict.summary if run.verdict and run.verdict.kind != "none" else run.status_reason
    return f"{run.status}{f': {why}' if why else ''}"
