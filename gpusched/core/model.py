"""The nouns of gpusched as frozen values. Computes nothing and touches nothing.

Units: durations end in `_s` (seconds), sizes in `_bytes`, moments in `_at` (epoch seconds, UTC).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MIB = 1 << 20
DIRTY = "+dirty"  # behind a commit: the work tree had changes


# ---- devices ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or one MIG instance, known by UUID. `index` is a label that can change."""

    uuid: str
    index: int  # NVML index (PCI order) of the GPU; of the parent GPU for a MIG instance
    name: str
    total_bytes: int | None = None
    bus_id: str = ""
    parent_uuid: str | None = None  # of a MIG instance
    mig_parent: bool = False  # a GPU in MIG mode: never handed out itself
    compute_mode: str = "default"  # default | exclusive_process | prohibited
    unified_memory: bool = False  # a board known to share the host's memory
    group: str = ""  # boards of one group are joined by NVLink or share a NUMA node; empty: not told
    reserved_bytes: int = 0  # of the board, for the driver itself; not counted as used

    @property
    def is_mig(self) -> bool:
        return self.parent_uuid is not None


def nameless_uuid(index: int) -> str:
    """What stands for the UUID of a GPU that is listed and does not even tell that."""
    return f"unknown-{index}"


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that a device reports. `used_bytes` is None where the driver does not tell."""

    pid: int
    used_bytes: int | None
    kind: str = "C"  # C compute | G graphics | M MPS client
    user: str = "?"
    program: str = "?"


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of one device. A field that could not be read is None, never zero.

    `processes` is None where processes cannot be told apart (container, WSL). `error` is set when the
    device could not be read at all: "lost" or the driver's text.
    """

    uuid: str
    at: float
    used_bytes: int | None = None
    total_bytes: int | None = None
    processes: tuple[DeviceProcess, ...] | None = ()
    utilisation: float | None = None  # 0 to 1
    temperature_c: int | None = None
    power_w: float | None = None
    energy_j: float | None = None  # the board's running total
    memory_includes_reserve: bool = False  # read by NVML memory v1
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The answer to one question to a GPU source.

    `complete` is True when every device was asked for; `devices` then lists the whole box. `asked_at` is
    when the question was put (a look must be newer than the claim that it confirms). Both moments are on the
    monotonic clock; the samples bear wall time. `error` is set when the source as a whole does not answer; devices
    and samples are then empty.
    """

    asked_at: float
    at: float
    devices: tuple[Device, ...] = ()
    samples: tuple[Sample, ...] = ()
    complete: bool = True
    error: str | None = None


# ---- jobs ------------------------------------------------------------------------------------------


class JobState(str, Enum):
    QUEUED = "queued"
    HELD = "held"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


class DependencyKind(str, Enum):
    """What a job wants of the jobs that it waits for."""

    SUCCEEDED = "after"  # all of them succeeded
    ANY = "after-any"  # one of them succeeded
    FAILED = "after-failed"  # all of them ended, and one of them failed
    ENDED = "after-ended"  # all of them ended, however


@dataclass(frozen=True, slots=True)
class Dependency:
    """`refs` are names, tags or ids of jobs of the same queue, as the source states them."""

    kind: DependencyKind
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a job says of itself. None: what the options of the run say. `mem_bytes` is for each of its GPUs."""

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
    items: int = 0  # that it does, of its group's; 0: it does not say


NO_ATTRIBUTES = Attributes()


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job as its source states it. Identity is text, cwd and env, and which occurrence of them."""

    command: bytes  # what the shell gets
    text: bytes  # what the file says: the identity (differs from `command` after --strip-gpu-env)
    line: int  # first physical line in the file, from 1
    occurrence: int = 1  # 1 for the first job with this identity, 2 for the next …
    attributes: Attributes = NO_ATTRIBUTES


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a job needs: what it says of itself, filled up with the options of the submission."""

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
    limited_tags: tuple[str, ...] = ()  # those of its tags that have a limit of their own
    items: int = 0

    @property
    def shape(self) -> str:
        """Jobs of one shape fit the same devices; CPU jobs are of one shape."""
        if not self.gpus:
            return _CPU_SHAPE
        return f"{self.gpus}|{self.mem_bytes}|0|{','.join(self.limited_tags)}|{self.gpu_model}"


_CPU_SHAPE = "0"


def reshape(shape: str, mem_bytes: int, above_bytes: int) -> str:
    """The shape of the same job with another budget, and another wish for memory."""
    if shape == _CPU_SHAPE:
        return shape
    gpus, _, _, rest = shape.split("|", 3)
    return f"{gpus}|{mem_bytes}|{above_bytes}|{rest}"


