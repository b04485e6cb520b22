"""The ports of a launch, and who has them: HTTP, the ranks' meeting place and those derived from it."""

import socket
from typing import Final

from kimi_agent.engine import options
from kimi_agent.host.procfs import port_holder
from kimi_agent.preflight.check import Check, ok, refuse, warn
from kimi_agent.runs.plan import Plan

DELTA: Final = 233
"""Between the HTTP port and the ranks' meeting place, when attention data parallelism makes SGLang derive it."""
DERIVED: Final = 6
"""Ports that SGLang takes after the meeting place with attention data parallelism."""
LAST: Final = 65_535


def wanted_ports(plan: Plan) -> dict[int, str]:
    """Every fixed port beside HTTP that this node's ranks will listen on, with what it is for."""
    argv, server = plan.argv, plan.profile.server
    found: dict[int, str] = {}
    if nccl := options.number(argv, "--nccl-port", default=0):
        found[nccl] = "--nccl-port"
    first = options.number(argv, "--node-rank", default=0) == 0
    given = options.value(argv, "--dist-init-addr", "--nccl-init-addr")
    meeting = int(port) if given and (port := given.rpartition(":")[2]).isdecimal() and len(port) < 6 else None
    if meeting is not None and first:
        found[meeting] = "--dist-init-addr"
    if options.present(argv, "--enable-dp-attention") and first:
        base = meeting if meeting is not None else server.port + DELTA
        base = base if base <= LAST else server.port - DELTA
        start = base + 1 if base + DERIVED <= LAST else base - DERIVED - 1
        found |= dict.fromkeys(range(start, start + DERIVED), f"derived from {base} for attention data parallelism")
    return {port: what for port, what in found.items() if 0 < port <= LAST}


def port_checks(plan: Plan) -> list[Check]:
    """The ports beside HTTP's, which is among the problems of the command line."""
    server = plan.profile.server
    checks = [
        refuse("port-flag", f"[server] flags say {flag} {given}, but the console asks on {mine}",
               f"Remove {flag} from flags and set server.{key} instead.")
        for flag, key, mine in (("--port", "port", str(server.port)), ("--host", "host", server.host))
        if (given := options.value(server.flags, flag)) is not None and given != mine
    ]  # fmt: skip
    wanted = wanted_ports(plan)
    for port, what in wanted.items():
        if taken := taken_by(port):
            checks.append(refuse("port-taken", f"port {port} ({what}) is taken by {taken}",
                                 "Stop what holds it, or choose another port."))  # fmt: skip
    if not checks:
        checks.append(ok("ports", f"HTTP {server.port}" + (f" and {len(wanted)} more" if wanted else "") + " are free"))
    low = ephemeral_from()
    if low is not None and low <= server.port <= LAST:
        checks.append(warn("port-ephemeral", f"port {server.port} is one that the kernel gives to outgoing connections "
                           f"(from {low} on): it may be taken by the time the weights are loaded",
                           f"Set server.port below {low}."))  # fmt: skip
    return checks


def taken_by(port: int) -> str | None:
    """Who holds a TCP port; `None` when it is free."""
    if holder := port_holder(port):
        return holder
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return f"something that is not seen from here ({error.strerror})"
    return None


def ephemeral_from() -> int | None:
    """The first port that the kernel gives to outgoing connections."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:  # noqa: PTH123 - a kernel file
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
