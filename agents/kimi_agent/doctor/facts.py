"""What a close look at the host found: plain frozen values, as a child process sends them and the rules read them."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Stack:
    """The Python stack of one process's main thread at one time."""

    rank: str
    source: str
    """`py-spy` or `plugin`."""
    time: float
    """Unix seconds."""
    frames: tuple[str, ...]
    """`function (file:line)`, the innermost call first."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file that matters to this server: one of its processes waits for it, or it lies in a kernel cache."""

    path: str
    age: float
    """Seconds since the file was last written."""
    holder: str | None
    """`pid 123 (name)`; `None` when no visible process has it."""
    own: bool
    """Whether the holder is a process of this server."""
    waiters: tuple[str, ...] = ()
    """Ranks that the kernel lists as waiting for it."""


@dataclass(frozen=True, slots=True)
class Partial:
    """The size of a partial file at one time; the next look measures against it, since tools write in large pieces."""

    path: str
    size: int
    """Bytes."""
    time: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Growing:
    """A file that is being downloaded: partial, and longer than a moment ago."""

    path: str
    size: int
    """Bytes."""
    rate: float
    """Bytes per second."""
    total: int | None = None
    """Bytes that the download will have, over all files, where the model's index says so."""
    present: int | None = None
    """Bytes of that total that are there."""

    @property
    def remaining(self) -> float | None:
        """Seconds until all is there; `None` when the total is not known."""
        if self.total is None or self.present is None or self.rate <= 0:
            return None
        return max(self.total - self.present, 0) / self.rate


@dataclass(frozen=True, slots=True)
class Port:
    """Who listens on a port that the server needs."""

    what: str
    """`HTTP`, `--dist-init-addr`, `--nccl-port`."""
    port: int
    holder: str | None
    """`None` when nobody listens."""
    own: bool
    """Whether it is a process of this server."""
    peers: int = 0
    """Established connections to it."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system below a path."""

    what: str
    """`model`, `/dev/shm`, `temporary files`."""
    path: str
    kind: str
    """The kernel's name: ext4, nfs4, fuse.gcsfuse, lustre, overlay, …"""
    free: int
    total: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class DiskWait:
    """A process of which a thread, not always its main one, stood in an uninterruptible read both times."""

    rank: str
    thread: str
    wchan: str
    """Where in the kernel; empty when that may not be read."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides whether GPUs can write to each other's memory."""

    iommu_flags: tuple[str, ...]
    """Words of /proc/cmdline about the IOMMU."""
    iommu_groups: int
    acs_redirect: tuple[str, ...] | None
    """PCI bridges that send peer-to-peer writes up to the root; `None` when that may not be read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP request to the server."""

    path: str
    status: int | None
    """`None` when no answer came within the deadline."""
    seconds: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Skipped:
    """What could not be looked at, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Deep:
    """One close look; a second pair of stacks follows some seconds later."""

    time: float
    """When it began, Unix seconds."""
    first: tuple[Stack, ...] = ()
    second: tuple[Stack, ...] = ()
    """The same processes, at least six seconds later; empty until then."""
    locks: tuple[Lock, ...] = ()
    growing: tuple[Growing, ...] = ()
    partial: tuple[Partial, ...] = ()
    """All partial files, those that stand still too."""
    ports: tuple[Port, ...] = ()
    disks: tuple[Disk, ...] = ()
    machine: Machine | None = None
    answers: tuple[Answer, ...] = ()
    waits: tuple[DiskWait, ...] = ()
    """Of the look in which both stacks are."""
    given: float | None = None
    """Bytes per second that came from the model's disk between the two stacks; `None` until then, or not known."""
    skipped: tuple[Skipped, ...] = ()

    def why_not(self, what: str) -> str | None:
        """Why something was not looked at; `None` when it was."""
        return next((one.why for one in self.skipped if one.what == what), None)

    def stack(self, rank: str) -> Stack | None:
        """The newest stack of a process."""
        return next((stack for stack in (*self.second, *self.first) if stack.rank == rank), None)

    def unmoved(self, rank: str) -> bool | None:
        """Whether a process stood in the same place both times; `None` when it was not seen twice."""
        pair = [next((stack for stack in seen if stack.rank == rank), None) for seen in (self.first, self.second)]
        if pair[0] is None or pair[1] is None:
            return None
        return pair[0].frames == pair[1].frames


@dataclass(frozen=True, slots=True)
class Kernel:
    """What the kernel said since the run began."""

    lines: tuple[str, ...] = ()
    """Lines about a GPU, a PCI error or the OOM killer, as `Xid`, `AER`, `oom-kill` name them."""
    oom_kills: int | None = None
    """Processes that the OOM killer took from the server's cgroup since the run began; `None`: not known."""
    skipped: str | None = None
    """Why the kernel log was not read."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a close look is to be about."""

    main: int
    """Pid of the server's main process."""
    ranks: tuple[tuple[str, int], ...]
    """(name, pid) of the processes whose stacks are wanted; empty for a look without stacks."""
    model: str
    host: str
    port: int
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """Of the server's variables, those that say where caches lie."""
    sockets: str | None = None
    """Directory of the plugins' sockets."""
    partial: tuple[Partial, ...] = ()
    """Those of the look before."""
    serving: bool = False
    """Whether the port is open, so that HTTP may be asked."""
