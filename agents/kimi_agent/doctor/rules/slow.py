"""What is slow and not hung: compilers, downloads, slow disks; and a lock that somebody holds, or nobody."""

import re
from typing import Final

from kimi_agent.doctor.evidence import GONE, Evidence
from kimi_agent.doctor.facts import DiskWait, Lock, Stack
from kimi_agent.doctor.rules.common import (
    BUSY,
    MANY_FAULTS,
    SLOW_READ,
    bare,
    clock,
    describe,
    names_of,
    ruled_out,
    seconds,
    silence,
    stack_line,
    stale,
)  # fmt: skip
from kimi_agent.model.events import RankSample, Verdict
from kimi_agent.model.phases import LOAD

COMPILES: Final = re.compile(
    r"^(?:_compile_deep_gemm\w*|_run_ninja_build|build_ninja|run_ninja|load_inline|_flashinfer_autotune|choose_one) \("
    r"|triton/compiler/|torch/_inductor/"
)
"""Frames in which a rank compiles or tunes kernels itself."""
WAITS_FOR_LOCK: Final = re.compile(
    r"^wait \(torch/utils/file_baton\.py|^(?:blocking_)?acquire \((?:tvm_ffi/utils/lockfile|filelock/)"
)
"""Innermost frames of a rank that waits for the lock of a kernel cache."""
BATON: Final = "torch/utils/file_baton.py"
_NEAR: Final = 8
"""Frames from the innermost within which such a wait is seen."""
BYTES_COME: Final = ("a deadlock (bytes come in)",)
SLOW_DISK_ADVICE: Final = (
    "put the weights on a local disk", "--weight-loader-disable-mmap helps where a network disk is mapped",
)  # fmt: skip
STUCK_DISK: Final = 20.0
"""Seconds without progress, with a rank in an uninterruptible read that brings nothing."""


def compiling(evidence: Evidence) -> Verdict | None:
    """Compilers run below a rank, or it compiles itself: slow, not hung."""
    waiting = silence(evidence) > evidence.limits.notice and not evidence.ready
    if not (waiting or stale(evidence)):
        return None
    since, below = dict(evidence.compiling_since), evidence.compiling
    busy = [sample for sample in evidence.samples if sample.rank in below and sample.state not in GONE]
    if not busy:
        return _compiles_itself(evidence)
    lines = []
    for one in busy:
        time, tools = below[one.rank]
        verb = "run" if one.compiling else "ran"
        ago = "" if one.compiling else f", the last {seconds(evidence.now - time)} ago"
        lines.append(
            f"proc: below {one.rank} {verb} {', '.join(tools)}, for {clock(time - since.get(one.rank, time))}{ago}"
        )
    lines += [describe(sample) for sample in busy]
    who = names_of(sample.rank for sample in busy)
    verb = "compiles" if len(busy) == 1 else "compile"
    named = sorted({tool for sample in busy for tool in below[sample.rank][1]})
    summary = f"{who} {verb} kernels ({', '.join(named)}): slow, not hung"
    out = ("a deadlock (compilers run)",)
    return Verdict("compiling", summary, busy[0].rank, 0.9, tuple(lines), out, ("wait: the result is cached",))


def _compiles_itself(evidence: Evidence) -> Verdict | None:
    deep = evidence.fresh
    for stack in (*deep.second, *deep.first) if deep is not None else ():
        sample = evidence.sample(stack.rank)
        if not any(COMPILES.search(bare(frame)) for frame in stack.frames[:20]):
            continue
        if sample is None or (sample.cpu or 0.0) < BUSY:
            continue
        lines = (stack_line(stack), describe(sample))
        summary = f"{stack.rank} compiles or tunes kernels: slow, not hung"
        return Verdict("compiling", summary, stack.rank, 0.7, lines, (), ("wait: the result is cached",))
    return None


