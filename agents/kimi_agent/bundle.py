"""The agent and the plugin as one directory, named by the hash of its contents.

SGLang's Python gets it through PYTHONPATH: nothing is installed there, and an entry point in the bundle's dist-info
makes SGLang load the plugin. The same directory is what a console uploads to a far host.
"""

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import time
from contextlib import suppress
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from kimi_agent import __version__, paths
from kimi_agent.errors import KimiError

KEPT = 3
"""Bundles that are kept beside those in use."""
LEFT_OVER = 3600.0
"""Seconds after which an upload that never ended is taken away."""
PACKAGES = ("kimi_agent", "kimi_capture")
DIST_INFO = f"kimi_capture-{__version__}.dist-info"


def _sources(package: Traversable, prefix: PurePosixPath) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in package.iterdir():
        path = prefix / entry.name
        if entry.is_dir():
            if entry.name != "__pycache__":
                found |= _sources(entry, path)
        elif entry.name.endswith((".py", ".typed")):
            found[str(path)] = entry.read_bytes()
    return found


@lru_cache(maxsize=1)
def _contents() -> dict[str, bytes]:
    """Every file of the bundle by its path in it."""
    contents: dict[str, bytes] = {}
    for package in PACKAGES:
        contents |= _sources(files(package), PurePosixPath(package))
    contents[f"{DIST_INFO}/METADATA"] = f"Metadata-Version: 2.1\nName: kimi-capture\nVersion: {__version__}\n".encode()
    contents[f"{DIST_INFO}/entry_points.txt"] = b"[sglang.srt.plugins]\nkimi_capture = kimi_capture.hook:register\n"
    return dict(sorted(contents.items()))


def build_id() -> str:
    """12 hex digits of the hash over the bundle's paths and contents."""
    digest = hashlib.sha256()
    for path, data in _contents().items():
        digest.update(f"{path}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()[:12]


def bundle_tar() -> bytes:
    """The bundle as a .tar.gz that is the same byte for byte on every machine."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, data in _contents().items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


def ensure_bundle() -> Path:
    """The bundle's directory in the user's cache, written now if it is not there.

    Raises:
        KimiError: the cache directory cannot be written.
    """
    here = Path(str(files("kimi_agent"))).parent
    if (here / DIST_INFO).is_dir():
        return here
    target = paths.private_dir(paths.cache_dir() / "agent") / build_id()
    if target.is_dir():
        return target
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        for path, data in _contents().items():
            file = part / path
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.write_bytes(data)
        part.rename(target)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        if not target.is_dir():
            what = f"cannot write {target}: {error.strerror}"
            raise KimiError(what, "Free space there, or set XDG_CACHE_HOME.") from error
    return target


def prune_cache() -> list[str]:
    """Prune the cache that this bundle runs from; a checkout or an installation is left alone."""
    here = Path(str(files("kimi_agent"))).parent
    place = paths.cache_dir() / "agent"
    return prune(place) if (here / DIST_INFO).is_dir() and here.parent == place else []


def prune(place: Path, keep: int = KEPT) -> list[str]:
    """Take away old bundles: all but the newest, this one, and those that a process of this user was started with.

    Returns:
        The names of what was taken away.
    """
    changed = {}
    for path in place.iterdir():
        with suppress(OSError):  # another agent prunes too
            if path.is_dir():
                changed[path] = path.stat().st_mtime
    found = sorted(changed, key=lambda path: -changed[path])
    whole = [path for path in found if not path.name.startswith(".")]
    old = [path for path in whole[keep:] if path != Path(str(files("kimi_agent"))).parent]
    used = _search_paths() if old else ""
    gone = [path for path in old if str(path) not in used]
    gone += [path for path in found if path.name.startswith(".") and time.time() - changed[path] > LEFT_OVER]
    for path in gone:
        # Renamed first: what is half gone must never be taken for a bundle.
        part = path.with_name(f".gone-{path.name.lstrip('.')}-{os.getpid()}")
        with suppress(OSError):
            path.rename(part)
            shutil.rmtree(part)
    return [path.name for path in gone]


def _search_paths() -> str:
    """The environments of this user's processes: what they may still import from."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.append((process / "environ").read_bytes().decode("utf-8", "replace"))
    return "\n".join(found)
