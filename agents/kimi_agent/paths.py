"""Where the agent keeps its things; made on use, 0700, never at import."""

import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kimi_agent.errors import KimiError

SOCKET_LIMIT = 100
"""Longest socket path used; the kernel's limit is 107 bytes."""
SPACE = 64 << 10
"""Bytes of which a file system must have more not to be called full."""


def cache_dir() -> Path:
    """The user's cache directory for bundles and parsed flag tables."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kimi-console"


def default_home() -> Path:
    """`$KIMI_AGENT_HOME`, else the user's state directory."""
    if given := os.environ.get("KIMI_AGENT_HOME"):
        return Path(given)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kimi-agent"


@dataclass(frozen=True, slots=True)
class Home:
    """The layout below one agent's home directory."""

    root: Path

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def log(self) -> Path:
        return self.root / "agent.log"

    @property
    def baselines(self) -> Path:
        return self.root / "baselines"

    @property
    def recordings(self) -> Path:
        """One recording a run, several of a long one."""
        return self.root / "recordings"

    @property
    def bisected(self) -> Path:
        """The profile that was bisected last."""
        return self.root / "bisected.json"

    @property
    def dumps(self) -> Path:
        """Where dumps go when the profile names no directory."""
        return self.root / "dumps"

    @property
    def sockets(self) -> Path:
        """Directory of the sockets: below the home, or below the temporary directory when that path is too long."""
        near = self.root / "s"
        if len(os.fsencode(near)) + len("/run-00000000-000000/cap-4194304.sock") <= SOCKET_LIMIT:
            return near
        digest = hashlib.sha256(os.fsencode(self.root.absolute())).hexdigest()[:8]
        return Path(tempfile.gettempdir()) / f"kimi-agent-{os.getuid()}" / digest

    @property
    def socket(self) -> Path:
        return self.sockets / "agent.sock"

    def run(self, run: str) -> Path:
        """Directory of one run: its record, its log, its profile."""
        return self.root / "runs" / run

    def run_sockets(self, run: str) -> Path:
        """Directory of one run's plugin sockets."""
        return self.sockets / run


def private_dir(path: Path) -> Path:
    """`path` as a directory that only this user can enter.

    Raises:
        KimiError: it cannot be made, or it exists and belongs to someone else or is open to others.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise KimiError(f"cannot make {path}: {error.strerror}", "Free space or choose another --home.") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise KimiError(f"{path} is not a directory of this user", "Remove it or choose another --home.")
    if found.st_mode & 0o077:
        path.chmod(0o700)
    return path


def full_disk(places: Iterable[Path]) -> Path | None:
    """The first of these directories, made or not, whose file system takes no more; `None` when each has space."""
    for place in places:
        for directory in (place, *place.absolute().parents):
            try:
                found = os.statvfs(directory)
            except OSError:
                continue
            free = found.f_bavail if os.geteuid() else found.f_bfree
            if found.f_blocks and free * found.f_frsize < SPACE:
                return place
            break
    return None


def system_error(error: OSError) -> KimiError:
    """What the system refused, for a person: a write of an open file does not say which, but a full disk shows."""
    full, places = error.errno in (errno.ENOSPC, errno.EDQUOT), (default_home(), cache_dir(), Path.cwd())
    where = error.filename or (full and full_disk((*places, Path(tempfile.gettempdir()))))
    hint = "Free space there." if full else ""
    return KimiError(f"{where or 'a file'}: {error.strerror or error}", hint, slug="system")
