"""A diagnosis from a log alone: no host to look at, so it says what the text shows and no more."""

from collections.abc import Iterable
from dataclasses import dataclass

from kimi_agent.doctor.evidence import Evidence, Limits, LogFacts
from kimi_agent.doctor.textrules import CAN_BE, text_verdict, with_facts
from kimi_agent.doctor.verdict import diagnose, status
from kimi_agent.engine.dialects import UNDATED
from kimi_agent.engine.logscan import LogScanner
from kimi_agent.engine.phases import PhaseTracker
from kimi_agent.model.events import Verdict
from kimi_agent.model.phases import IMPORT
from kimi_agent.model.state import RankState


@dataclass(frozen=True, slots=True)
class LogDiagnosis:
    """What a log says."""

    status: str
    """STARTING READY SLOW HUNG FAILED"""
    reason: str
    phase: str
    """The earliest phase that a rank is in."""
    ranks: tuple[RankState, ...]
    verdict: Verdict
    silent_s: float | None
    """Seconds without progress at the end of the log; `None` when ready, or without times."""
    unmatched: int = 0
    """Lines that read like the opening of a phase in words that are not known."""
    unmatched_s: float = 0.0
    """Seconds from such lines to the next known one."""


def diagnose_log(chunks: Iterable[bytes], now: float | None = None, limits: Limits | None = None) -> LogDiagnosis:
    """Diagnose a whole log, given as its bytes in chunks of any size.

    `now` (Unix seconds) is when the log was seen to have ended there; without it silence counts to its last line.
    """
    tracker = PhaseTracker()
    scanner = LogScanner(tracker)
    for chunk in chunks:
        scanner.feed(chunk)
    scanner.finish()
    return diagnose_tracker(tracker, now, limits)


def diagnose_tracker(tracker: PhaseTracker, now: float | None = None, limits: Limits | None = None) -> LogDiagnosis:
    """Diagnose what a tracker has read so far."""
    if now is not None and tracker.last_time is not None and tracker.last_time < UNDATED:
        now = None  # the log's clock has no year
    end = now if now is not None else tracker.last_time
    quiet = not tracker.ready and end is not None and tracker.progress_time is not None
    silent = max(end - tracker.progress_time, 0.0) if quiet and end and tracker.progress_time is not None else None
    evidence = Evidence(
        now=end or 0.0,
        ranks=tuple(RankState(rank, phase, tracker.since.get(rank, 0.0)) for rank, phase in tracker.phases.items()),
        silent=silent,
        facts=LogFacts.of(tracker),
        live=False,
        limits=limits or Limits(),
    )
    verdict = with_facts(text_verdict(evidence, tracker) or diagnose(evidence), evidence, tracker)
    word, reason = status(evidence, verdict)
    can, cannot = CAN_BE.get(evidence.phase or "", ("", ""))
    if word == "STARTING" and can and not tracker.follower:
        reason = f"{reason}; the log ends there: if nothing more comes, it can be {can}; it cannot be {cannot}"
    return LogDiagnosis(
        word, reason, evidence.phase or IMPORT, evidence.ranks, verdict, silent,
        tracker.unmatched, tracker.unmatched_seconds,
    )  # fmt: skip
