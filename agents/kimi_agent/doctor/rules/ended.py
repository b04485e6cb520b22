"""What has already failed: memory, ports, exceptions, dead ranks, hardware, and an end that nobody explains."""

import re
from typing import Final

from kimi_agent.counts import many
from kimi_agent.doctor.evidence import Evidence
from kimi_agent.doctor.rules.common import past, silence, stale
from kimi_agent.host.kernel import xid
from kimi_agent.model.events import Verdict

UNPACKED: Final = re.compile(r"(?:too many|not enough) values to unpack|cannot unpack non-iterable")
MODEL_FORWARD: Final = re.compile(r'/models/[^/"]+\.py", line \d+, in \w*forward')
SHORT_OF_LAYERS: Final = re.compile(
    r"captured \d+ of \d+ aux hidden states|The model captured [\d.]+ aux hidden states"
)
"""What SGLang says when the model returned fewer boundaries than were asked for."""
DISK_FULL: Final = re.compile(r"No space left on device|Disk quota exceeded|Errno 28\b|Errno 122\b")
WEIGHTS: Final = re.compile(r"safetensors|SafetensorError|HeaderTooLarge|incomplete metadata", re.IGNORECASE)
TOKENIZER: Final = re.compile(r"tokenizer", re.IGNORECASE)
PROGRAM_XIDS: Final = frozenset({13, 31, 43, 45})
"""Xids that a faulty kernel gives more often than a faulty card."""
PID: Final = re.compile(r"\bpid=(\d{1,9})")
OOM_LINE: Final = re.compile(r"oom-kill:|[Oo]ut of memory: Killed")


def out_of_memory(evidence: Evidence) -> Verdict | None:
    """Memory ran out: by the server's own words, or by the kernel's count of kills and a dead rank."""
    facts = evidence.facts
    ended = facts.failed or evidence.dead or evidence.exited
    if facts.memory_line is not None and ended:
        advice = ("lower --mem-fraction-static, --max-running-requests or the context length",
                  "look for another process on the same GPUs")  # fmt: skip
        summary = "memory ran out" + (f" on {facts.memory_rank}" if facts.memory_rank else "")
        return Verdict("out_of_memory", summary, facts.memory_rank, 0.95, (f"log: {facts.memory_line}",), (), advice)
    if not evidence.kernel.oom_kills or not ended:
        return None
    rank = evidence.dead[0] if evidence.dead else facts.died
    taken = many(evidence.kernel.oom_kills, "process", "processes")
    lines = [f"cgroup: the OOM killer took {taken} of this cgroup since the start"]
    lines += [f"kernel: {line}" for line in evidence.kernel.lines if OOM_LINE.search(line)][:2]
    lines += [f"proc: {rank} was the first to vanish"] if evidence.dead else []
    advise = ("raise the memory limit of the container or the cgroup, or load fewer files at once",)
    summary = f"the kernel's OOM killer ended {rank or 'a process of the server'}"
    return Verdict("out_of_memory", summary, rank, 0.95, tuple(lines), (), advise)


