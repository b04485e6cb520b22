"""`kimi-agent run`: a launch without a screen. The agent stays a daemon, so a console may attach at any time."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from kimi_agent import daemon
from kimi_agent.errors import Exit, KimiError
from kimi_agent.model.events import Event, LogLines, RunExited
from kimi_agent.model.reduce import reduce
from kimi_agent.model.state import RunState, State
from kimi_agent.paths import Home
from kimi_agent.profile import Profile
from kimi_agent.wire.client import Client
from kimi_agent.wire.codec import decode_event

WORDS = {"SLOW": Exit.SLOW, "HUNG": Exit.HUNG, "FAILED": Exit.FAILED}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What `run` waits for and how it speaks."""

    until: str
    """`ready` leaves the server running; `exit` waits for its end."""
    dump: Path | None
    timeout: float | None
    as_json: bool


def run_headless(profile: Profile, home: Home, options: RunOptions) -> int:
    """Launch, follow the events, and leave with the verdict's exit code; an interrupt stops the server.

    Raises:
        KimiError: the launch was refused or the agent was lost.
    """
    tables = profile.to_dict()
    if options.dump is not None:
        tables["capture"]["directory"] = str(options.dump.absolute().parent)
    client = daemon.connect(home, start=True)
    run = client.request("launch", profile=tables)["run"]
    client.request("subscribe", epoch=client.hello["epoch"], after=client.hello["last"])
    try:
        return _follow(client, run, options)
    except (KeyboardInterrupt, BrokenPipeError, _LateError) as reason:
        stopper = daemon.connect(home, start=False)
        left = stopper.request("stop")["left"]
        for what in left:
            print(f"kimi-agent: could not be released: {what}", file=sys.stderr)
        if isinstance(reason, _LateError):
            print(f"kimi-agent: {reason}", file=sys.stderr)
            return int(reason.exit)
        return int(Exit.INTERRUPTED)


class _LateError(KimiError):
    """The deadline passed."""

    def __init__(self, run: RunState | None, timeout: float) -> None:
        super().__init__(f"not done after {timeout:.0f} s, the server was stopped: {_words(run)}")
        self.exit = WORDS.get(run.status, Exit.SLOW) if run else Exit.FAILED


def _follow(client: Client, run: str, options: RunOptions) -> int:
    state = State()
    deadline = None if options.timeout is None else time.monotonic() + options.timeout
    dumping = False
    for line in client.events():
        event = decode_event(line)
        state = reduce(state, event)
        _say(event, line, options)
        if deadline is not None and time.monotonic() > deadline:
            raise _LateError(state.run, options.timeout or 0.0)
        if state.run is None or state.run.started.run != run:
            continue
        if isinstance(event.body, RunExited):
            return _left(state.run)
        if state.run.status == "READY" and not dumping and options.dump is not None:
            client.request("dump_start", name=options.dump.name)
            dumping = True
        if options.until == "ready" and state.run.status == "READY":
            return int(Exit.OK)
    raise KimiError("the agent ended", "Look at its agent.log.")


def _say(event: Event, line: bytes, options: RunOptions) -> None:
    if options.as_json:
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
    elif isinstance(event.body, LogLines):
        print("\n".join(event.body.lines), flush=True)


def _left(run: RunState) -> int:
    if run.exited is not None and run.exited.asked and not run.exited.left:
        return int(Exit.OK)
    print(f"kimi-agent: {_words(run)}", file=sys.stderr)
    return int(Exit.FAILED)


def _words(run: RunState | None) -> str:
    if run is None:
        return "the run never appeared"
    why = run.verdict.summary if run.verdict and run.verdict.kind != "none" else run.status_reason
    return f"{run.status}{f': {why}' if why else ''}"
