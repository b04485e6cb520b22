"""`diagnose`: how a server is, from its log, a recording or its host, as one object or a few lines."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import orjson

from kimi_agent.counts import many
from kimi_agent.doctor.logfile import diagnose_log
from kimi_agent.errors import Exit, UsageError
from kimi_agent.model.events import Verdict
from kimi_agent.model.phases import IMPORT, ORDER
from kimi_agent.model.reduce import fold
from kimi_agent.model.state import State
from kimi_agent.wire.codec import WireError
from kimi_console.headless.ask import ask
from kimi_console.headless.exits import EXITS
from kimi_console.source.client import Dial
from kimi_console.source.files import chunks_of
from kimi_console.source.kinds import is_log
from kimi_console.source.replay import open_events

UNSEEN = "unknown"
"""A rank's process state where only a log was read."""
NO_VERDICT = Verdict("none", "nothing is known to be wrong")


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's place in the start."""

    phase: str
    since_s: float
    """Seconds in it."""
    state: str
    """Letter of its process state in /proc, or `unknown`."""


@dataclass(frozen=True, slots=True)
class Report:
    """What `diagnose --json` prints (with the status in small letters)."""

    status: str
    reason: str
    phase: str
    ranks: dict[str, RankReport]
    verdict: Verdict
    silent_s: float | None
    unmatched: tuple[int, float] = (0, 0.0)
    """Lines of the start whose wording is not known, and the seconds that they stand for."""

    def as_json(self) -> bytes:
        """The stable object, as one line."""
        verdict = self.verdict
        return orjson.dumps(
            {
                "status": self.status.lower(),
                "phase": self.phase,
                "ranks": self.ranks,
                "verdict": {
                    "kind": verdict.kind,
                    "rank": verdict.rank,
                    "summary": verdict.summary,
                    "confidence": verdict.confidence,
                    "evidence": verdict.evidence,
                    "advice": verdict.advice,
                },
                "silent_s": self.silent_s,
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )

    def as_text(self) -> str:
        """The same for a person."""
        verdict = self.verdict
        silent = f", silent for {self.silent_s:.0f} s" if self.silent_s else ""
        lines = [f'{self.status} in "{self.phase}"{silent}' + (f": {self.reason}" if self.reason else "")]
        if verdict.kind != "none":
            lines.append(f"{verdict.summary} ({verdict.kind}, confidence {verdict.confidence:.2f})")
            lines += [f"  {line}" for line in verdict.evidence]
            lines += [f"  not {line}" for line in verdict.ruled_out]
            lines += [f"  do  {line}" for line in verdict.advice]
        if self.unmatched[0]:
            lines.append(f"  {many(self.unmatched[0], 'line')}, {self.unmatched[1]:.0f} s matched no known phase")
        lines += [f"  {rank}  {seen.phase}, {seen.since_s:.0f} s" for rank, seen in self.ranks.items()]
        return "\n".join(lines) + "\n"

    @property
    def exit(self) -> Exit:
        """0 ready or starting, 3 slow, 4 hung, 5 failed."""
        return EXITS.get(self.status, Exit.OK)


def is_file(target: str) -> bool:
    """Whether `diagnose` was given a path rather than a host."""
    return Path(target).exists() or "/" in target or target.endswith((".log", ".ndjson", ".txt"))


def report_file(path: Path) -> Report:
    """A report of a log, a recording or a journal.

    Raises:
        UsageError: it cannot be read or is none of these.
    """
    if not is_log(path):
        return report_state(fold(open_events(path)), path)
    next(open_events(path), None)
    found = diagnose_log(chunks_of(path))
    times = [rank.since for rank in found.ranks if rank.since]
    end = max(times, default=0.0) + (found.silent_s or 0.0)
    ranks = {
        rank.rank: RankReport(rank.phase, max(0.0, end - rank.since) if rank.since else 0.0, UNSEEN)
        for rank in found.ranks
    }
    return Report(
        found.status, found.reason, found.phase, ranks, found.verdict, found.silent_s,
        (found.unmatched, found.unmatched_s),
    )  # fmt: skip


def report_state(state: State, path: Path) -> Report:
    """A report of the last state in a recording.

    Raises:
        UsageError: no run is in it.
    """
    run = state.run
    if run is None:
        raise UsageError(f"{path} holds no run of a server", "Give a recording or a log of one.")
    letters = {sample.rank: sample.state for sample in run.samples}
    end = state.time or 0.0
    ranks = {
        rank.rank: RankReport(rank.phase, max(0.0, end - rank.since), letters.get(rank.rank, UNSEEN))
        for rank in run.ranks
    }
    return Report(
        run.status,
        run.status_reason,
        _earliest(rank.phase for rank in run.ranks),
        ranks,
        run.verdict or NO_VERDICT,
        None,
        (run.unmatched.lines, run.unmatched.seconds) if run.unmatched is not None else (0, 0.0),
    )


async def report_host(dial: Dial) -> Report:
    """A report of what an agent says now.

    Raises:
        KimiError: the agent cannot be reached.
        WireError: its answer is not understood.
    """
    answer: dict[str, Any] = await ask(dial, "status")
    run = answer.get("run")
    if run is None:
        return Report(answer["status"], "no server was launched", IMPORT, {}, NO_VERDICT, None)
    now = time.time()
    try:
        places = msgspec.convert(run["ranks"], dict[str, dict[str, str | float]])
        verdict = msgspec.convert(run["verdict"], Verdict | None) or NO_VERDICT
    except (msgspec.ValidationError, KeyError) as error:
        raise WireError(f"the agent's status is not understood: {error}") from error
    ranks = {
        rank: RankReport(str(place["phase"]), max(0.0, now - float(place["since"])), UNSEEN)
        for rank, place in places.items()
    }
    phase = _earliest(seen.phase for seen in ranks.values())
    return Report(answer["status"], run.get("reason", ""), phase, ranks, verdict, None)


def _earliest(phases: Iterable[str]) -> str:
    return min((phase for phase in phases if phase in ORDER), key=ORDER.__getitem__, default=IMPORT)
