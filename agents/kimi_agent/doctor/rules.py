"""The doctor's rules: each looks at the evidence and returns a verdict, or `None` when it has nothing to say."""

import re
from collections.abc import Callable
from typing import Final

from kimi_agent.doctor.evidence import GONE, Evidence
from kimi_agent.model.events import RankSample, Verdict
from kimi_agent.model.phases import AFTER_LOAD, GRAPHS, IMPORT, LOAD, MEANING, ORDER, WARM_UP
from kimi_agent.model.state import RankState

Rule = Callable[[Evidence], Verdict | None]

BUSY: Final = 50.0
"""Percent of a core above which a process computes, or spins."""
SLOW_READ: Final = 1_000_000.0
"""Bytes per second that tell a load that advances from one that stands."""
UNPACKED: Final = re.compile(r"(?:too many|not enough) values to unpack|cannot unpack non-iterable")
MODEL_FORWARD: Final = re.compile(r'/models/[^/"]+\.py", line \d+, in \w*forward')
SHORT_OF_LAYERS: Final = re.compile(
    r"captured \d+ of \d+ aux hidden states|The model captured [\d.]+ aux hidden states"
)
"""What SGLang says when the model returned fewer boundaries than were asked for."""
MANY_FAULTS: Final = 100.0
"""Major page faults per second that mean reading through mapped files."""


def seconds(value: float) -> str:
    """A duration for a person."""
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"


def describe(sample: RankSample) -> str:
    """One line of evidence about a process."""
    parts = [f"state {sample.state}"]
    parts += [f"CPU {sample.cpu:.0f} %"] if sample.cpu is not None else []
    parts += [f"waits in {sample.wchan}"] if sample.wchan else []
    parts += [f"reads {sample.read_rate / 1e6:.1f} MB/s"] if sample.read_rate else []
    return f"proc: {sample.rank} (pid {sample.pid}) {', '.join(parts)}"


def past(evidence: Evidence) -> str:
    """How far the ranks are, as a line of evidence."""
    phase = evidence.phase
    if phase is None:
        return "log: no rank has logged anything"
    behind = [rank.rank for rank in evidence.ranks if rank.phase == phase]
    gone = len(evidence.ranks) - len(behind)
    return f"log: {gone} of {len(evidence.ranks)} ranks past {phase!r}; in it: {', '.join(behind)}"


def _silent(evidence: Evidence) -> float:
    return evidence.silent or 0.0


def out_of_memory(evidence: Evidence) -> Verdict | None:
    """Memory ran out, by the server's own words."""
    facts = evidence.facts
    if facts.memory_line is None or not (facts.failed or evidence.dead or evidence.exited):
        return None
    advice = ("lower --mem-fraction-static, --max-running-requests or the context length",
              "look for another process on the same GPUs")  # fmt: skip
    summary = "memory ran out" + (f" on {facts.memory_rank}" if facts.memory_rank else "")
    return Verdict("out_of_memory", summary, facts.memory_rank, 0.95, (f"log: {facts.memory_line}",), (), advice)


def port_in_use(evidence: Evidence) -> Verdict | None:
    """A port that the server needs is taken."""
    line = evidence.facts.port_line
    if line is None or evidence.ready:
        return None
    summary = "a port that the server needs is taken by another process"
    advice = ("stop the other process, or choose another port",)
    return Verdict("port_in_use", summary, None, 0.95, (f"log: {line}",), (), advice)


def capture_patch(evidence: Evidence) -> Verdict | None:
    """The model did not return what capture was configured for: a patch, or a path through it, forgets the states."""
    raised = evidence.facts.exception
    if raised is None:
        return None
    unpacked = UNPACKED.match(raised.message) and MODEL_FORWARD.search(raised.where)
    if not unpacked and not SHORT_OF_LAYERS.search(raised.message):
        return None
    lines = [f"log: {raised.rank or 'the main process'}: {raised}"]
    lines += [f"log: {raised.where}"] if raised.where else []
    summary = "the capture flag is on, but the model's forward pass did not return the auxiliary hidden states"
    advice = ("launch once with [capture] enabled = false: if that starts, the patch or the layer ids are wrong",
              "in the model's forward, return (hidden, aux) in every mode: EXTEND, DECODE and IDLE",
              "two-batch overlap and layer ids beyond the model give this too")  # fmt: skip
    return Verdict("capture_patch", summary, raised.rank, 0.95, tuple(lines), (), advice)


def exception(evidence: Evidence) -> Verdict | None:
    """A process raised and died of it; a peer's error on a survivor is not this."""
    raised = evidence.facts.exception
    if raised is None or raised.effect:
        return None
    where = raised.rank or "the main process"
    lines = [f"log: {where}: {raised}"]
    if evidence.facts.failed and str(raised) not in evidence.facts.failed:
        lines.append(f"log: {evidence.facts.failed}")
    advice = ("read the traceback in the log above this line",)
    return Verdict("exception", f"{where} raised {raised}", raised.rank, 0.95, tuple(lines), (), advice)


