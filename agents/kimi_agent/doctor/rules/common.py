"""What all rules share: how evidence is worded, and what it rules out."""

import re
from collections.abc import Callable, Iterable
from typing import Final

from kimi_agent.doctor.evidence import CROWDED, GONE, REST, Evidence
from kimi_agent.doctor.facts import Stack
from kimi_agent.model.events import RankSample, Verdict
from kimi_agent.model.phases import AFTER_LOAD, IMPORT, LOAD

Rule = Callable[[Evidence], Verdict | None]

PAUSE: Final = 30.0
"""Seconds for which a process that works may rest."""
BUSY: Final = 50.0
"""Percent of a core above which a process computes, or spins."""
SLOW_READ: Final = 1_000_000.0
"""Bytes per second that tell a load that advances from one that stands."""
MANY_FAULTS: Final = 100.0
"""Major page faults per second that mean reading through mapped files."""
STACKS_SHOWN: Final = 2
COLLECTIVE: Final = re.compile(
    r"^(?:monitored_barrier|barrier|all_reduce|_?all_gather\w*|reduce_scatter\w*|all_to_all\w*|broadcast\w*"
    r"|(?:send|recv)_(?:object|tensor|object_list)|gather\w*|scatter\w*|synchronize|ncclAllReduce) \("
)
"""Innermost calls in which a rank waits for the other ranks."""
_QUALIFIER: Final = re.compile(r"^(?:[\w<>]+\.)+(?=[\w<])")
_NOISE: Final = re.compile(
    r"^(?:wrapper|wrapped\w*|decorate_context|inner|_fn|__call__|_call_impl|_wrapped_call_impl) \("
)


def seconds(value: float) -> str:
    """A duration for a person."""
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"


def clock(value: float) -> str:
    """A duration as `m:ss`."""
    whole = max(int(value), 0)
    return f"{whole // 60}:{whole % 60:02d}"


def describe(sample: RankSample) -> str:
    """One line of evidence about a process."""
    word = {"T": " (stopped)", "D": " (waits for a device)", "X": " (gone)", "Z": " (a zombie)"}.get(sample.state, "")
    parts = [f"state {sample.state}{word}"]
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


def silence(evidence: Evidence) -> float:
    """Seconds without progress; 0 where there is no clock."""
    return evidence.silent or 0.0


def importing(evidence: Evidence) -> bool:
    """Whether a rank imports SGLang and works at it: nothing is logged meanwhile, only its CPU and reads can tell."""
    if evidence.phase not in (IMPORT, None) or silence(evidence) > evidence.limits.patience:
        return False
    if evidence.quiet_since is not None:
        return evidence.now - evidence.quiet_since < PAUSE
    if (evidence.seen.host_cpu or 0.0) > CROWDED:
        return bool(evidence.samples)
    return any((one.cpu or 0.0) > REST or (one.read_rate or 0.0) > 0 for one in evidence.samples)


def stale(evidence: Evidence) -> bool:
    """Whether a ready server's scheduler has not moved for longer than a healthy one ever rests."""
    age = evidence.stale
    return evidence.live and evidence.ready and age is not None and age > evidence.limits.heartbeat


def names_of(ranks: Iterable[str]) -> str:
    """`TP1`, `TP1 and TP2`, `TP1, TP2 and 5 more`."""
    names = list(ranks)
    if len(names) < 3:
        return " and ".join(names)
    return f"{names[0]}, {names[1]} and {len(names) - 2} more"


def bare(frame: str) -> str:
    """A frame without the class or function that its function is in: `wait (file_baton.py:50)`."""
    return _QUALIFIER.sub("", frame)


def frame_name(frame: str) -> str:
    """The function of `function (file:line)`."""
    return frame.partition(" (")[0]


def stack_line(stack: Stack) -> str:
    """Where a process is, as one line: the innermost call with its place, then who called it in SGLang."""
    frames = [frame for frame in stack.frames if not _NOISE.match(bare(frame))] or list(stack.frames)
    if not frames:
        return f"stack: {stack.rank}: no Python frame"
    above = [frame_name(frame) for frame in frames[1:] if "sglang/" in frame or "kimi_capture/" in frame]
    return f"stack: {stack.rank}: {' ← '.join([frames[0], *(above or map(frame_name, frames[1:]))][:4])}"


def stack_lines(evidence: Evidence, ranks: Iterable[str]) -> list[str]:
    """The stacks of some processes, or why there is none; nothing when they are only on their way."""
    deep = evidence.fresh
    if deep is None:
        return []
    lines = [stack_line(stack) for rank in ranks if (stack := deep.stack(rank)) is not None][:STACKS_SHOWN]
    why = deep.why_not("stack")
    return lines or ([f"stack: not checked: {why}"] if why is not None else [])


def in_collective(stack: Stack) -> bool:
    """Whether a process waits for its peers."""
    return any(COLLECTIVE.match(bare(frame)) for frame in stack.frames[:6])


def countdown(evidence: Evidence) -> float | None:
    """Seconds until SGLang's barrier after loading ends the server; `None` when nobody waits in it."""
    finished = [rank.since for rank in evidence.ranks if rank.phase == AFTER_LOAD]
    if evidence.phase != LOAD or not finished or not min(finished):
        return None
    return max(evidence.limits.barrier - (evidence.now - min(finished)), 0.0)


def ruled_out(evidence: Evidence) -> tuple[str, ...]:
    """What was looked at and is not the cause, each with the reason."""
    found = []
    ranks = [sample for rank in evidence.ranks if (sample := evidence.sample(rank.rank)) is not None]
    alive = [sample for sample in ranks if sample.state not in GONE]
    if ranks and len(alive) == len(evidence.ranks):
        found.append(f"a crash ({len(alive)} of {len(alive)} ranks alive)")
    if ranks and not any(sample.compiling for sample in ranks):
        found.append("compilation (no compiler runs below any rank)")
    faults = [sample.major_faults for sample in ranks]
    waits = any(s.state == "D" for s in ranks) or (evidence.fresh is not None and evidence.fresh.waits)
    if ranks and all(rate is not None and rate < 1 for rate in faults) and not waits:
        found.append("storage (0 major faults/s, no rank waits for a disk)")
    if evidence.capture and evidence.heartbeats >= {rank.rank for rank in evidence.ranks}:
        found.append(f"the capture plugin (all {len(evidence.ranks)} ranks report it)")
    if evidence.kernel.skipped is None and evidence.live and not evidence.kernel.lines:
        found.append("the hardware (no Xid or PCI error in the kernel's log)")
    if evidence.kernel.oom_kills == 0:
        found.append("the OOM killer (its count stands still)")
    return tuple(found)


def unchecked(evidence: Evidence) -> list[str]:
    """What could not be looked at, and why; a close look that is only on its way is not among it."""
    if not evidence.live:
        return [f"{what}: not checked: a log alone" for what in ("proc", "stack", "nvml")]
    lines = [] if evidence.samples else ["proc: not checked: no process seen"]
    if evidence.kernel.skipped is not None:
        lines.append(f"kernel: not checked: {evidence.kernel.skipped}")
    if evidence.seen.no_gpu is not None:
        lines.append(f"nvml: not checked: {evidence.seen.no_gpu}")
    deep = evidence.fresh
    if deep is None:
        return [*lines, "stack: not checked yet"]
    lines += [f"{skip.what.replace(' of ', ' ')}: not checked: {skip.why}" for skip in deep.skipped]
    return lines if deep.first or deep.why_not("stack") is not None else [*lines, "stack: not checked yet"]