def downloading(evidence: Evidence) -> Verdict | None:
    """Partial files grow: weights are still on their way over the network."""
    deep = evidence.fresh
    if deep is None or not deep.growing or evidence.ready:
        return None
    rate = sum(file.rate for file in deep.growing)
    lines = [f"disk: {file.path} has {file.size / 1e6:.1f} MB and grows by {file.rate / 1e6:.2f} MB/s"
             for file in deep.growing[:3]]  # fmt: skip
    first = next((file for file in deep.growing if file.total is not None and file.present is not None), None)
    eta = "its end is not known: no index of the model's files yet"
    if first is not None and first.total is not None and first.present is not None:
        left = max(first.total - first.present, 0) / rate
        lines.append(f"disk: {first.present / 1e6:.1f} of {first.total / 1e6:.1f} MB are there, by the model's index")
        eta = f"{clock(left)} to go"
    summary = f"files are being downloaded at {rate / 1e6:.2f} MB/s, {eta}: slow, not hung"
    advice = ("wait, or download the model before the launch (hf download) and point server.model to it",)
    return Verdict("downloading", summary, None, 0.9, tuple(lines), ("a deadlock (files grow)",), advice)


def storage(evidence: Evidence) -> Verdict | None:
    """Weights still come in, slowly; or a disk does not answer at all."""
    if evidence.phase != LOAD or silence(evidence) <= evidence.limits.notice:
        return None
    reading = _reading(evidence)
    disk = next((disk for disk in evidence.deep.disks if disk.what == "model"), None) if evidence.deep else None
    where = [f"disk: {disk.path} is on {disk.kind}"] if disk is not None else []
    if not reading:
        return _slow_disk(evidence, where) or _stuck_disk(evidence, where)
    rate = sum(sample.read_rate or 0.0 for sample in reading)
    summary = f"weights are being read at {rate / 1e6:.{0 if rate >= 1e7 else 1}f} MB/s: slow, not hung"
    lines = (*map(describe, reading), *where)
    return Verdict("storage", summary, reading[0].rank, 0.8, lines, BYTES_COME, SLOW_DISK_ADVICE)


def _waits(evidence: Evidence) -> list[DiskWait]:
    """The ranks of which some thread, mostly a loader's, stands in a read."""
    ranks = {rank.rank for rank in evidence.ranks}
    return [wait for wait in evidence.fresh.waits if wait.rank in ranks] if evidence.fresh is not None else []


def _given(evidence: Evidence) -> float:
    """Bytes per second of the disk that those wait for; 0 when nobody waits, or when that is not known."""
    return (evidence.fresh.given or 0.0) if evidence.fresh is not None and _waits(evidence) else 0.0


def _slow_disk(evidence: Evidence, where: list[str]) -> Verdict | None:
    """A read that takes longer than a look, of a disk that gives something."""
    waits, given = _waits(evidence), _given(evidence)
    if not given:
        return None
    summary = f"weights are being read at {given / 1e6:.2g} MB/s: slow, not hung"
    lines = (*map(_told, waits), *where)
    return Verdict("storage", summary, waits[0].rank, 0.8, lines, BYTES_COME, SLOW_DISK_ADVICE)


def _told(wait: DiskWait) -> str:
    return f"proc: {wait.rank}, thread {wait.thread}: in a read" + (f", waits in {wait.wchan}" if wait.wchan else "")


def _reading(evidence: Evidence) -> list[RankSample]:
    waits = {wait.rank for wait in _waits(evidence)}
    return [
        sample
        for sample in evidence.samples
        if (sample.read_rate or 0.0) > SLOW_READ
        or (sample.major_faults or 0.0) > MANY_FAULTS
        or ((sample.state == "D" or sample.rank in waits) and (sample.read_rate or 0.0) > 0)
    ]


def storage_moves(evidence: Evidence) -> bool:
    """Whether bytes come in from storage."""
    return bool(_reading(evidence)) or _given(evidence) > 0


