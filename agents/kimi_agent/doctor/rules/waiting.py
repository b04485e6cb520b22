"""Ranks that wait for each other: one is stopped, one spins, one is late, none moves."""

from typing import Final

from kimi_agent.doctor.evidence import Evidence
from kimi_agent.doctor.facts import Machine
from kimi_agent.doctor.rules.common import (
    BUSY,
    clock,
    countdown,
    describe,
    frame_name,
    importing,
    in_collective,
    names_of,
    past,
    ruled_out,
    seconds,
    silence,
    stack_lines,
    stale,
    unchecked,
)  # fmt: skip
from kimi_agent.model.events import GpuSample, Verdict
from kimi_agent.model.phases import IMPORT, JOIN, MEANING

SETTLED: Final = 0.4
"""Seconds for which a process is stopped before that is told."""
SPIN_LOAD: Final = 95
"""Percent of utilisation that NVML shows while a kernel runs, whether it works or spins."""
SPIN_POWER: Final = 0.35
"""Share of the power limit below which a GPU at full utilisation does no work."""
P2P_ADVICE: Final = (
    "launch once with NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce: if that starts, peer-to-peer writes are lost",
    "then fix the cause: iommu=off or iommu=pt on the kernel's command line, ACS off in the BIOS",
)


def stopped(evidence: Evidence) -> Verdict | None:
    """A rank's process is stopped: the others wait for it for ever."""
    for sample in evidence.samples:
        if sample.state != "T":
            continue
        since = dict(evidence.stopped_since).get(sample.rank)
        if since is not None and evidence.now - since < SETTLED:
            continue  # SGLang's own watchdog stops a rank for a moment to read its stack
        held = f", for {clock(evidence.now - since)}" if since is not None else ""
        others = [rank.rank for rank in evidence.ranks if rank.rank != sample.rank]
        lines = [f"{describe(sample)}{held}", _own_line(evidence, sample.rank), *stack_lines(evidence, others)]
        left = countdown(evidence)
        until = f", which gives up in {clock(left)} and then ends the server" if left is not None else ""
        place = "in the barrier after loading" if left is not None else "to take part in the next batch" \
            if evidence.ready else f"in {evidence.phase or IMPORT!r}"  # fmt: skip
        wait = f"All other ranks wait for {sample.rank} {place}{until}." if others else "Nothing else can go on."
        summary = f"{sample.rank} is stopped. It was sent SIGSTOP, or a debugger holds it. {wait}"
        advice = (f"resume it: kill -CONT {sample.pid}, if nobody debugs it", "or stop the run")
        return Verdict("straggler", summary, sample.rank, 0.98, tuple(lines), ruled_out(evidence), advice)
    return None


def _own_line(evidence: Evidence, rank: str) -> str:
    state = next((one for one in evidence.ranks if one.rank == rank), None)
    if state is None:
        return past(evidence)
    ago = f", entered {clock(evidence.now - state.since)} ago" if state.since else ""
    ahead = sum(1 for one in evidence.ranks if one.phase == state.phase)
    return f"log: {rank} is in {state.phase!r}{ago}; {ahead} of {len(evidence.ranks)} ranks are there"


def watchdog(evidence: Evidence) -> Verdict | None:
    """SGLang's own watchdog gave up on a forward pass."""
    facts = evidence.facts
    if facts.watchdog_line is None:
        return None
    summary = f"{facts.watchdog_rank or 'the scheduler'} did not finish a forward pass within SGLang's own limit"
    advice = ("read the stacks that SGLang wrote into the log above this line",)
    return Verdict("deadlock", summary, facts.watchdog_rank, 0.6, (f"log: {facts.watchdog_line}",), (), advice)


