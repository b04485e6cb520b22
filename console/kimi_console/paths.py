"""Where the console keeps its things; nothing is made at import."""

from pathlib import Path

import platformdirs

_APP = "kimi-console"


def config_dir() -> Path:
    """Profiles and the operator's own themes."""
    return Path(platformdirs.user_config_dir(_APP))


def profiles_dir() -> Path:
    """Launch profiles offered in the console, `*.toml`."""
    return config_dir() / "profiles"


def themes_dir() -> Path:
    """The operator's own themes, `*.toml`."""
    return config_dir() / "themes"


def state_dir() -> Path:
    """What the console remembers between sessions."""
    return Path(platformdirs.user_state_dir(_APP))


def data_dir() -> Path:
    """Recordings and what the demo builds."""
    return Path(platformdirs.user_data_dir(_APP))


def cache_dir() -> Path:
    """The agent's bundle, for this machine and for upload."""
    return Path(platformdirs.user_cache_dir(_APP))
