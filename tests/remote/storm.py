"""A run whose log grows fast, watched over a link that is cut again and again: what is lost, what is doubled.

The run is a process that writes numbered lines; the agent adopts it as it adopts any run, and follows its log.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from kimi_agent.bundle import ensure_bundle
from kimi_agent.host.procfs import boot_id, starttime
from kimi_agent.model.events import Event, Gap, LogLines, RunExited
from kimi_agent.paths import Home, private_dir
from kimi_agent.runs.record import RunRecord, save
from kimi_console.remote.bootstrap import Attachment
from kimi_console.remote.dial import attach
from kimi_console.remote.ssh import Deadlines, open_ssh
from kimi_console.source.client import Transport
from kimi_console.source.live import LiveSource, Patience

from .conftest import Sshd

RUN = "run-storm"
TALK = (
    "import itertools, sys, time\n"
    "rate = int(sys.argv[1]); begun = time.monotonic(); said = 0\n"
    "while True:\n"
    "    due = int((time.monotonic() - begun) * rate)\n"
    "    sys.stdout.write(''.join(f'{n} the quick brown fox jumps over the lazy dog\\n' for n in range(said, due)))\n"
    "    sys.stdout.flush(); said = max(said, due); time.sleep(0.02)\n"
)
NOBODY = "02:00:00:00:00:99"
QUICK = Patience(first_delay=0.05, last_delay=0.5, ping_interval=1.5)
"""Everything as the console does it, in less time."""


class FarNetwork:
    """A network of its own for the far host, joined to this one by a cable that can swallow packets."""

    def __init__(self, name: str) -> None:
        self.name = name
        place = f"10.{200 + os.getpid() // 200 % 50}.{os.getpid() % 200}"
        self.address, self._here = f"{place}.2", f"{place}.1"
        self._near, self._far = f"kn{name}"[:15], f"kf{name}"[:15]
        self._ip("netns", "add", name)
        self._ip("link", "add", self._near, "type", "veth", "peer", "name", self._far, "netns", name)
        for inside, device, address in ((False, self._near, self._here), (True, self._far, self.address)):
            self._ip("addr", "add", f"{address}/30", "dev", device, inside=inside)
            self._ip("link", "set", device, "up", inside=inside)
        self._ip("link", "set", "lo", "up", inside=True)

    def _ip(self, *words: str, inside: bool = False) -> None:
        where = ["-n", self.name] if inside else []
        subprocess.run(["ip", *where, *words], check=True, capture_output=True)

    def drop(self) -> None:
        """Send every packet of both sides to nobody: nothing is refused, nothing answers."""
        for inside, device, peer in ((False, self._near, self.address), (True, self._far, self._here)):
            self._ip("neigh", "replace", peer, "lladdr", NOBODY, "dev", device, "nud", "permanent", inside=inside)

    def heal(self) -> None:
        """Let the sides find each other again."""
        for inside, device, peer in ((False, self._near, self.address), (True, self._far, self._here)):
            self._ip("neigh", "del", peer, "dev", device, inside=inside)

    def close(self) -> None:
        """Take it away."""
        self._ip("netns", "del", self.name)
        with suppress(subprocess.CalledProcessError):
            self._ip("link", "del", self._near)


@contextmanager
def far_network() -> Iterator[FarNetwork]:
    """A network for one test."""
    network = FarNetwork(f"kimi{os.getpid()}")
    try:
        yield network
    finally:
        network.close()


def talk(home: Home, rate: int) -> "subprocess.Popen[bytes]":
    """A run that logs `rate` lines a second, recorded as an agent records a run it has launched."""
    private_dir(home.root)
    directory = private_dir(home.run(RUN))
    with (directory / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", TALK, str(rate)], stdout=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    profile: dict[str, object] = {
        "name": "storm", "server": {"model": "/", "port": 1}, "capture": {"enabled": False},
    }  # fmt: skip
    ticks = starttime(process.pid)
    assert ticks is not None
    save(directory, RunRecord(RUN, process.pid, ticks, boot_id(), profile, ("storm",), None))
    return process


@dataclass
class Ledger:
    """What the console has received, held to every number in it."""

    events: int = 0
    lines: int = 0
    lost: int = 0
    doubled: int = 0
    gaps: int = 0
    ended: bool = False
    wrong: list[str] = field(default_factory=list)

    def take(self, batch: Sequence[Event]) -> None:
        """Count a batch."""
        for event in batch:
            self.lost += max(0, event.seq - self.events - 1)
            self.doubled += max(0, self.events + 1 - event.seq)
            self.events = event.seq
            if isinstance(event.body, Gap):
                self.gaps += 1
            elif isinstance(event.body, LogLines):
                self._take_lines(event.body)
            elif isinstance(event.body, RunExited):
                self.ended = True

    def _take_lines(self, body: LogLines) -> None:
        numbers = [int(line.split(" ", 1)[0]) for line in body.lines]
        wanted = list(range(self.lines, self.lines + len(numbers)))
        if (body.first, numbers) != (self.lines, wanted) and len(self.wrong) < 5:
            self.wrong.append(f"event {self.events}: lines {numbers[:2]}… at {body.first}, wanted {self.lines}")
        self.lines = body.first + len(numbers)


class Storm:
    """One console's session through many cuts."""

    def __init__(self, sshd: Sshd, network: FarNetwork | None, rng: random.Random) -> None:
        self.sshd = sshd
        self.network = network
        self.rng = rng
        self.home = sshd.agent
        self.ledger = Ledger()
        self.cuts: Counter[str] = Counter()
        self.memory: list[float] = []
        """MiB that the agent has resident after each cut."""
        self.back_after: defaultdict[str, list[float]] = defaultdict(list)
        """Seconds from each cut to the first line after it, by kind."""
        self.source = LiveSource("gpu-07", self._dial, patience=QUICK)
        self._dials = 0
        self._moved = asyncio.Event()
        self.source.on_link = lambda link: self._moved.set()

    async def _dial(self) -> Transport:
        self._dials += 1
        connection = await open_ssh("gpu-07", None, Deadlines(connect=5.0, login=15.0, keepalive=2.0))
        return await attach(connection, "gpu-07", Attachment(sys.executable, str(ensure_bundle())), read_only=False)

    async def read(self) -> None:
        """Receive until the run has ended."""
        async with aclosing(self.source.batches()) as batches:
            async for batch in batches:
                self.ledger.take(batch)
                self._moved.set()
                if self.ledger.ended:
                    return

    async def lines(self, more: int) -> None:
        """Wait for so many lines more."""
        wanted = self.ledger.lines + more
        await self._until(lambda: self.ledger.lines >= wanted)

    async def _until(self, holds: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(120):
                while not holds():
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError as error:
            raise AssertionError(f"{self.source.link}, {self.ledger}, {self.cuts}") from error

    async def cut(self, kind: str) -> None:
        """Cut the link in one way, mend it where that is needed, and wait for the first line after it."""
        begun, dials = time.monotonic(), self._dials
        await getattr(self, f"_{kind}")()
        await self._until(lambda: self._dials > dials and self.source.link.state == "live")
        await self.lines(1)
        self.cuts[kind] += 1
        self.memory.append(self.agent.memory_info().rss / 2**20)
        self.back_after[kind].append(time.monotonic() - begun)
        await self.lines(self.rng.randrange(1, 3000))

    async def _killed(self) -> None:
        await asyncio.to_thread(self.sshd.cut_connections)

    async def _dropped(self) -> None:
        assert self.network is not None
        self.network.drop()
        await self._until(lambda: self.source.link.state == "lost")
        self.network.heal()

    async def _restarted(self) -> None:
        await asyncio.to_thread(self.sshd.restart)

    async def _agent(self) -> None:
        assert self.source.hello is not None
        pid = self.source.hello.pid
        os.kill(pid, signal.SIGKILL)

    @property
    def agent(self) -> psutil.Process:
        """The agent's process."""
        assert self.source.hello is not None
        return psutil.Process(self.source.hello.pid)


async def storm(sshd: Sshd, network: FarNetwork, kinds: Sequence[str], rate: int, seed: int = 1) -> Storm:
    """Go through the cuts; then end the run, and read to its end."""
    weather = Storm(sshd, network, random.Random(seed))
    run = talk(weather.home, rate)
    reading = asyncio.create_task(weather.read())
    try:
        await weather.lines(1)
        for kind in kinds:
            await weather.cut(kind)
            if reading.done():
                break
        run.terminate()
        run.wait(10)
        async with asyncio.timeout(120):
            await reading
    finally:
        run.kill()
        run.wait(10)
        reading.cancel()
        await weather.source.close()
    return weather


def whole_lines(home: Home) -> int:
    """How many lines the run has written."""
    return Path(home.run(RUN) / "server.log").read_bytes().count(b"\n")
