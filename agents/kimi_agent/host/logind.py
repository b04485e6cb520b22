"""Outliving the login: what systemd does with processes that a session leaves behind, and the way around it."""

import configparser
import os
import pwd
import shutil
from pathlib import Path

ROOT = Path("/")


def scope_argv(unit: str, uid: int, root: Path = ROOT) -> list[str]:
    """What to put before a command so that it runs in a scope of the user's own systemd; nothing where that is no gain.

    Only with lingering: without it the user's systemd ends with the last login, and all its scopes with it.
    """
    runtime = root / "run" / "user" / str(uid)
    if not lingers(uid, root) or not (runtime / "systemd" / "private").exists() or shutil.which("systemd-run") is None:
        return []
    return [
        "env", f"XDG_RUNTIME_DIR={runtime}",
        "systemd-run", "--user", "--scope", "--quiet", "--collect", f"--unit={unit}", "--",
    ]  # fmt: skip


def lingers(uid: int, root: Path = ROOT) -> bool:
    """Whether the user's systemd runs without a login too."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return False
    return (root / "var" / "lib" / "systemd" / "linger" / name).exists()


def ended_at_logout(uid: int, root: Path = ROOT) -> bool:
    """Whether logind kills this user's processes at the end of the login, in spite of a session of their own."""
    if not (root / "run" / "systemd" / "system").is_dir() or uid == 0 or lingers(uid, root):
        return False
    for file in reversed(_settings(root)):
        found = configparser.ConfigParser(strict=False, interpolation=None)
        try:
            found.read_string(file.read_text("utf-8", "replace"))
        except (OSError, configparser.Error):
            continue
        if found.has_option("Login", "KillUserProcesses"):
            return found.get("Login", "KillUserProcesses").lower() in ("yes", "true", "1", "on")
    return False


def _settings(root: Path) -> list[Path]:
    """logind's settings, the last one wins."""
    main = [root / "usr" / "lib" / "systemd" / "logind.conf", root / "etc" / "systemd" / "logind.conf"]
    drops = [root / "usr" / "lib" / "systemd" / "logind.conf.d", root / "etc" / "systemd" / "logind.conf.d"]
    files = [path for drop in drops if drop.is_dir() for path in drop.glob("*.conf")]
    return [*(path for path in main if path.is_file()), *sorted(files, key=lambda path: path.name)]


def logout_warning(root: Path = ROOT) -> str | None:
    """What to tell the operator when a logout would end the agent and the server."""
    uid = os.getuid()
    if not ended_at_logout(uid, root):
        return None
    return "this host ends a user's processes at logout, the server too: run loginctl enable-linger once to keep them"
