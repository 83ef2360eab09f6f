"""The nouns of gpusched as frozen values. Computes nothing and touches nothing.

Units: durations end in `_s` (seconds), sizes in `_bytes`, moments in `_at` (epoch seconds, UTC).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

MIB = 1 << 20
DIRTY = "+dirty"  # behind a commit: the work tree had changes
BUDGET_STEP_BYTES = 256 * MIB  # budgets are rounded up to this, so that there are few shapes of jobs


def round_budget(stated_bytes: int) -> int:
    """Return a memory budget as the plan counts it: rounded up to the next step."""
    return -(-stated_bytes // BUDGET_STEP_BYTES) * BUDGET_STEP_BYTES


# ---- devices ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or one MIG instance. The UUID identifies it; `index` is a label that can change."""

    uuid: str
    index: int  # NVML index (PCI order) of the GPU; of the parent GPU for a MIG instance
    name: str
    total_bytes: int | None = None
    bus_id: str = ""
    parent_uuid: str | None = None  # of a MIG instance
    mig_parent: bool = False  # a GPU in MIG mode: never handed out itself
    compute_mode: str = "default"  # default | exclusive_process | prohibited
    unified_memory: bool = False  # a board that shares the host's memory
    group: str = ""  # boards of one group are joined by NVLink or share a NUMA node; empty: not known
    reserved_bytes: int = 0  # of the board, for the driver itself; not counted as used

    @property
    def is_mig(self) -> bool:
        return self.parent_uuid is not None


def nameless_uuid(index: int) -> str:
    """The placeholder for a UUID that cannot be read, of a GPU that the driver lists."""
    return f"unknown-{index}"


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that a device reports. `used_bytes` is None if the driver does not report it."""

    pid: int
    used_bytes: int | None
    kind: str = "C"  # C compute | G graphics | M MPS client
    user: str = "?"
    program: str = "?"


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of one device. A field that could not be read is None, never zero.

    `processes` is None if the driver does not list processes by pid (container, WSL). `error` is set if the
    device could not be read at all: "lost" or the driver's text.
    """

    uuid: str
    at: float
    used_bytes: int | None = None
    total_bytes: int | None = None
    processes: tuple[DeviceProcess, ...] | None = ()
    utilisation: float | None = None  # 0 to 1

    energy_j: float | None = None  # the board's running total
    uncorrectable: int | None = None  # memory errors since the driver was loaded
    remap_failed: bool = False  # the board has no spare rows of memory any more
    memory_includes_reserve: bool = False  # read by NVML memory v1
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The answer to one request to a GPU source.

    `complete` is True if all devices were requested; `devices` then lists the whole box. `asked_at` is the
    time of the request (a look must be newer than the claim that it confirms). Both times are on the monotonic clock;
    the samples bear wall time.
    """

    asked_at: float
    at: float
    devices: tuple[Device, ...] = ()
    samples: tuple[Sample, ...] = ()
    complete: bool = True


# ---- jobs ------------------------------------------------------------------------------------------


JobOrigin = Literal["list", "submit"]  # a line of the queue's list, or submitted by itself
RequestKind = Literal["submitted", "changed", "stop", "stop_now", "hand_back"]  # to the dispatcher of a queue


class JobState(str, Enum):
    QUEUED = "queued"
    HELD = "held"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


class DependencyKind(str, Enum):
    """The end that a job waits for, among the jobs that it depends on."""

    SUCCEEDED = "after"  # all of them succeeded
    ANY = "after-any"  # one of them succeeded
    FAILED = "after-failed"  # all of them ended, and one of them failed
    ENDED = "after-ended"  # all of them ended, however


@dataclass(frozen=True, slots=True)
class Dependency:
    """A wait for other jobs. `refs` are names, tags or ids of jobs of the same queue, as the source states them."""

    kind: DependencyKind
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes that a job states. None: the options of the run apply. `mem_bytes` is for each of its GPUs."""

    gpus: int | None = None
    mem_bytes: int | None = None
    time_limit_s: float | None = None
    retries: int | None = None
    name: str = ""
    tags: tuple[str, ...] = ()
    prio: int = 0
    cwd: bytes | None = None  # as stated: relative to the submitter's directory
    env: tuple[tuple[bytes, bytes], ...] = ()
    gpu_model: str = ""
    after: tuple[Dependency, ...] = ()
    items: int = 0  # items of its group that this job does; 0: not stated
    cpus: int = 0  # 0: not stated
    ram_bytes: int = 0  # 0: not stated


