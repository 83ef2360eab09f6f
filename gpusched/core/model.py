"""The nouns of gpusched as frozen values. Computes nothing and touches nothing.

Units: durations end in `_s` (seconds), sizes in `_bytes`, moments in `_at` (epoch seconds, UTC).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpusched.core.jobs.job import ENDED_STATES as ENDED_STATES
from gpusched.core.jobs.job import MIB as MIB
from gpusched.core.jobs.job import Attributes as Attributes
from gpusched.core.jobs.job import Dependency as Dependency
from gpusched.core.jobs.job import DependencyKind as DependencyKind
from gpusched.core.jobs.job import JobRow as JobRow
from gpusched.core.jobs.job import JobSpec as JobSpec
from gpusched.core.jobs.job import JobState as JobState
from gpusched.core.jobs.job import OutcomeKind as OutcomeKind
from gpusched.core.jobs.job import Requirements as Requirements

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
    is_simulated: bool = False

    @property
    def is_mig(self) -> bool:
        return self.parent_uuid is not None


def nameless_uuid(index: int) -> str:
    """The placeholder for a UUID that cannot be read, of a GPU that the driver lists."""
    return f"unknown-{index}"


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that a device reports. What the driver does not report of it is None."""

    pid: int
    used_bytes: int | None
    kind: str = "C"  # C compute | G graphics | M MPS client
    user: str = "?"
    program: str = "?"
    utilisation: float | None = None  # 0 to 1, the most since the last complete reading


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

    temperature_c: float | None = None
    power_w: float | None = None
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


SET_REQUEST = "set "  # begins a request to go by other settings; they follow as JSON, value by name


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
    started_at: float = 0.0


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
class ForeignUse:
    """The processes of others on the devices of an attempt, summed up from the samples that list all processes."""

    samples: int = 0
    shared: int = 0  # of these samples, the ones with processes of others
    who: tuple[str, ...] = ()  # the first few of them: "bo's python"
    peak_bytes: int | None = None  # together
    peak_utilisation: float | None = None  # of one of them, 0 to 1
    disturbed: bool = False  # there were some although the job had asked to be alone

    @property
    def share(self) -> float | None:
        """The share of the samples with processes of others; None: never known."""
        return self.shared / self.samples if self.samples else None


NOBODY_SEEN = ForeignUse()


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
    by_report: bool = False  # memory is what the job itself has reported, since its processes are not listed
    foreign_use: ForeignUse = NOBODY_SEEN
    idle_samples: int = 0  # of `samples`, those at which it held its devices and did nothing there

    @property
    def idle_share(self) -> float | None:
        """The share of the time in which it held its devices and did nothing there; None: never known."""
        return self.idle_samples / self.samples if self.samples else None

    @property
    def memory_by(self) -> str:
        """The source of the figures of memory."""
        return "report" if self.by_report else "device" if self.by_device else "process"


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
