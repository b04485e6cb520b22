"""All checks of one launch, worst first."""

import asyncio
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kimi_agent.counts import many
from kimi_agent.engine import options
from kimi_agent.engine.argv import Problem
from kimi_agent.host.gpu import sample_once
from kimi_agent.host.locks import CACHE_VARIABLES
from kimi_agent.host.machine import EXCEPTIONS, PROXIES
from kimi_agent.host.procfs import run_processes
from kimi_agent.model.events import GpuSample
from kimi_agent.paths import Home
from kimi_agent.preflight import host, leftovers, ports
from kimi_agent.preflight.check import OK, ORDER, REFUSE, Check, ok, refuse
from kimi_agent.preflight.model_files import model_checks
from kimi_agent.preflight.together import flag_checks
from kimi_agent.profile import Profile
from kimi_agent.runs import plan as plans
from kimi_agent.runs.plan import Plan
from kimi_agent.runs.secrets import Secrets

MARKS = {"ok": "✓", "warn": "⚠", "refuse": "✖", "not checked": "–"}


async def of_profile(profile: Profile, home: Home, main: int | None = None) -> dict[str, Any]:
    """The answer for a profile; `main` is the process of the server that the agent runs, whose own are no leftovers."""
    made = await asyncio.to_thread(plans.make_plan, profile, home)
    seen, no_gpu = await sample_once()
    own = run_processes(main) if main is not None else ()
    return answer(made, await asyncio.to_thread(inspect, made, home, seen, no_gpu, own))


def inspect(
    plan: Plan, home: Home, gpus: Sequence[GpuSample], no_gpu: str | None, own: Iterable[int] = ()
) -> list[Check]:
    """Look at everything; takes a few seconds at most, reads no weight and changes nothing.

    `own` are processes of the agent's own run, which are no leftovers.
    """
    environment = {**os.environ, **plan.env}
    on_cpu = options.value(plan.argv, "--device") == "cpu"
    caches = {name: text for name, text in environment.items() if name in CACHE_VARIABLES}
    proxies = {name: text for name, text in environment.items() if name in (*PROXIES, *EXCEPTIONS)}
    server = plan.profile.server
    checks = [
        *_problems(plans.problems(plan), plan),
        *flag_checks(plan, environment, gpus),
        *ports.port_checks(plan),
        *_model(plan),
        *leftovers.process_checks(own),
        *leftovers.gpu_checks(gpus, no_gpu, on_cpu=on_cpu),
        *leftovers.shm_checks(len(plan.ranks)),
        *leftovers.lock_checks(caches),
        *host.disk_checks(plan, home.root, Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")),
        *host.proxy_checks(server.host, proxies),
        *host.toolkit_checks(plan, environment, on_cpu=on_cpu),
    ]
    return sorted(checks, key=lambda check: ORDER.index(check.outcome))


def hard_refusals(plan: Plan) -> list[Problem]:
    """What a launch is refused for: what the command line, its ports and the model's files show beyond doubt."""
    found = plans.problems(plan)
    checks = [
        *flag_checks(plan, {**os.environ, **plan.env}, ()),
        *ports.port_checks(plan),
        *_model(plan),
    ]
    return [*found, *(Problem(one.check, one.message, one.hint) for one in checks if one.outcome == REFUSE)]


def _model(plan: Plan) -> list[Check]:
    argv = plan.argv
    return model_checks(
        Path(plan.profile.server.model),
        tokenizer=options.value(argv, "--tokenizer-path"),
        trusts=options.present(argv, "--trust-remote-code"),
        wants_tokenizer=not options.present(argv, "--skip-tokenizer-init"),
        wants_weights=options.value(argv, "--load-format") != "dummy",
    )


def _problems(found: Sequence[Problem], plan: Plan) -> list[Check]:
    """What the command line's own checks refuse; one line when they do not."""
    if found:
        return [refuse(problem.slug, problem.message, problem.hint) for problem in found]
    return [ok("command", f"SGLang {plan.version}, ranks {' '.join(plan.ranks)}")]


def answer(plan: Plan, checks: Sequence[Check]) -> dict[str, Any]:
    """The stable object that `preflight --json` prints and the console gets."""
    refused = [check for check in checks if check.outcome == REFUSE]
    return {
        "argv": list(Secrets.of(plan.argv, plan.env).hide_argv(plan.argv)),
        "sglang": plan.version,
        "ranks": list(plan.ranks),
        "problems": [{"slug": one.check, "message": one.message, "hint": one.hint} for one in refused],
        "notes": [] if refused else plans.notes(plan),
        "checks": [asdict(check) for check in checks],
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The answer for a terminal."""
    told = [
        f"{MARKS[one['outcome']]} {one['message']}" + (f". {one['hint']}" if one["hint"] else "")
        for one in found["checks"]
        if one["outcome"] != OK
    ]
    passed = sum(1 for one in found["checks"] if one["outcome"] == OK)
    told.append(f"✓ {passed} of {many(len(found['checks']), 'check')} found nothing")
    return [*told, *(f"· {note}" for note in found["notes"])]