NO_ATTRIBUTES = Attributes()


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job as its source states it. Its identity is the text, cwd, env and the occurrence number, or its key."""

    command: bytes  # as the shell gets it
    text: bytes  # as the file states it: the identity (differs from `command` after --strip-gpu-env)
    line: int  # first physical line in the file, from 1
    occurrence: int = 1  # 1 for the first job with this identity, 2 for the next …
    attributes: Attributes = NO_ATTRIBUTES
    key: bytes = b""  # of a job that was submitted by itself


@dataclass(frozen=True, slots=True)
class Requirements:
    """The needs of a job: its attributes, completed by the options of the submission."""

    gpus: int = 1
    time_limit_s: float | None = None
    retries: int = 0
    cwd: bytes = b"/"
    mem_bytes: int = 0  # rounded as the plan counts it
    stated_mem_bytes: int = 0
    prio: int = 0
    name: str = ""
    tags: tuple[str, ...] = ()
    gpu_model: str = ""
    env: tuple[tuple[bytes, bytes], ...] = ()
    git: str = ""  # commit of the work tree that its directory is in, with DIRTY behind when that was changed
    limited_tags: tuple[str, ...] = ()  # the tags of the job that have a limit of their own
    items: int = 0
    cpus: int = 0
    ram_bytes: int = 0
    begin_at: float = 0.0
    environment: bytes = b""  # of its submission; empty: that of the dispatcher

    @property
    def shape(self) -> str:
        """The key of jobs that fit the same devices, and the same room on the host."""
        host = f"{self.cpus}|{self.ram_bytes}" if self.cpus or self.ram_bytes else ""
        if not self.gpus:
            return f"{_CPU_SHAPE}|{host}" if host else _CPU_SHAPE
        shape = f"{self.gpus}|{self.mem_bytes}|0|{','.join(self.limited_tags)}|{self.gpu_model}"
        return f"{shape}|{host}" if host else shape


_CPU_SHAPE = "0"  # or what begins with it


def reshape(shape: str, mem_bytes: int, above_bytes: int) -> str:
    """Return the shape of the same job with another budget and another lower limit of free memory."""
    gpus, _, rest = shape.partition("|")
    if gpus == _CPU_SHAPE:
        return shape
    _, _, rest = rest.split("|", 2)
    return f"{gpus}|{mem_bytes}|{above_bytes}|{rest}"


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as the queue stores it, and as the plan sees it."""

    id: int
    command: bytes = b""
    line: int = 0
    cwd: bytes = b"/"
    state: JobState = JobState.QUEUED
    cause: str = ""
    gpus: int = 1
    time_limit_s: float | None = None
    retries: int = 0
    tries: int = 0
    losses: int = 0
    attempts: int = 0  # opened so far
    not_before: float = 0.0
    submitted_at: float = 0.0
    first_started_at: float | None = None
    ended_at: float | None = None
    cancel_requested_at: float | None = None
    avoid: frozenset[str] = frozenset()  # devices to pass over while another one can serve
    above_bytes: int = 0  # after an out-of-memory: it needs a device with more free memory than this
    mem_bytes: int = (
        0  # budget on each of its devices, which others may share: as stated, or raised; 0: it has them alone
    )
    stated_mem_bytes: int = 0
    prio: int = 0
    name: str = ""
    tags: tuple[str, ...] = ()
    gpu_model: str = ""  # part of the device's name
    env: tuple[tuple[bytes, bytes], ...] = ()
    blocked: bool = False  # a job that it depends on keeps it from starting
    position: int = 0  # in the order of the list
    shape: str = ""
    git: str = ""
    listed: bool = True  # False: it has ended, and its line is no longer in the list
    items: int = 0
    origin: JobOrigin = "list"
    environment_id: int | None = None  # None: it has that of the dispatcher
    begin_at: float = 0.0  # it starts no earlier
    cpus: int = 0
    ram_bytes: int = 0


class OutcomeKind(str, Enum):
    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    NOT_STARTED = "not_started"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt as a fact, before it is judged."""

    kind: OutcomeKind
    exit_code: int | None = None
    signal: int | None = None
    cause: str = ""  # gpu_oom | host_oom | gpu_busy | gpu_lost | removed | unkillable | …
    note: str = ""  # for people, e.g. "background"

    @property
    def ok(self) -> bool:
        return self.kind is OutcomeKind.EXITED and self.exit_code == 0


class AttemptFact(str, Enum):
    """The state of an open attempt, as its `life` file and its processes show it."""

    ALIVE = "alive"
    EXITED = "exited"
    LOST = "lost"  # it began, left no record, and has no process any more
    LINGERING = "lingering"  # its shepherd is gone, some of its processes are not
    NOT_STARTED = "not_started"


@dataclass(frozen=True, slots=True)
class Attempt:
    """An open attempt as the plan sees it."""

    job: JobRow
    number: int
    devices: tuple[str, ...]
    fact: AttemptFact = AttemptFact.ALIVE
    outcome: Outcome | None = None  # set when fact is not ALIVE or LINGERING
    cancel_requested: bool = False
    stop_sent: bool = False
    peak_device_bytes: int | None = None  # the largest measured use of one device
    lasted_s: float = 0.0  # of an attempt that has ended


# ---- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """An event for the log, the event lines and the live view."""

    at: float
    kind: str  # started | ended | retried | waiting | device | queue | warning | error
    text: str
    job_id: int | None = None


# ---- rows of a queue -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device of an attempt: the UUID, and the labels that it had when the attempt was launched."""

    uuid: str
    index: int
    name: str = ""
    free_bytes: int | None = None  # when the attempt was launched


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that an attempt used, summed up from samples. None: never measured."""

    samples: int = 0
    peak_memory_bytes: int | None = None  # over its devices together
    mean_memory_bytes: float | None = None
    mean_utilisation: float | None = None  # 0 to 1
    energy_j: float | None = None
    peak_device_bytes: int | None = None  # on one device
    by_device: bool = False  # memory is the change of the device's total, since its processes are not listed


NOTHING_USED = Usage()


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt as the queue stores it."""

    job_id: int
    number: int
    started_at: float
    ended_at: float | None
    outcome: Outcome | None
    log: str
    error_log: str
    devices: tuple[DeviceUse, ...] = ()
    usage: Usage = NOTHING_USED
    max_rss_bytes: int | None = None
    cpu_s: float | None = None
    progress: str = ""  # JSON text of the job's last progress file


@dataclass(frozen=True, slots=True)
class RunningView:
    """A running job for people: the job, its open attempt, and the processes that outlive the command."""

    job: JobRow
    attempt: AttemptRow
    leftovers: str = ""  # processes that still run after the command has ended
    stopping: bool = False
