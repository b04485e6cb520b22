"""What a disk is given while something writes: the size of its requests, how many wait for it, and when it rests."""

import threading
from pathlib import Path

PERIOD = 0.04
"""Seconds between two looks."""
SECTOR = 512
"""Bytes of the kernel's count, whatever the device's own (Documentation/block/stat.rst)."""
Look = tuple[int, int, int]
"""Writes done, sectors written, requests in flight."""


class DiskMeter:
    """Looks at every disk while it is entered; tells of the one that was written to most."""

    def __init__(self) -> None:
        self._looks: dict[Path, list[Look]] = {path: [] for path in Path("/sys/block").glob("*/stat")}
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "DiskMeter":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._enough.set()
        self._thread.join()

    @property
    def told(self) -> dict[str, float]:
        """From its first to its last request: MB a request, requests in flight, share of the time without one."""
        written = {path: looks[-1][1] - looks[0][1] for path, looks in self._looks.items() if looks}
        if not any(written.values()):
            return {}
        looks = self._looks[max(written, key=lambda path: written[path])]
        busy = [number for number, (_, _, waiting) in enumerate(looks) if waiting]
        if len(busy) < 2:
            return {}
        looks = looks[busy[0] : busy[-1] + 1]
        requests, sectors = looks[-1][0] - looks[0][0], looks[-1][1] - looks[0][1]
        waiting = [look[2] for look in looks]
        return {
            "MB a request": sectors * SECTOR / 1e6 / max(requests, 1),
            "requests in flight": sum(waiting) / len(waiting),
            "share of the time at rest": waiting.count(0) / len(waiting),
        }

    def _watch(self) -> None:
        while True:
            for path, looks in self._looks.items():
                fields = path.read_text().split()
                looks.append((int(fields[4]), int(fields[6]), int(fields[8])))
            if self._enough.wait(PERIOD):
                return