def disk_full(evidence: Evidence) -> Verdict | None:
    """A file system is full."""
    raised, facts = evidence.facts.exception, evidence.facts
    words = str(raised) if raised is not None else facts.failed or ""
    if not DISK_FULL.search(words):
        return log_full(evidence) if evidence.dead or evidence.exited else None
    lines = [f"log: {raised.rank or 'the main process'}: {raised}" if raised is not None else f"log: {words}"]
    if evidence.deep is not None:
        tight = [disk for disk in evidence.deep.disks if disk.free < max(disk.total // 100, 1 << 20)]
        lines += [f"disk: {disk.what} {disk.path} has {disk.free / 2**20:.0f} MiB free of {disk.total / 2**20:.0f}"
                  for disk in tight]  # fmt: skip
    advice = ("free space there, or point TMPDIR and the caches to another file system",)
    return Verdict("storage", "a file system is full", raised.rank if raised else None, 0.95, tuple(lines), (), advice)


def log_full(evidence: Evidence) -> Verdict | None:
    """The log's own file system is full: of what ended or stands still, the last words are missing."""
    place, raised = evidence.seen.log_full, evidence.facts.exception
    gone = bool(evidence.dead) or evidence.exited is not None
    still = not evidence.ready and silence(evidence) > evidence.limits.notice
    if place is None or evidence.facts.stopping or (raised is not None and not raised.effect) or not (gone or still):
        return None
    rank = evidence.dead[0] if evidence.dead else None
    lines = [f"disk: {place}, where the server's log is, has no space left", past(evidence)]
    lines += [f"proc: {rank} has vanished"] if rank else []
    advice = (f"free space in {place}: the log cannot say what happens while there is none", "then launch again")
    summary = "the file system of the server's log is full, and its last words are missing"
    return Verdict("storage", summary, rank, 0.7, tuple(lines), (), advice)


def port_in_use(evidence: Evidence) -> Verdict | None:
    """A port that the server needs is taken: by its own words, or because another process listens there."""
    if evidence.ready:
        return None
    advice = ("stop the other process, or choose another port",)
    taken = [port for port in (evidence.deep.ports if evidence.deep else ()) if port.holder and not port.own]
    seen = [f"port: {port.what} port {port.port} is held by {port.holder}" for port in taken]
    line = evidence.facts.port_line
    if line is not None:
        who = f": {taken[0].what} {taken[0].port}, held by {taken[0].holder}" if taken else " by another process"
        return Verdict("port_in_use", f"a port that the server needs is taken{who}", None, 0.95,
                       (f"log: {line}", *seen), (), advice)  # fmt: skip
    # With several nodes the rendezvous may be held by another node's process on this host.
    local = [port for port in taken if port.what == "HTTP" or not evidence.absent]
    if not local:
        return None
    first = local[0]
    summary = f"the server's {first.what} port {first.port} is taken by {first.holder}: it will fail when it gets there"
    return Verdict("port_in_use", summary, None, 0.9, tuple(seen), (), advice)


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
    lines += [f"log: {raised.where}"] if raised.where else []
    if evidence.facts.failed and str(raised) not in evidence.facts.failed:
        lines.append(f"log: {evidence.facts.failed}")
    advice = ["read the traceback in the log above this line"]
    if WEIGHTS.search(f"{raised} {raised.where}"):
        advice.insert(0, "check the model's weight files: one is cut short or damaged; copy or download it again")
    elif TOKENIZER.search(str(raised)):
        advice.insert(0, "check that the model's directory holds its tokenizer files, or name another --tokenizer-path")
    return Verdict("exception", f"{where} raised {raised}", raised.rank, 0.95, tuple(lines), (), tuple(advice))


def dead_rank(evidence: Evidence) -> Verdict | None:
    """A rank's process is gone; the first that went is the cause, the others' errors are effects."""
    facts, effect = evidence.facts, evidence.facts.exception
    if facts.stopping:
        return None
    rank = _first_gone(evidence) or facts.died
    if rank is None and effect is None:
        return None
    lines = [f"proc: {rank} has vanished"] if evidence.dead else []
    if facts.died is not None:
        lines.append(f"log: {facts.died} died, exit code {'unknown' if facts.died_code is None else facts.died_code}")
    if effect is not None and effect.effect:
        lines.append(f"log: {effect.rank or 'main'}: {effect} (an effect: it lost its peer)")
    lines += [f"kernel: {line}" for line in evidence.kernel.lines[:2]]
    if not lines:
        return None
    if evidence.kernel.oom_kills == 0:
        lines.append("cgroup: the OOM killer's count stands still")
    summary = f"{rank} died" if rank else "a rank died; the log does not name it"
    out = ("the OOM killer (its count stands still)",) if evidence.kernel.oom_kills == 0 else ()
    advice = [] if out else ["look at the kernel log for the OOM killer or an Xid"]
    advice.append("read the log above the first error; launch again when the reason is known")
    if facts.died_code == -9:
        advice.append("exit code -9 alone is no proof of the OOM killer: SGLang kills its own ranks so too")
    return Verdict("dead_rank", summary, rank, 0.95 if evidence.dead else 0.7, tuple(lines), out, tuple(advice))


def _first_gone(evidence: Evidence) -> str | None:
    """The rank that vanished first: of several, not the one whose error says that it lost its peer."""
    raised = evidence.facts.exception
    survivor = raised.rank if raised is not None and raised.effect else None
    return next((rank for rank in evidence.dead if rank != survivor), evidence.dead[0] if evidence.dead else None)


def hardware(evidence: Evidence) -> Verdict | None:
    """The driver reported an error of a GPU or the bus since the start, or NVML does not answer."""
    told = [line for line in evidence.kernel.lines if not OOM_LINE.search(line) and not _of_others(evidence, line)]
    stalled = evidence.seen.no_gpu if evidence.seen.no_gpu and "did not answer" in evidence.seen.no_gpu else None
    if not told and stalled is None:
        return None
    lines = [*(f"kernel: {line}" for line in told[:4]), *([f"nvml: {stalled}"] if stalled else [])]
    standing = stale(evidence) or silence(evidence) > evidence.limits.notice
    if not (standing or evidence.dead or evidence.exited or evidence.facts.failed or stalled or any(map(_grave, told))):
        return None
    codes = [found for line in told if (found := xid(line)) is not None]
    if not codes:
        what = "the kernel reports a device error" if told else "the GPU driver does not answer"
        advice = ("read the kernel log: dmesg -T",)
        return Verdict("hardware", what, None, 0.8 if told else 0.6, tuple(lines), (), advice)
    bus, code = codes[0]
    program = code in PROGRAM_XIDS
    advice = ("a faulty kernel gives this Xid more often than a faulty card: look at the first exception",) if program \
        else (f"take the GPU at PCI {bus} out of use and reset it, or restart the host",)  # fmt: skip
    summary = f"the driver reported Xid {code} of the GPU at PCI {bus}"
    return Verdict("hardware", summary, _rank_of(evidence, told), 0.7 if program else 0.9, tuple(lines), (), advice)


def _grave(line: str) -> bool:
    """Whether no program can go on after it: an Xid of the card itself."""
    found = xid(line)
    return found is not None and found[1] not in PROGRAM_XIDS


def _of_others(evidence: Evidence, line: str) -> bool:
    """Whether a line is about a program on the same host that is not this server's."""
    found, named = xid(line), PID.search(line)
    if found is None or named is None or found[1] not in PROGRAM_XIDS:
        return False
    return int(named[1]) not in {sample.pid for sample in evidence.samples}


def _rank_of(evidence: Evidence, lines: list[str]) -> str | None:
    """The rank whose pid a line of the driver names."""
    named = {int(match[1]) for line in lines if (match := PID.search(line))}
    return next((sample.rank for sample in evidence.samples if sample.pid in named), None)


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
