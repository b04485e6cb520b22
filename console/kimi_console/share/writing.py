"""Files that are whole or not there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kimi_agent.errors import KimiError, UsageError


@contextmanager
def new_file(path: Path) -> Iterator[None]:
    """What the block writes there; nothing stays of it when it fails.

    Raises:
        UsageError: the file is there already, or cannot be written.
    """
    if path.exists():
        raise UsageError(f"{path} exists", "Choose another file.")
    try:
        yield
    except FileExistsError as error:  # it came meanwhile, and is somebody else's
        raise UsageError(f"{path} exists", "Choose another file.") from error
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}", "Choose another file.") from error
    except KimiError:
        path.unlink(missing_ok=True)
        raise