def comm_spin(evidence: Evidence) -> Verdict | None:
    """GPUs at full utilisation that draw idle power: a kernel spins on a peer's flag that never comes."""
    standing = stale(evidence) or (not evidence.ready and silence(evidence) > evidence.limits.straggler)
    gpus = _own_gpus(evidence)
    if not standing or not gpus or not all(map(_spins, gpus)):
        return None
    lines = [f"nvml: GPU {gpu.index} {gpu.utilisation} % busy at {gpu.power:.0f} of {gpu.power_limit:.0f} W"
             for gpu in gpus[:4] if gpu.power is not None and gpu.power_limit is not None]  # fmt: skip
    rank = _outside(evidence)
    lines += stack_lines(evidence, [rank] if rank else [one.rank for one in evidence.ranks])
    machine = evidence.deep.machine if evidence.deep is not None else None
    if machine is not None:
        flags = " ".join(machine.iommu_flags) or "no IOMMU words"
        lines.append(f"kernel: {flags} on the command line, {machine.iommu_groups} IOMMU groups; {_acs(machine)}")
    who = f"; {rank} is the one that is not in the collective" if rank else ""
    summary = f"{len(gpus)} GPUs spin at idle power: a collective waits for a peer's write that never comes{who}"
    proven = bool(machine and machine.acs_redirect)
    return Verdict("comm_spin", summary, rank, 0.9 if proven else 0.8, tuple(lines), ruled_out(evidence), P2P_ADVICE)


def _acs(machine: Machine) -> str:
    if machine.acs_redirect is None:
        return "ACS not checked: PCI configuration space needs root"
    return f"ACS redirect on at {names_of(machine.acs_redirect)}" if machine.acs_redirect else "no ACS redirect"


def _own_gpus(evidence: Evidence) -> list[GpuSample]:
    """The GPUs that NVML lists for the run's ranks; all, where it cannot tell (another PID namespace)."""
    used = {sample.gpu for sample in evidence.samples if sample.gpu is not None}
    return [gpu for gpu in evidence.gpus if not used or gpu.index in used]


def _spins(gpu: GpuSample) -> bool:
    if gpu.utilisation is None or gpu.power is None or not gpu.power_limit:
        return False
    return gpu.utilisation >= SPIN_LOAD and gpu.power < SPIN_POWER * gpu.power_limit


def _outside(evidence: Evidence) -> str | None:
    """The one rank that is not in a collective while all the others wait in one; by the newest stacks."""
    deep = evidence.fresh
    if deep is None:
        return None
    names = [rank.rank for rank in evidence.ranks]
    stacks = [stack for name in names if (stack := deep.stack(name)) is not None]
    outside = [stack.rank for stack in stacks if not in_collective(stack)]
    return outside[0] if len(names) > 1 and len(stacks) == len(names) and len(outside) == 1 else None


def straggler(evidence: Evidence) -> Verdict | None:
    """Some ranks wait for others: those are a phase behind, on another node, or the only ones outside a collective."""
    if evidence.ready:
        return _late_by_stack(evidence) if stale(evidence) else None
    behind = evidence.laggards()
    if evidence.live and (importing(evidence) or silence(evidence) <= evidence.limit(evidence.limits.straggler)):
        return None
    if not behind:
        return _absent_node(evidence) or _late_by_stack(evidence)
    if evidence.facts.untagged:
        return _late_by_stack(evidence) or _unnamed(evidence, len(behind))
    phase = evidence.phase or IMPORT
    lines = [past(evidence)]
    if evidence.silent is not None:
        lines.append(f"log: no progress for {seconds(evidence.silent)}")
    lines += [describe(sample) for rank in behind if (sample := evidence.sample(rank)) is not None][:2]
    lines += stack_lines(evidence, behind)
    lines += [line for line in unchecked(evidence) if line.startswith(("proc", "stack")) and line not in lines]
    left = countdown(evidence)
    if left is not None:
        lines.append(f"log: SGLang's barrier of {evidence.limits.barrier:.0f} s ends the server in {seconds(left)}")
    summary = f"{names_of(behind)} is still in {phase!r}; the others wait for it"
    advice = (f"what it does there: {MEANING[phase]}", f"look at the stack of {behind[0]}")
    confidence = 0.8 if evidence.live else 0.5
    return Verdict("straggler", summary, behind[0], confidence, tuple(lines), ruled_out(evidence), advice)


def _unnamed(evidence: Evidence, behind: int) -> Verdict | None:
    """Some ranks are late, and the log's format does not say which."""
    if silence(evidence) <= evidence.limit(evidence.limits.straggler) or evidence.facts.stopping:
        return None
    total, phase = len(evidence.ranks), evidence.phase
    lines = (f"log: {total - behind} of {total} ranks past {phase!r}; this log's format names no rank",
             f"log: no progress for {seconds(silence(evidence))}", *unchecked(evidence))  # fmt: skip
    advice = ("keep SGLang's own log format, or put the rank into yours, to see which rank it is",)
    summary = f"{behind} of {total} ranks are still in {phase!r}; the others wait"
    return Verdict("straggler", summary, None, 0.5, lines, ruled_out(evidence), advice)