def _stuck_disk(evidence: Evidence, where: list[str]) -> Verdict | None:
    ranks = {rank.rank for rank in evidence.ranks}
    waiting = [sample for sample in evidence.samples if sample.state == "D" and sample.rank in ranks]
    if silence(evidence) <= STUCK_DISK:
        return None
    if waiting and _waited(evidence, waiting[0].rank):
        names, lines = [sample.rank for sample in waiting], [*map(describe, waiting)]
    else:
        waits = _waits(evidence)
        names = [wait.rank for wait in waits]
        lines = [_told(wait) for wait in waits]
    if not names:
        return None
    summary = f"{names_of(names)} waits for a disk that does not answer"
    advice = ("look at the mount of the model's path and the kernel log: a network disk may be gone",)
    return Verdict("storage", summary, names[0], 0.7, (*lines, *where), ruled_out(evidence), advice)


def _waited(evidence: Evidence, rank: str) -> bool:
    return evidence.now - dict(evidence.waiting_since).get(rank, evidence.now) >= STUCK_DISK / 2


def lock_wait(evidence: Evidence) -> Verdict | None:
    """A rank waits for a lock: one that another process holds, or that a dead one left behind."""
    deep = evidence.fresh
    if deep is None or (evidence.ready and not stale(evidence)) or silence(evidence) <= evidence.limits.notice:
        return None
    stacks = [stack for stack in (deep.second or deep.first)
              if any(WAITS_FOR_LOCK.search(bare(frame)) for frame in stack.frames[:_NEAR])]  # fmt: skip
    idle = [stack for stack in stacks if (one := evidence.sample(stack.rank)) is None or (one.cpu or 0.0) < BUSY]
    blocked = [lock for lock in deep.locks if lock.waiters and not lock.own]
    if not idle and not blocked:
        return None
    rank = idle[0].rank if idle else blocked[0].waiters[0]
    lock = blocked[0] if blocked else _lock_of(idle[0], deep.locks)
    lines = [stack_line(stack) for stack in idle[:2]]
    lines += [f"lock: the kernel lists {names_of(one.waiters)} waiting for {one.path}" for one in blocked[:2]]
    sample = evidence.sample(rank)
    lines += [describe(sample)] if sample is not None else []
    return _lock_verdict(evidence, rank, lock, lines)


def _lock_of(stack: Stack, locks: tuple[Lock, ...]) -> Lock | None:
    """What a stack waits for: a baton is held while its file is there, other locks while a process has them."""
    held = [lock for lock in locks if lock.holder is not None]
    left = [lock for lock in locks if lock.holder is None]
    baton = any(BATON in frame for frame in stack.frames[:_NEAR])
    return next(iter([*left, *held] if baton else held), None)


def _lock_verdict(evidence: Evidence, rank: str, lock: Lock | None, lines: list[str]) -> Verdict:
    out = ruled_out(evidence)
    if lock is None:
        why = (evidence.fresh.why_not("lock") if evidence.fresh else None) or "no cache known here has a held one"
        lines.append(f"lock: not found: {why}")
        where = ("look for files named lock or *.lock in ~/.cache",)
        return Verdict("lock_wait", f"{rank} waits for a lock file", rank, 0.6, tuple(lines), out, where)
    if lock.holder is None:
        lines.append(f"lock: {lock.path} is {seconds(lock.age)} old and no process has it open")
        remove = (f"rm {lock.path}, and the wait ends at once", "stop no compile with kill -9: it leaves such a lock")
        summary = f"{rank} waits for a lock that a dead process left behind"
        return Verdict("lock_wait", summary, rank, 0.9, tuple(lines), out, remove)
    lines.append(f"lock: {lock.path} is held by {lock.holder}, {seconds(lock.age)} old")
    advice = (f"look what {lock.holder} does: the wait ends when it lets go", "do not remove the lock while it lives")
    summary = f"{rank} waits for a lock that {lock.holder} holds"
    return Verdict("lock_wait", summary, rank, 0.9, tuple(lines), out, advice)
