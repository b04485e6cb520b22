"""`kimi-agent bisect`: the table on stderr as it grows, and its end on stdout."""

import json
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass

from kimi_agent import daemon
from kimi_agent.errors import Exit, KimiError
from kimi_agent.model.bisect import BAD, Attempt, BisectChanged
from kimi_agent.paths import Home
from kimi_agent.profile import Profile
from kimi_agent.wire.client import Client
from kimi_agent.wire.codec import decode_event

MARKS = {"passed": "✓", "hung": "✖", "failed": "✖", "skipped": "–", "stopped": "–", "running": "▸", "waiting": "·"}


@dataclass(frozen=True, slots=True)
class BisectOptions:
    """What the command line asks for."""

    only: tuple[str, ...] | None
    limit: float | None
    first: bool
    resume: bool
    as_json: bool


def bisect_headless(profile: Profile, home: Home, options: BisectOptions) -> int:
    """Run a bisection to its end; an interrupt breaks it off and leaves no server behind.

    Returns:
        0 when a factor is named or nothing hung, 4 or 5 when it hangs or fails with every change, 130 when broken off.

    Raises:
        KimiError: it was refused, or the agent was lost.
    """
    client = daemon.connect(home, start=True)
    client.request("bisect", profile=profile.to_dict(), only=options.only, limit=options.limit, first=options.first,
                   resume=options.resume)  # fmt: skip
    client.request("subscribe", epoch=client.hello["epoch"], after=client.hello["last"])
    try:
        table = _follow(client)
    except (KeyboardInterrupt, BrokenPipeError):
        print("kimi-agent: breaking the bisection off", file=sys.stderr)
        with suppress(KimiError):  # it may have ended just now
            daemon.connect(home, start=False).request("bisect_stop")
        return int(Exit.INTERRUPTED)
    if options.as_json:
        print(json.dumps(asdict(table)))
    else:
        print("\n".join([*(line(one) for one in table.attempts), "", table.conclusion]))
    return exit_of(table)


def exit_of(table: BisectChanged) -> int:
    """The exit code of a bisection's end."""
    if table.state != "done":
        return int(Exit.INTERRUPTED)
    if any(one.outcome == "passed" for one in table.attempts):
        return int(Exit.OK)
    return int(Exit.HUNG if any(one.outcome == "hung" for one in table.attempts) else Exit.FAILED)


def line(one: Attempt) -> str:
    """A row of the table."""
    where = f" in {one.phase}" if one.phase and one.outcome in BAD else ""
    took = f" after {one.seconds:.0f} s" if one.seconds is not None else ""
    why = f"  ({one.why})" if one.why else ""
    return f"{MARKS[one.outcome]} {one.factor:<18} {one.outcome}{where}{took}{why}"


def _follow(client: Client) -> BisectChanged:
    told: dict[str, str] = {}
    for raw in client.events():
        body = decode_event(raw).body
        if not isinstance(body, BisectChanged):
            continue
        for one in body.attempts:
            if one.outcome != told.get(one.factor, "waiting"):
                print(line(one), file=sys.stderr, flush=True)
            told[one.factor] = one.outcome
        if not body.active:
            return body
    raise KimiError("the agent ended", "Look at its agent.log.")
