"""Which events an operator looks for, and how a mark names them."""

from typing import Final

from kimi_agent.model.events import (
    Body,
    DumpSampled,
    Event,
    Gap,
    Note,
    PhaseEntered,
    RunExited,
    RunStarted,
    StatusChanged,
    VerdictChanged,
)
from kimi_agent.record.format import Mark

MARKING: Final = frozenset({RunStarted, StatusChanged, PhaseEntered, VerdictChanged, DumpSampled, RunExited, Note, Gap})
BAD: Final = frozenset({"HUNG", "FAILED"})


class Marker:
    """Turns events into marks; remembers what would only repeat the mark before."""

    def __init__(self) -> None:
        self._run = ""
        self._phases: set[str] = set()
        self._verdict = "none"
        self._dump = ("", "")
        self._status = ""

    def mark(self, place: int, event: Event) -> Mark | None:
        """The mark of the event at a place, if it deserves one."""
        found = self._named(event.body)
        return None if found is None else Mark(place, event.time, *found)

    def _named(self, body: Body) -> tuple[str, str] | None:
        if isinstance(body, RunStarted):
            return None if body.adopted else self._launched(body)
        if isinstance(body, StatusChanged):
            return self._became(body)
        if isinstance(body, RunExited):
            return "exit", f"the run ended, exit code {body.code}"
        if isinstance(body, Note):
            return ("error", body.text) if body.level == "error" else None
        if isinstance(body, Gap):
            return "gap", f"events {body.first}-{body.last} are gone"
        return self._changed(body)

    def _became(self, body: StatusChanged) -> tuple[str, str] | None:
        if body.status == self._status:
            return None  # only its reason moved
        self._status = body.status
        return "error" if body.status in BAD else "status", f"{body.status} {body.reason}".rstrip()

    def _launched(self, body: RunStarted) -> tuple[str, str]:
        self._phases, self._verdict, self._dump, self._status = set(), "none", ("", ""), ""
        return "launch", f"launched {body.name}"

    def _changed(self, body: Body) -> tuple[str, str] | None:
        if isinstance(body, PhaseEntered) and body.phase not in self._phases:
            self._phases.add(body.phase)
            return "phase", f"{body.rank} enters {body.phase}"
        if isinstance(body, VerdictChanged) and body.verdict.kind != self._verdict:
            self._verdict = body.verdict.kind
            return "verdict", body.verdict.summary or "cleared"
        if isinstance(body, DumpSampled) and (body.dump, body.state) != self._dump:
            self._dump = (body.dump, body.state)
            return "dump", f"dump {body.dump} {body.state}"
        return None