def _late_by_stack(evidence: Evidence) -> Verdict | None:
    """All ranks are level; one is stuck outside the collective in which all others wait."""
    rank, deep = _outside(evidence), evidence.fresh
    if rank is None or deep is None or deep.unmoved(rank) is not True:
        return None
    lines = stack_lines(evidence, [rank, *(one.rank for one in evidence.ranks if one.rank != rank)])
    lines += [describe(sample)] if (sample := evidence.sample(rank)) is not None else []
    stack = deep.stack(rank)
    where = frame_name(stack.frames[0]) if stack is not None and stack.frames else "one place"
    summary = f"{rank} stands in {where} while all other ranks wait for it in a collective"
    advice = (f"read the stack of {rank}: what it waits for there is the cause",)
    return Verdict("straggler", summary, rank, 0.8, tuple(lines), ruled_out(evidence), advice)


def _absent_node(evidence: Evidence) -> Verdict | None:
    """The local ranks wait for ranks of another node that has not come, or for a first node that does not answer."""
    if evidence.phase not in (JOIN, IMPORT) or not evidence.absent:
        return None
    ports = evidence.deep.ports if evidence.deep is not None else ()
    port = next((port for port in ports if port.what.startswith("--dist")), None)
    lines = [past(evidence), f"log: no progress for {seconds(silence(evidence))}"]
    if port is None:
        lines.append("port: not checked yet")
    elif port.own:
        lines.append(f"port: {port.what} {port.port} is open here; {_remote(port.peers, len(evidence.ranks))}")
    else:
        lines.append(f"port: {port.what} {port.port} is not open on this host: this node waits for the first node")
    lines += stack_lines(evidence, [rank.rank for rank in evidence.ranks])
    other = names_of(evidence.absent)
    summary = f"{other} on another node has not joined; the ranks of this node wait for it"
    advice = ("compare --dist-init-addr on all nodes: it must be the first node's address, the same port everywhere",
              "look at the other node's own log and agent, and at the firewall between them")  # fmt: skip
    return Verdict("straggler", summary, evidence.absent[0], 0.8, tuple(lines), ruled_out(evidence), advice)


def _remote(peers: int, local: int) -> str:
    return "no other process has connected" if peers <= local * 2 else f"{peers} connections"


def deadlock(evidence: Evidence) -> Verdict | None:
    """Every rank stood in the same place twice, seconds apart, and neither CPU nor GPU does anything."""
    deep = evidence.fresh
    if deep is None or not deep.second or not evidence.ranks:
        return None
    if not (stale(evidence) or (not evidence.ready and silence(evidence) > evidence.limits.deadlock)):
        return None
    names = [rank.rank for rank in evidence.ranks]
    samples = [sample for name in names if (sample := evidence.sample(name)) is not None]
    moving = any((one.cpu or 0.0) >= BUSY or one.state == "D" or (one.read_rate or 0.0) > 0 for one in samples)
    if moving or not samples or any(gpu.utilisation for gpu in _own_gpus(evidence)):
        return None
    if not all(deep.unmoved(name) for name in names):
        return None
    lines = [*stack_lines(evidence, names), f"stack: {len(names)} of {len(names)} ranks unmoved in two looks 6 s apart"]
    lines += [describe(sample) for sample in samples[:2]]
    lines += [f"log: no progress for {seconds(silence(evidence))}"] if not evidence.ready else []
    lines += [line for line in unchecked(evidence) if line.startswith("nvml")]
    everyone = all(in_collective(stack) for name in names if (stack := deep.stack(name)) is not None)
    stack = deep.stack(names[0])
    where = frame_name(stack.frames[0]) if stack is not None and stack.frames else "the same place"
    rank = names[0] if len(names) == 1 else None
    stands, waits = ("stands", "waits") if len(names) == 1 else ("stand", "wait")
    summary = f"{names_of(names)} {stands} still in {where}; nothing computes"
    if everyone:
        summary = f"{names_of(names)} {waits} in a collective that nobody completes"
    advice = ("read both stacks: what they wait for is the cause",
              "if they wait in different collectives, launch with --disable-cuda-graph and compare")  # fmt: skip
    return Verdict("deadlock", summary, rank, 0.8, tuple(lines), ruled_out(evidence), advice)