def dead_rank(evidence: Evidence) -> Verdict | None:
    """A rank's process is gone; the first that went is the cause, the others' errors are effects."""
    facts, effect = evidence.facts, evidence.facts.exception
    if facts.stopping:
        return None  # ranks go when the server is told to stop
    rank = evidence.dead[0] if evidence.dead else facts.died
    if rank is None and not (effect and effect.effect and not evidence.live):
        return None
    lines = []
    if evidence.dead:
        lines.append(f"proc: gone, in this order: {', '.join(evidence.dead)}")
    if facts.died is not None:
        lines.append(f"log: {facts.died} died, exit code {facts.died_code if facts.died_code is not None else '–'}")
    if effect is not None:
        lines.append(f"log: {effect.rank or 'main'}: {effect} (an effect: it lost its peer)")
    summary = f"{rank} died" if rank else "a rank died; the log does not name it"
    advice = ["look at the kernel log for the OOM killer or an Xid"]
    if facts.died_code == -9:
        advice.append("exit code -9 alone is no proof of the OOM killer: SGLang kills its own ranks so too")
    return Verdict("dead_rank", summary, rank, 0.95 if evidence.dead else 0.7, tuple(lines), (), tuple(advice))


def stopped(evidence: Evidence) -> Verdict | None:
    """A rank's process is stopped: the others wait for it for ever."""
    for sample in evidence.samples:
        if sample.state == "T":
            summary = f"{sample.rank} is stopped (state T): it was sent SIGSTOP or a debugger holds it"
            lines = (describe(sample), past(evidence))
            advice = (f"kill -CONT {sample.pid}, if nobody debugs it",)
            return Verdict("straggler", summary, sample.rank, 0.98, lines, (), advice)
    return None


def watchdog(evidence: Evidence) -> Verdict | None:
    """SGLang's own watchdog gave up on a forward pass."""
    facts = evidence.facts
    if facts.watchdog_line is None:
        return None
    summary = f"{facts.watchdog_rank or 'the scheduler'} did not finish a forward pass within SGLang's own limit"
    advice = ("read the stacks that SGLang wrote into the log above this line",)
    return Verdict("deadlock", summary, facts.watchdog_rank, 0.6, (f"log: {facts.watchdog_line}",), (), advice)


def compiling(evidence: Evidence) -> Verdict | None:
    """Compilers run below a rank: slow, not hung."""
    busy = [sample for sample in evidence.samples if sample.compiling and sample.state not in GONE]
    waiting = _silent(evidence) > evidence.limits.notice and not evidence.ready
    if not busy or not (waiting or _stale(evidence)):
        return None
    tools = sorted({tool for sample in busy for tool in sample.compiling})
    names = ", ".join(sample.rank for sample in busy)
    lines = tuple(f"proc: below {sample.rank} run {', '.join(sample.compiling)}" for sample in busy)
    summary = f"{names} compiles kernels ({', '.join(tools)}): slow, not hung"
    return Verdict("compiling", summary, busy[0].rank, 0.9, lines, ("deadlock",), ("wait: the result is cached",))


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
    loaded = evidence.plugin_pids is None or process is None or process.pid in evidence.plugin_pids
    # Loaded with SGLang itself, the plugin hooks the model only after the KV cache.
    return ORDER[rank.phase] > (ORDER[GRAPHS] if loaded else ORDER[LOAD])


def storage(evidence: Evidence) -> Verdict | None:
    """Weights still come in, slowly."""
    if evidence.phase != LOAD or _silent(evidence) <= evidence.limits.notice:
        return None
    reading = [
        sample
        for sample in evidence.samples
        if (sample.read_rate or 0.0) > SLOW_READ or (sample.major_faults or 0.0) > MANY_FAULTS
    ]
    if not reading:
        return None
    rate = sum(sample.read_rate or 0.0 for sample in reading)
    summary = f"weights are being read at {rate / 1e6:.0f} MB/s: slow, not hung"
    lines = tuple(describe(sample) for sample in reading)
    return Verdict("storage", summary, reading[0].rank, 0.8, lines, ("deadlock",), ("put the weights on a local disk",))


def straggler(evidence: Evidence) -> Verdict | None:
    """Some ranks wait for others that are a phase behind."""
    behind = evidence.laggards()
    limit = evidence.limits.straggler
    if not behind or (evidence.live and _silent(evidence) <= limit):
        return None
    phase = evidence.phase or IMPORT
    lines = [past(evidence)]
    if evidence.silent is not None:
        lines.append(f"log: no progress for {seconds(evidence.silent)}")
    lines += [describe(sample) for rank in behind if (sample := evidence.sample(rank)) is not None]
    if not evidence.samples:
        lines.append("proc: not looked at")
    lines += _barrier(evidence)
    summary = f"{', '.join(behind)} is still in {phase!r}; the others wait for it"
    advice = (f"what it does there: {MEANING[phase]}", f"look at the stack of {behind[0]}")
    confidence = 0.8 if evidence.live else 0.5
    return Verdict("straggler", summary, behind[0], confidence, tuple(lines), (), advice)


