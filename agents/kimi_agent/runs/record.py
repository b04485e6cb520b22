"""What a run leaves on disk so that a restarted agent finds it again."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from kimi_agent.errors import KimiError

RUN_VARIABLE = "KIMI_AGENT_RUN"
"""In the environment of every process of a run: it finds also those that left the server's session."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run: who it is and how to recognise its process."""

    run: str
    pid: int
    starttime: int
    """Clock ticks after boot, field 22 of /proc/PID/stat: a pid alone may be used again."""
    boot_id: str
    profile: dict[str, object]
    argv: tuple[str, ...]
    version: str | None
    ended: bool = False


def save(directory: Path, record: RunRecord) -> None:
    """Write the record so that a reader sees the old one or the new one, whole."""
    part = directory / ".run.json.part"
    with part.open("wb") as file:
        file.write(msgspec.json.encode(asdict(record)))
        file.flush()
        os.fsync(file.fileno())
    part.chmod(0o600)
    part.rename(directory / "run.json")


def load(directory: Path) -> RunRecord:
    """Read a run's record.

    Raises:
        KimiError: it is missing or not what this version writes.
    """
    path = directory / "run.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunRecord)
    except (OSError, msgspec.DecodeError) as error:
        raise KimiError(
            f"cannot read {path}: {error}", "The run cannot be found again; look at its pid yourself."
        ) from error
