"""Facts of the machine that a diagnosis needs: file systems, the IOMMU, proxies in a process's environment."""

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kimi_agent.host.procfs import read_text

PROXIES: Final = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
"""Variables that lead a request for http://… elsewhere."""
EXCEPTIONS: Final = ("no_proxy", "NO_PROXY")
_ACS_CAPABILITY: Final = 0x000D
_REDIRECT: Final = 0x0004 | 0x0008
"""ACS control bits: peer-to-peer requests and completions are sent up to the root."""
_PCI_BRIDGE: Final = "0x0604"


def environment(pid: int, wanted: frozenset[str]) -> dict[str, str] | None:
    """Those variables of a process's environment that were asked for; nothing else of it is kept.

    `None` when it may not be read.
    """
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    pairs = (part.decode("utf-8", "replace").partition("=") for part in raw.split(b"\0") if part)
    return {name: value for name, _, value in pairs if name in wanted}


def proxy_for(host: str, variables: Mapping[str, str]) -> tuple[str, str] | None:
    """(variable, where it leads, without any password) when a request to `host` would go through a proxy."""
    name = next((name for name in PROXIES if variables.get(name)), None)
    if name is None:
        return None
    for part in ",".join(variables.get(each, "") for each in EXCEPTIONS).split(","):
        spared = part.strip().lstrip(".")
        if spared == "*" or (spared and (host == spared or host.endswith("." + spared))):
            return None
    try:
        where = urlsplit(variables[name] if "//" in variables[name] else f"//{variables[name]}")
        return name, f"{where.hostname}:{where.port}" if where.port else str(where.hostname)
    except ValueError:
        return name, "an address that cannot be read"


def file_system(path: str) -> tuple[str, str]:
    """(mount point, kind) of the file system below a path, from the kernel's table; symbolic links are followed."""
    real = os.path.realpath(path)
    best = ("/", "unknown")
    for line in (read_text("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or not kind:
            continue
        place = fields[4].replace("\\040", " ")
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best[0]):
            best = (place, kind[0])
    return best


def iommu_flags(text: str) -> tuple[str, ...]:
    """The words of a kernel command line that say what the IOMMU does."""
    return tuple(word for word in text.split() if "iommu" in word or word.startswith("pci="))


def iommu_groups() -> int:
    """How many groups the IOMMU has made; 0 when it is off."""
    try:
        return sum(1 for _ in Path("/sys/kernel/iommu_groups").iterdir())
    except OSError:
        return 0


def acs_redirecting() -> tuple[str, ...] | None:
    """The PCI bridges that redirect peer-to-peer writes to the root; `None` when that may not be read."""
    found, readable = [], False
    for device in Path("/sys/bus/pci/devices").glob("*"):
        if not (read_text(str(device / "class")) or "").startswith(_PCI_BRIDGE):
            continue
        try:
            config = (device / "config").read_bytes()
        except OSError:
            continue
        control = acs_control(config)
        readable = readable or len(config) > 256
        if control is not None and control & _REDIRECT:
            found.append(device.name)
    return tuple(sorted(found)) if readable else None


def acs_control(config: bytes) -> int | None:
    """The ACS control register in a device's PCI configuration space; `None` without that capability."""
    offset = 0x100
    for _ in range(48):
        if offset < 0x100 or offset + 8 > len(config):
            return None
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS_CAPABILITY:
            return int(struct.unpack_from("<H", config, offset + 6)[0])
        offset = header >> 20
    return None
