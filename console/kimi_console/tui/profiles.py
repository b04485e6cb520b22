"""The profiles that the launch form offers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kimi_agent.errors import KimiError
from kimi_agent.profile import Profile, load


@dataclass(frozen=True, slots=True)
class Choice:
    """One profile, or why it is none."""

    name: str
    where: str
    """Its file, or its model."""
    tables: dict[str, Any] | None
    """What `preflight` and `launch` are sent."""
    error: str = ""


def from_profile(profile: Profile, where: str = "") -> Choice:
    """A profile that was read before."""
    return Choice(profile.name, where or profile.server.model, _without_none(asdict(profile)))


def from_path(path: Path) -> Choice:
    """A profile's file; one that cannot be read stays in the list with its error."""
    path = path.expanduser()
    try:
        return from_profile(load(path), str(path))
    except KimiError as error:
        return Choice(path.stem, str(path), None, str(error))


def choices(profiles: Sequence[Path | Profile]) -> list[Choice]:
    """What the form lists."""
    return [from_profile(item) if isinstance(item, Profile) else from_path(item) for item in profiles]


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return list(value) if isinstance(value, tuple) else value
