"""From the open port on: proxies, the first request, the capture plugin, the heartbeat; and silence without a cause."""

from collections.abc import Sequence
from typing import Final

from kimi_agent.doctor.evidence import Evidence
from kimi_agent.doctor.facts import Answer, Stack
from kimi_agent.doctor.rules.common import (
    bare,
    describe,
    frame_name,
    importing,
    in_collective,
    past,
    ruled_out,
    seconds,
    silence,
    stack_line,
    stack_lines,
    stale,
    unchecked,
)  # fmt: skip
from kimi_agent.engine.titles import DETOKENIZER
from kimi_agent.host.proc import MAIN
from kimi_agent.model.events import Verdict
from kimi_agent.model.phases import GRAPHS, IMPORT, LOAD, MEANING, ORDER, WARM_UP
from kimi_agent.model.state import RankState

PROXY_PATIENCE: Final = 10.0
"""Seconds after which a server that has not reached itself through its own proxy settings never will."""
_RESTS_IN: Final = frozenset({"recv", "recv_pyobj", "poll", "select", "run", "run_forever", "_run_once", "epoll",
                              "recv_multipart", "sock_recv", "wait"})  # fmt: skip
"""Innermost calls of the main and detokenizer processes when they have nothing to do."""


def plugin_missing(evidence: Evidence) -> Verdict | None:
    """Capture was asked for, and a rank runs without a plugin that has hooked it."""
    if not evidence.capture or not evidence.live:
        return None
    late = [rank.rank for rank in evidence.ranks if _without_plugin(evidence, rank)]
    if not late:
        return None
    lines = (f"plugin: no report from {', '.join(late)}", f"plugin: reports from {len(evidence.heartbeats)} ranks")
    advice = ("look in the log for 'Failed to load plugin' or 'Failed to execute general plugin'",
              "unset SGLANG_PLUGINS, or add kimi_capture to it", "do not start Python with -I or -E")  # fmt: skip
    summary = f"the capture plugin does not run in {', '.join(late)}: the server works, but captures nothing"
    return Verdict("plugin_missing", summary, late[0], 0.9, lines, (), advice)


def _without_plugin(evidence: Evidence, rank: RankState) -> bool:
    if rank.rank in evidence.heartbeats or evidence.now - rank.since <= evidence.limits.plugin:
        return False
    process = evidence.sample(rank.rank)
    loaded = evidence.seen.plugin_pids is None or process is None or process.pid in evidence.seen.plugin_pids
    # Loaded with SGLang itself, the plugin hooks the model only after the KV cache.
    return ORDER[rank.phase] > (ORDER[GRAPHS] if loaded else ORDER[LOAD])


def proxy(evidence: Evidence) -> Verdict | None:
    """The server's request to itself goes through a proxy, and does not come back."""
    if evidence.seen.proxy is None or evidence.ready or evidence.facts.reached:
        return None
    failed = evidence.facts.warm_up_error is not None
    if not failed and (evidence.phase != WARM_UP or silence(evidence) <= PROXY_PATIENCE):
        return None
    name, where = evidence.seen.proxy
    lines = [f"proc: the main process has {name} set, to {where}, and no_proxy does not spare its own address",
             "log: no request has reached the server since it opened its port", _port_line(evidence)]  # fmt: skip
    lines += [f"log: Initialization failed. warmup error: {evidence.facts.warm_up_error}"] if failed else []
    advice = (f'unset {name} in [env] of the profile, or add no_proxy = "127.0.0.1,localhost"',)
    summary = f"the warm-up request goes to a proxy ({name}) instead of the server itself"
    return Verdict("proxy", summary, None, 0.9, tuple(lines), ruled_out(evidence), advice)


def warm_up(evidence: Evidence) -> Verdict | None:
    """The port is open and the first request does not come back."""
    facts = evidence.facts
    if facts.warm_up_error is not None and not evidence.ready:
        line = f"log: Initialization failed. warmup error: {facts.warm_up_error}"
        advice = ("look for http_proxy in the environment", "look for the request's own error above")
        return Verdict("warmup", "the warm-up request failed", None, 0.8, (line,), (), advice)
    limit = evidence.limit(evidence.limits.warm_up)
    if not evidence.live or evidence.phase != WARM_UP or silence(evidence) <= limit:
        return None
    lines = [f"log: port opened {seconds(silence(evidence))} ago, no ready line", _port_line(evidence)]
    lines += _answers(evidence)
    culprit = _not_resting(evidence)
    lines += [stack_line(culprit)] if culprit is not None else stack_lines(evidence, _names(evidence))
    lines += [describe(sample) for sample in evidence.samples][:4]
    lines += [line for line in unchecked(evidence) if line.startswith("stack")][:1]
    summary = "the port is open, but the first request through the model has not come back"
    if culprit is not None:
        who = "the detokenizer" if culprit.rank == DETOKENIZER else "the main process, which holds the tokenizer,"
        summary = f"the first request has not come back: {who} stands in {frame_name(culprit.frames[0])}"
    advice = ("look at the stacks of all processes: the first forward pass runs", "or stop the run and launch again")
    confidence = 0.8 if culprit is not None else 0.6
    return Verdict("warmup", summary, None, confidence, tuple(lines), ruled_out(evidence), advice)


