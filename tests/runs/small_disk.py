"""A disk that a test fills: made by root, in memory."""

import subprocess
from contextlib import suppress
from pathlib import Path


class SmallDisk:
    """A file system of its own, to be filled to the last byte."""

    def __init__(self, place: Path) -> None:
        """Mount it at a directory, which is made."""
        place.mkdir(mode=0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16M,mode=700", "tmpfs", place], check=True)
        self._place = place

    @property
    def _hog(self) -> Path:
        return self._place / "hog"

    def fill(self) -> None:
        """Take what is left; others may still write where they have begun a page."""
        with self._hog.open("ab", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def free(self) -> None:
        """Give back what was taken."""
        self._hog.unlink()

    def remove(self) -> None:
        """Unmount it, whoever still has a file of it open."""
        subprocess.run(["umount", "--lazy", self._place], check=True)