@dataclass(frozen=True, slots=True)
class Job:
    """A waiting job as the plan sees it."""

    id: int
    gpus: int = 1
    not_before: float = 0.0
    tries: int = 0
    avoid: frozenset[str] = frozenset()  # devices to pass over while another one can serve
    above_bytes: int = 0  # after an out-of-memory: wants a device with more free memory than this
    mem_bytes: int = 0  # budget on each of its devices, which others may then share; 0: has them alone
    gpu_model: str = ""  # part of the device's name
    tags: tuple[str, ...] = ()


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
    """How an attempt ended: a fact, not a judgement."""

    kind: OutcomeKind
    exit_code: int | None = None
    signal: int | None = None
    cause: str = ""  # gpu_oom | host_oom | gpu_busy | gpu_lost | removed | unkillable | …
    note: str = ""  # for people, e.g. "background"

    @property
    def ok(self) -> bool:
        return self.kind is OutcomeKind.EXITED and self.exit_code == 0


class AttemptFact(str, Enum):
    """What the reaper saw of an open attempt."""

    ALIVE = "alive"
    EXITED = "exited"
    LOST = "lost"  # began, has no record, and nothing of it is left
    LINGERING = "lingering"  # its shepherd is gone, processes of it are not
    NOT_STARTED = "not_started"


@dataclass(frozen=True, slots=True)
class Attempt:
    """An open attempt as the plan sees it."""

    job_id: int
    number: int
    devices: tuple[str, ...]
    fact: AttemptFact = AttemptFact.ALIVE
    outcome: Outcome | None = None  # set when fact is not ALIVE or LINGERING
    cancel_requested: bool = False
    stop_sent: bool = False
    tries: int = 0  # tries that the job had spent before this attempt
    retries: int = 0
    losses: int = 0
    mem_bytes: int = 0
    tags: tuple[str, ...] = ()
    peak_device_bytes: int | None = None  # the most that it was seen to use on one device
    lasted_s: float = 0.0  # of one that has ended
    gpu_model: str = ""  # that its job asks for


# ---- what is told ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, for the log, the event lines and the live view."""

    at: float
    kind: str  # started | ended | retried | waiting | device | queue | warning | error
    text: str
    job_id: int | None = None


# ---- rows of a queue -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device as an attempt got it: the UUID, and the labels of that moment."""

    uuid: str
    index: int
    name: str = ""
    free_bytes: int | None = None  # when the attempt was launched


@dataclass(frozen=True, slots=True)
class Usage:
    """What an attempt used, folded from samples. None: was not told."""

    samples: int = 0
    peak_memory_bytes: int | None = None  # over its devices together
    mean_memory_bytes: float | None = None
    mean_utilisation: float | None = None  # 0 to 1
    energy_j: float | None = None
    peak_device_bytes: int | None = None  # on one device
    by_device: bool = False  # memory by the device's change, since its processes cannot be told apart


NOTHING_USED = Usage()


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt as the queue remembers it."""

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
class JobRow:
    """A job as the queue remembers it."""

    id: int
    command: bytes
    line: int
    cwd: bytes
    state: JobState
    cause: str
    gpus: int
    time_limit_s: float | None
    retries: int
    tries: int
    losses: int
    attempts: int  # opened so far
    not_before: float
    submitted_at: float
    first_started_at: float | None
    ended_at: float | None
    cancel_requested_at: float | None
    avoid: frozenset[str] = frozenset()
    above_bytes: int = 0
    mem_bytes: int = 0  # the budget now: as stated, or grown after an out-of-memory
    stated_mem_bytes: int = 0
    prio: int = 0
    name: str = ""
    tags: tuple[str, ...] = ()
    gpu_model: str = ""
    env: tuple[tuple[bytes, bytes], ...] = ()
    blocked: bool = False  # by a job that it depends on
    position: int = 0  # in the order of the list
    shape: str = ""
    git: str = ""
    listed: bool = True  # False: it has ended, and its line is gone
    items: int = 0

    @property
    def waiting(self) -> Job:
        """The job as the plan sees it."""
        return Job(
            self.id,
            self.gpus,
            self.not_before,
            self.tries,
            self.avoid,
            self.above_bytes,
            self.mem_bytes if self.gpus else 0,
            self.gpu_model,
            self.tags,
        )


# ---- what a dispatcher shows -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunningView:
    """A running job for people: what it is, where it runs, how far it says it is."""

    job: JobRow
    attempt: AttemptRow
    leftovers: str = ""  # the command has ended; these processes of it have not
    stopping: bool = False
