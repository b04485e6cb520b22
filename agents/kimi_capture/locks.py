"""Whether a lock file is held. Without numpy, whose import the journal's readers need not pay for."""

import fcntl
import os
from pathlib import Path


def is_locked(path: Path) -> bool:
    """Whether a process has an exclusive lock on this file; not where the file cannot be opened."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
