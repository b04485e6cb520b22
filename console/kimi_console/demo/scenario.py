"""The whole job without a screen: launch, wait, dump, serve, verify, stop; and what each step took."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from kimi_agent.errors import KimiError, UsageError
from kimi_agent.model.events import DumpSampled
from kimi_agent.model.state import RunState, State
from kimi_agent.shards.verify import verify
from kimi_console.demo.engine import Engine
from kimi_console.demo.host import DemoError, DemoHost, demo_host
from kimi_console.demo.profile import CHUNK, LAYERS, NAME, TP, demo_profile, free_port
from kimi_console.demo.traffic import LONG, SEVERAL, SHORT, Traffic

DUMP_DEADLINE: Final = 60.0
"""Seconds until the accounts of a stopped dump must be complete."""
OUTPUT_TOKENS: Final = 24
Say = Callable[[str], None]


@dataclass(slots=True)
class Report:
    """What the job did; `ok` only when all of it held."""

    ok: bool = False
    model: str = NAME
    model_class: str | None = None
    sglang: str | None = None
    tp: int = TP
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds from the start of the job until each of its steps was done."""
    start: dict[str, float] = field(default_factory=dict)
    """Seconds from the launch until the last rank entered each phase of its start."""
    requests: int = 0
    tokens_served: int = 0
    """Prompt and output tokens, as the server counted them."""
    tokens_captured: int = 0
    """Rows in committed shards: of each request all tokens but the last, which is never fed back."""
    tokens_missing: int = 0
    boundaries: tuple[int, ...] = ()
    shards: int = 0
    verified: bool = False
    dump: str | None = None
    """Where the dump is kept; None when it was removed with the demo's other files."""
    home: str | None = None
    """Where the agent's files and the server's log are kept when the job is not ok."""
    interrupted: bool = False
    reasons: list[str] = field(default_factory=list)
    """Why it is not ok."""

    def as_json(self) -> dict[str, Any]:
        """The report as `demo --headless --json` prints it."""
        return asdict(self)


class Job:
    """One run of the job against one demo host."""

    def __init__(self, host: DemoHost, report: Report, say: Say, began: float) -> None:
        self._host = host
        self._report = report
        self._say = say
        self._began = began

    async def run(self, engine: Engine, dump: Path) -> None:
        """Do the job and fill in the report.

        Raises:
            KimiError: a step could not be done.
        """
        self._done("agent")
        port = free_port()
        run = await self._host.launch(demo_profile(engine, port, dump.parent))
        self._done("launched")
        self._server(await self._host.ready(run))
        self._done("ready")
        started = await self._host.source.request("dump_start", name=dump.name)
        self._report.boundaries = tuple(started["boundaries"])
        self._done("dump_started")
        traffic = Traffic("127.0.0.1", port)
        await self._serve(traffic)
        self._done("served")
        stopped = await self._host.source.request("dump_stop")
        self._done("dump_stopped")
        await self._account(traffic, stopped)
        await self._verify(dump, traffic)
        self._done("verified")
        if left := await self._host.stop_server():
            raise DemoError(f"Stopping the server left {', '.join(left)}")
        self._done("stopped")

    def _done(self, phase: str) -> None:
        seconds = self._report.phases[phase] = round(time.monotonic() - self._began, 2)
        self._say(f"{seconds:7.2f} s  {phase.replace('_', ' ')}")

    def _server(self, run: RunState) -> None:
        entered: dict[str, float] = {}
        for rank in run.ranks:
            for phase, at in rank.entered:
                entered[phase] = max(entered.get(phase, 0.0), round(at - run.time, 2))
        self._report.start = entered
        self._report.sglang = run.started.sglang
        classes = {one.model_class for one in run.capture if one.writer}
        self._report.model_class = classes.pop() if len(classes) == 1 else None

    async def _serve(self, traffic: Traffic) -> None:
        await traffic.send(SHORT, OUTPUT_TOKENS)
        long = await traffic.send(LONG, OUTPUT_TOKENS)
        if long.prompt_tokens <= CHUNK:
            raise DemoError(f"The long prompt has {long.prompt_tokens} tokens, which fit in one chunk of {CHUNK}")
        await traffic.send_all(SEVERAL, OUTPUT_TOKENS)
        self._report.requests = len(traffic.served)
        self._report.tokens_served = traffic.tokens

    async def _account(self, traffic: Traffic, stopped: dict[str, Any]) -> None:
        """Compare what the dump says it holds with what was served."""

        def settled(state: State) -> DumpSampled | None:
            dump = state.run.dump if state.run else None
            return dump if dump is not None and dump.dump == stopped["dump"] and dump.state == "stopped" else None

        dump = await self._host.until(settled, DUMP_DEADLINE, "the dump's accounts")
        self._report.tokens_captured = int(stopped["rows"])
        self._report.shards = int(stopped["shards"])
        self._report.tokens_missing = sum(rows for _, rows in dump.missing)
        expected = sum(one.rows for one in traffic.served)
        self._expect("rows committed", stopped["rows"], expected)
        self._expect("rows served, by the plugin's account", dump.served, expected)
        self._expect("samples committed", stopped["samples"], len(traffic.served))
        self._expect("rows missing", self._report.tokens_missing, 0)
        self._expect("boundaries captured", self._report.boundaries, LAYERS)

    async def _verify(self, dump: Path, traffic: Traffic) -> None:
        result = await asyncio.to_thread(verify, dump)
        self._report.verified = result.ok
        problems = [*result.problems, *(problem for shard in result.shards for problem in shard.problems)]
        self._report.reasons += [str(problem) for problem in problems]
        self._expect("shards verified", len(result.shards), self._report.shards)
        self._expect("rows in the shards", sum(s.rows for s in result.shards), sum(one.rows for one in traffic.served))
        self._expect("files that no commit names", len(result.uncommitted), 0)

    def _expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self._report.reasons.append(f"{what}: {found}, not {expected}")


async def run_job(engine: Engine, dump: Path | None, say: Say) -> Report:
    """Do the whole job in a home of its own, which is removed when all went well.

    An interrupt ends the job early: it is in the report, and nothing is left running.

    Raises:
        UsageError: something is in the way of `dump`.
    """
    kept = None if dump is None else _make_way(dump)
    home = Path(tempfile.mkdtemp(prefix="kimi-demo-"))
    report = Report(dump=None if kept is None else str(kept))
    began = time.monotonic()
    try:
        async with demo_host(engine, home) as host:
            await Job(host, report, say, began).run(engine, kept or home / "dumps" / "demo")
        report.phases["agent_stopped"] = round(time.monotonic() - began, 2)
    except KimiError as error:
        report.reasons.append(str(error))
    except asyncio.CancelledError:
        report.interrupted = True
        report.reasons.append("interrupted")
    report.ok = not report.reasons
    if report.ok:
        shutil.rmtree(home)
    else:
        report.home = str(home)
    return report


def _make_way(dump: Path) -> Path:
    """The absolute path of a dump to be; an empty directory there is taken.

    Raises:
        UsageError: there is something else.
    """
    target = dump.expanduser().absolute()
    if target.is_dir() and not any(target.iterdir()):
        target.rmdir()
    if target.exists():
        raise UsageError(f"{target} exists and is not empty", "Give --dump a directory that is not there yet.")
    return target
