"""`kimi-console demo`: with a screen, or the whole job without one."""

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from kimi_agent.counts import many
from kimi_agent.errors import Exit, UnavailableError, UsageError
from kimi_console.demo.engine import Engine, Progress, build_engine, wanted_engine
from kimi_console.demo.interactive import show_demo
from kimi_console.demo.scenario import Report, run_job

T = TypeVar("T")


def run_demo(*, headless: bool = False, as_json: bool = False, dump: Path | None = None, yes: bool = False) -> int:
    """Run the demo and return the command's exit code.

    Raises:
        KimiError: it cannot be done, with what to do about it.
    """
    if not headless and (as_json or dump is not None):
        raise UsageError("--json and --dump belong to the demo without a screen", "Add --headless.")
    engine = _engine(yes)
    if headless:
        report = run(run_job(engine, dump, _say))
        _print_report(report, as_json)
        return _exit(report)
    return run(show_demo(engine, _say))


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, with a hang-up and a request to terminate treated like Ctrl-C: `main` is cancelled."""

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await main

    return asyncio.run(guarded())


def _engine(yes: bool) -> Engine:
    """The engine, built after asking.

    Raises:
        UnavailableError: it is not built, and nobody is there to ask or the answer was no.
    """
    engine = wanted_engine()
    if engine.complete:
        return engine
    if not yes and not _ask(f"The demo needs the real SGLang: about 6 GB in {engine.root}, a few minutes, once."):
        raise UnavailableError("The demo's engine is not built", "Build it with: kimi-console demo --yes")
    return build_engine(Progress(sys.stderr))


def _ask(what: str) -> bool:
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    sys.stderr.write(f"{what}\nBuild it now? [Y/n] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _print_report(report: Report, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(report.as_json()) + "\n")
        return
    for reason in report.reasons:
        sys.stdout.write(f"not ok: {reason}\n")
    sys.stdout.write(
        f"{'ok' if report.ok else 'FAILED'}: {many(report.requests, 'request')}, {report.tokens_served} tokens served, "
        f"{report.tokens_captured} captured in {many(report.shards, 'shard')}, boundaries {report.boundaries}\n"
    )


def _exit(report: Report) -> int:
    if report.interrupted:
        return Exit.INTERRUPTED
    return Exit.OK if report.ok else Exit.FAILED
