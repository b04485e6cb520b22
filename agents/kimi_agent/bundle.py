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
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from kimi_agent import __version__, paths

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
    for path, data in _contents().items():
        file = part / path
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_bytes(data)
    try:
        part.rename(target)
    except OSError:
        shutil.rmtree(part)
        if not target.is_dir():
            raise
    return target