def _barrier(evidence: Evidence) -> list[str]:
    """The countdown of SGLang's barrier after loading, which ends the server."""
    finished = [rank.since for rank in evidence.ranks if rank.phase == AFTER_LOAD]
    if evidence.phase != LOAD or not finished or not min(finished):
        return []
    left = evidence.limits.barrier - (evidence.now - min(finished))
    return [f"log: SGLang's barrier of {evidence.limits.barrier:.0f} s ends the server in {seconds(max(left, 0.0))}"]


def warm_up(evidence: Evidence) -> Verdict | None:
    """The port is open and the first request does not come back."""
    facts = evidence.facts
    if facts.warm_up_error is not None and not evidence.ready:
        line = f"log: Initialization failed. warmup error: {facts.warm_up_error}"
        advice = ("look for http_proxy in the environment", "look for the request's own error above")
        return Verdict("warmup", "the warm-up request failed", None, 0.8, (line,), (), advice)
    limit = evidence.limits.warm_up
    if not evidence.live or evidence.phase != WARM_UP or _silent(evidence) <= limit:
        return None
    lines = [f"log: port opened {seconds(_silent(evidence))} ago, no ready line", _port_line(evidence)]
    lines += [describe(sample) for sample in evidence.samples]
    summary = "the port is open, but the first request through the model has not come back"
    advice = ("look at the stacks of all ranks: the first forward pass runs", "look for http_proxy in the environment")
    return Verdict("warmup", summary, None, 0.6, tuple(lines), (), advice)


def _port_line(evidence: Evidence) -> str:
    words = {None: "not looked at", True: "open", False: "closed"}
    return f"port: {evidence.port or '–'} {words[evidence.port_open]}"


def _stale(evidence: Evidence) -> bool:
    age = evidence.stale
    return evidence.live and evidence.ready and age is not None and age > evidence.limits.heartbeat


def heartbeat(evidence: Evidence) -> Verdict | None:
    """The server was ready and its scheduler no longer moves, whatever HTTP answers."""
    if not _stale(evidence):
        return None
    age, throughput = seconds(evidence.stale or 0.0), evidence.throughput
    lines = [f"port: the scheduler last published its load {age} ago; healthy is about 1 s"]
    if throughput is not None and throughput.engine_age is None:
        lines.append(f"port: {throughput.source}")
    elif throughput is not None:
        lines.append(f"port: {throughput.running} running, {throughput.waiting} waiting")
    lines += [describe(sample) for sample in evidence.samples]
    if not evidence.samples:
        lines.append("proc: not looked at")
    advice = ("look at the stacks of all ranks", "do not trust HTTP 200: it comes from another process")
    return Verdict("unknown", f"the scheduler has not moved for {age}", None, 0.7, tuple(lines), (), advice)


def silent(evidence: Evidence) -> Verdict | None:
    """Nothing moves, and no other rule knows why."""
    limits = evidence.limits
    limit = limits.importing if evidence.phase in (IMPORT, None) else limits.silent
    if evidence.ready or evidence.silent is None or evidence.silent <= limit:
        return None
    if evidence.facts.follower or evidence.facts.stopping:
        return None
    phase = evidence.phase or IMPORT
    lines = [past(evidence), f"log: no progress for {seconds(evidence.silent)}", _port_line(evidence)]
    lines += [describe(sample) for sample in evidence.samples] or ["proc: not looked at"]
    lines += ["stack: not looked at", "nvml: not looked at"]
    ruled_out = ("dead_rank", "compiling") if evidence.samples else ()
    summary = f"silent for {seconds(evidence.silent)} in {phase!r}, where {MEANING[phase]}"
    advice = ("look at the stacks of all ranks twice, some seconds apart", "do not kill it yet: slow starts recover")
    return Verdict("unknown", summary, None, 0.3, tuple(lines), ruled_out, advice)


def ended(evidence: Evidence) -> Verdict | None:
    """The server is gone and nothing above says why."""
    left = evidence.exited
    if left is None and (evidence.live or evidence.facts.failed is None):
        return None
    if left is None:
        return Verdict("unknown", "the server failed", None, 0.5, (f"log: {evidence.facts.failed}",))
    code = "unknown" if left.code is None else str(left.code)
    lines = [f"proc: the main process ended, exit code {code}", past(evidence)]
    if evidence.facts.failed:
        lines.append(f"log: {evidence.facts.failed}")
    if evidence.facts.stopping:
        lines.append("log: the server was told to stop (SIGTERM), not by this agent")
    advice = ["read the end of the log"]
    if left.code in (137, -9):
        advice.append("exit code -9 is no proof of the OOM killer: look at the kernel log")
    return Verdict("unknown", f"the server ended with exit code {code}", None, 0.5, tuple(lines), (), tuple(advice))


RULES: Final[tuple[Rule, ...]] = (
    out_of_memory, port_in_use, capture_patch, exception, dead_rank, stopped, watchdog, ended, compiling,
    plugin_missing, storage, straggler, warm_up, heartbeat, silent,
)  # fmt: skip
"""In the order in which they are asked: what is certain first, what is a guess last."""
