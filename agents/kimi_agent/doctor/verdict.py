"""`diagnose` asks the rules; `status` makes the one status word, which must never say more than is known."""

from typing import Final

from kimi_agent.doctor.evidence import Evidence
from kimi_agent.doctor.limits import is_late
from kimi_agent.doctor.rules import BUSY, RULES, seconds, storage_moves
from kimi_agent.host.proc import MAIN
from kimi_agent.model.events import Verdict
from kimi_agent.model.phases import IMPORT

FATAL: Final = frozenset({
    "out_of_memory", "port_in_use", "exception", "capture_patch", "dead_rank", "plugin_missing", "hardware",
})  # fmt: skip
"""Verdicts after which this start, or this server, cannot do what was asked."""
SLOW: Final = frozenset({"compiling", "storage", "downloading"})


def diagnose(evidence: Evidence) -> Verdict:
    """The first rule that knows something; kind `none` when all is well. Never raises, never acts."""
    if not evidence.stopping:
        for rule in RULES:
            verdict = rule(evidence)
            if verdict is not None:
                return verdict
    return Verdict("none", "nothing is wrong that the evidence shows", confidence=0.5 if evidence.live else 0.3)


def status(evidence: Evidence, verdict: Verdict) -> tuple[str, str]:
    """The run's status word and the reason for it.

    STARTING, READY, SLOW (advancing), HUNG, FAILED; IDLE once it has been stopped as asked, STOPPING until then.
    READY needs the server's own word and, on a live host, a fresh heartbeat of its scheduler.
    """
    if evidence.exited is not None:
        return ("IDLE", "stopped") if evidence.exited.asked else ("FAILED", verdict.summary)
    if evidence.stopping:
        return "STOPPING", "the operator asked for it"
    if _fatal(evidence, verdict):
        return "FAILED", verdict.summary
    if verdict.kind in SLOW and (verdict.kind != "storage" or storage_moves(evidence)):
        return "SLOW", verdict.summary
    if verdict.kind != "none":
        return _stuck(evidence, verdict)
    return _ready(evidence) if evidence.ready else _starting(evidence)


def _starting(evidence: Evidence) -> tuple[str, str]:
    """STARTING within what good starts of the same launch took; SLOW beyond, though it advances."""
    if evidence.phase is not None and is_late(evidence.phase, evidence.late, evidence.baseline):
        return "SLOW", f"{_where(evidence)}; {seconds(evidence.late)} longer than any good start, and it advances"
    return "STARTING", _where(evidence)


def _fatal(evidence: Evidence, verdict: Verdict) -> bool:
    facts = evidence.facts
    # With an exception or a death the storage is full, not slow.
    full = verdict.kind == "storage" and (facts.exception is not None or bool(evidence.dead))
    return full or verdict.kind in FATAL or facts.warm_up_error is not None or facts.watchdog_line is not None


def _stuck(evidence: Evidence, verdict: Verdict) -> tuple[str, str]:
    """HUNG, unless a process computes and patience is not yet at its end."""
    if not evidence.live:
        if evidence.facts.failed is not None:
            return "FAILED", verdict.summary
        return ("HUNG" if (evidence.silent or 0.0) > evidence.limits.silent else "STARTING"), verdict.summary
    stopped = any(sample.state == "T" for sample in evidence.samples)
    names = {verdict.rank} if verdict.rank else {rank.rank for rank in evidence.ranks}
    if evidence.phase == IMPORT:
        names.add(MAIN)  # it stands for the ranks that have no title yet
    busy = any((sample.cpu or 0.0) > BUSY for sample in evidence.samples if sample.rank in names)
    patient = (evidence.silent or 0.0) < evidence.limits.patience
    spins = verdict.kind == "comm_spin"
    if busy and patient and not stopped and not spins and not evidence.ready:
        return "SLOW", f"{verdict.summary}; it uses CPU: it computes, or spins"
    return "HUNG", verdict.summary


def _ready(evidence: Evidence) -> tuple[str, str]:
    if not evidence.live:
        return "READY", "the log says so"
    throughput, age = evidence.throughput, evidence.throughput_age
    if evidence.capture and (late := [rank.rank for rank in evidence.ranks if rank.rank not in evidence.heartbeats]):
        return "STARTING", f"the server says it is ready; no report yet from the capture plugin in {', '.join(late)}"
    if throughput is None or age is None:
        return "STARTING", "the server says it is ready; its scheduler has not been heard yet"
    if evidence.stale is not None:
        return "READY", f"scheduler heard {seconds(evidence.stale)} ago"
    if throughput.source == "log" and age <= evidence.limits.heartbeat:
        return "READY", "batches in the log; this SGLang publishes no heartbeat"
    return "STARTING", f"the server says it is ready; its scheduler is not heard: {throughput.source}"


def _where(evidence: Evidence) -> str:
    if evidence.facts.follower:
        return "this node's ranks are up; only the first node's log says whether the server is ready"
    phase = evidence.phase or IMPORT
    inside = sum(1 for rank in evidence.ranks if rank.phase == phase)
    bar = evidence.progress
    moved = f", {bar.what} {bar.done} of {bar.total}" if bar is not None and bar.phase == phase else ""
    total = len(evidence.ranks)
    return f"{phase}: {total - inside} of {total} ranks past it{moved}" if total else f"{phase}: no rank has logged yet"
