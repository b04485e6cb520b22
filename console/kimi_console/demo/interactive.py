"""The demo with a screen: a server starts before the newcomer's eyes, answers a little, and ends with the demo."""

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kimi_agent.model.state import RunState, State
from kimi_agent.profile import parse
from kimi_console.demo.engine import Engine
from kimi_console.demo.host import DemoHost, demo_host
from kimi_console.demo.profile import demo_profile, free_port
from kimi_console.demo.traffic import SEVERAL, Traffic, TrafficError
from kimi_console.paths import state_dir
from kimi_console.source.live import LiveSource
from kimi_console.source.local import local_dial
from kimi_console.source.session import Session

PERIOD: Final = 1.0
"""Seconds between two prompts."""
AT_ONCE: Final = 4
"""Prompts under way at most: a server that hangs is not buried under them."""
FAREWELL: Final = "Leaving the demo stops its server."


async def show_demo(engine: Engine, say: Callable[[str], None]) -> int:
    """Run the demo on a screen until the newcomer leaves; then stop its server, and return the exit code.

    Raises:
        KimiError: there is no terminal, or the server could not be launched or stopped.
    """
    from kimi_console.tui.app import run_app  # noqa: PLC0415 - textual costs 0.2 s
    from kimi_console.tui.terminal import check_terminal  # noqa: PLC0415

    check_terminal(os.environ)
    home = state_dir() / "demo"
    profile = demo_profile(engine, free_port())
    say("Starting the demo's agent")
    try:
        async with demo_host(engine, home) as host:
            if not await _alive(host):
                await host.launch(profile)
            source = LiveSource("demo", local_dial(str(engine.python), home))
            await source.start()
            chatting = asyncio.create_task(_chat(host))
            try:
                return await run_app(Session(source, source), profiles=[parse(profile, "demo")], farewell=FAREWELL)
            finally:
                chatting.cancel()
                await asyncio.wait((chatting,))
                say("Stopping the server and the agent")
    finally:
        say(f"The demo's dumps and logs stay in {home}.")


async def _alive(host: DemoHost) -> bool:
    """Whether an earlier demo, whose console was killed, left a server."""
    run = (await host.source.request("status"))["run"]
    return run is not None and bool(run["alive"])


async def _chat(host: DemoHost) -> None:
    """Send a prompt every second to whatever server is ready, until cancelled."""
    pending: set[asyncio.Task[None]] = set()
    traffic: Traffic | None = None
    try:
        for number in itertools.count():
            run = await host.until(_ready, None, "a server")
            if traffic is None or traffic.port != run.started.port:
                traffic = Traffic(run.started.host, run.started.port, f"demo-{int(time.time()) % (1 << 24):06x}")
            if len(pending) < AT_ONCE:
                task = asyncio.create_task(_send(traffic, number))
                pending.add(task)
                task.add_done_callback(pending.discard)
            await asyncio.sleep(PERIOD)
    finally:
        for task in pending:
            task.cancel()


async def _send(traffic: Traffic, number: int) -> None:
    with suppress(TrafficError):  # the console shows how the server is
        await traffic.send(SEVERAL[number % len(SEVERAL)], 8 + 4 * (number % 5))


def _ready(state: State) -> RunState | None:
    return state.run if state.run is not None and state.run.status == "READY" else None