def _names(evidence: Evidence) -> list[str]:
    return [rank.rank for rank in evidence.ranks]


def _not_resting(evidence: Evidence, names: Sequence[str] = (DETOKENIZER, MAIN)) -> Stack | None:
    """The detokenizer or the main process, when it stood in the same place twice and that is not its queue."""
    deep = evidence.fresh
    for name in names:
        stack = deep.stack(name) if deep is not None else None
        if deep is None or stack is None or deep.unmoved(name) is not True or not stack.frames:
            continue
        if frame_name(bare(stack.frames[0])) not in _RESTS_IN and not in_collective(stack):
            return stack
    return None


def _answers(evidence: Evidence) -> list[str]:
    deep = evidence.fresh
    return [
        f"port: GET {one.path}: {one.status if one.status is not None else one.why} after {one.seconds:.1f} s"
        for one in (deep.answers if deep is not None else ())
    ]


def _port_line(evidence: Evidence) -> str:
    words = {None: "not checked", True: "open", False: "closed"}
    return f"port: {evidence.port or '–'} {words[evidence.seen.port_open]}"


def detokenizer(evidence: Evidence) -> Verdict | None:
    """The server is ready, its scheduler moves, and no answer leaves: the detokenizer is held up."""
    since, deep = dict(evidence.held_since).get(DETOKENIZER), evidence.fresh
    if since is None or deep is None or evidence.now - since <= evidence.limits.deadlock:
        return None
    stack = _not_resting(evidence, (DETOKENIZER,))
    if stack is None and deep.stack(DETOKENIZER) is not None:
        return None
    where = frame_name(stack.frames[0]) if stack is not None else "something that is not its queue"
    lines = [describe(one) for one in evidence.samples if one.rank == DETOKENIZER]
    lines += [stack_line(stack)] if stack is not None else unchecked(evidence)
    summary = (
        f"no answer reaches a client: the detokenizer stands in {where} for {seconds(evidence.now - since)}, "
        "while the scheduler goes on"
    )
    advice = ("stop the run and launch again: requests that are under way are lost",)
    return Verdict("deadlock", summary, None, 0.85 if stack else 0.5, tuple(lines), ruled_out(evidence), advice)


def heartbeat(evidence: Evidence) -> Verdict | None:
    """The server was ready and its scheduler no longer moves, whatever HTTP answers."""
    if not stale(evidence):
        return None
    age, throughput = seconds(evidence.stale or 0.0), evidence.throughput
    lines = [f"port: the scheduler last published its load {age} ago; healthy is about 1 s"]
    if throughput is not None and throughput.engine_age is None:
        lines.append(f"port: {throughput.source}")
    elif throughput is not None:
        lines.append(f"port: {throughput.running} running, {throughput.waiting} waiting")
    lost = _lost_canary(evidence)
    if lost is not None:
        lines.append(f"port: the canary, one token, did not come back: {lost.why}")
    lines += [*_answers(evidence), *stack_lines(evidence, _names(evidence))]
    lines += [describe(sample) for sample in evidence.samples]
    lines += [line for line in unchecked(evidence) if line not in lines]
    advice = ("look at the stacks of all ranks", "do not trust HTTP 200: it comes from another process")
    summary = f"the scheduler has not moved for {age}"
    confidence = 0.7 if lost is None else 0.9
    return Verdict("unknown", summary, None, confidence, tuple(lines), ruled_out(evidence), advice)


def _lost_canary(evidence: Evidence) -> Answer | None:
    """The canary that got no token since the scheduler was last heard."""
    canary, time = evidence.seen.canary, evidence.seen.canary_time
    lost = canary is not None and canary.status is None and (time or 0.0) > (evidence.heartbeat or 0.0)
    return canary if lost else None


def silent(evidence: Evidence) -> Verdict | None:
    """Nothing moves, and no other rule knows why."""
    limits = evidence.limits
    limit = evidence.limit(limits.importing if evidence.phase in (IMPORT, None) else limits.silent)
    if evidence.ready or evidence.silent is None or evidence.silent <= limit or importing(evidence):
        return None
    if evidence.facts.follower or evidence.facts.stopping:
        return None
    phase = evidence.phase or IMPORT
    lines = [past(evidence), f"log: no progress for {seconds(evidence.silent)}", _port_line(evidence)]
    lines += [*stack_lines(evidence, _names(evidence)), *(describe(sample) for sample in evidence.samples)]
    lines += [line for line in unchecked(evidence) if line not in lines]
    summary = f"silent for {seconds(evidence.silent)} in {phase!r}, where {MEANING[phase]}"
    advice = ("look at the stacks of all ranks twice, some seconds apart", "do not kill it yet: slow starts recover")
    return Verdict("unknown", summary, None, 0.3, tuple(lines), ruled_out(evidence), advice)
