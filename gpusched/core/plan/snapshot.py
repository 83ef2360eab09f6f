"""The input and output of the plan: the snapshot, the actions, the reasons. Values only; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpusched.core.jobs.lifecycle import Verdict
from gpusched.core.model import MIB, Attempt, AttemptFact, JobRow
from gpusched.core.plan.availability import Availability, DeviceState
from gpusched.core.plan.fairness import ALONE, Rival, Sharing, Want
from gpusched.core.plan.learned_memory import Learned

ENDED_FACTS = (AttemptFact.EXITED, AttemptFact.LOST, AttemptFact.NOT_STARTED)
MARGIN_BYTES = 512 * MIB  # of each shared device that no budget may use


@dataclass(frozen=True, slots=True)
class Limits:
    """The part of the box that this queue may use, and the order in which it uses it."""

    max_gpus: int = 4
    cpu_jobs: int = 2  # of those that state neither cores nor memory
    jobs_per_gpu: int = 4  # that share one device
    tag_gpus: Mapping[str, int] = field(default_factory=dict)  # --max-gpus of a tag
    strategy: str = "fill-first"  # fill-first | round-robin | memory-aware
    max_bypass_s: float = 600.0  # the time for which smaller jobs may pass a larger one that waits
    cpus: int = 0  # cores for the jobs that state them, together; 0: not limited
    ram_bytes: int = 0  # memory of the host, likewise
    tag_mem: Mapping[str, int] = field(default_factory=dict)  # budget of the jobs with mem=auto of a tag
    safety_factor: float = 0.9  # the part of a learned budget that the largest peak may fill
    user_gpus: int = 0  # all that this user may hold on the box; 0: not limited


@dataclass(frozen=True, slots=True)
class Resident:
    """A job of this queue on a device."""

    job_id: int
    budget_bytes: int  # 0: it has the device alone
    used_bytes: int | None = None  # at the last reading
    is_learning: bool = False  # it has the device alone until its memory has settled (mem=auto)

    @property
    def counted_bytes(self) -> int:
        """The larger of its budget and its measured use."""
        return max(self.budget_bytes, self.used_bytes or 0)


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device of the allowed set, as the plan sees it. Their order in the snapshot is the order of preference."""

    availability: Availability
    total_bytes: int | None = None
    label: str = "GPU"  # for reasons: "GPU 3"
    held: bool = False  # claimed by this dispatcher
    looked: bool = False  # its sample is newer than the claim
    refused: str = ""  # who else has claimed it, or why it cannot be claimed
    residents: tuple[Resident, ...] = ()
    name: str = ""
    group: str = ""  # devices of one group are joined by NVLink or share a NUMA node; empty: not known
    looked_again: bool = False  # its sample answers the last Look
    alone: bool = False  # for one job at a time: a MIG instance, or a board in exclusive-process mode
    reserved_bytes: int = 0  # of the board, for the driver itself

    @property
    def uuid(self) -> str:
        return self.availability.uuid

    @property
    def capacity_bytes(self) -> int:
        """The memory that processes can use when the board is empty; 0 if not known."""
        return max(0, (self.total_bytes or 0) - self.reserved_bytes)

    @property
    def free_bytes(self) -> int:
        """The memory of the board that others do not use; 0 if that is not known."""
        foreign = self.availability.foreign_bytes
        return 0 if foreign is None else self.capacity_bytes - foreign

    @property
    def is_present(self) -> bool:
        return self.availability.state not in (DeviceState.LOST, DeviceState.SET_ASIDE)

    def is_model(self, gpu_model: str) -> bool:
        return not gpu_model or gpu_model.lower() in self.name.lower() or gpu_model == self.uuid


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the queue and of the box at one moment: the whole input of a plan."""

    now: float
    limits: Limits
    devices: tuple[DeviceView, ...] = ()
    waiting: tuple[JobRow, ...] = ()  # in the order in which they are to start
    attempts: tuple[Attempt, ...] = ()  # open ones
    closed_to_starts: str = ""  # why nothing may start now; empty: jobs may start
    gpus_closed: str = ""  # why no GPU job may start now (NVML is silent)
    stop_all: bool = False  # end the running attempts
    threshold_bytes: int = 500 * MIB  # a free device has less foreign memory than this
    max_checks: int = 1  # number of good polls that make a device free, or open one of ours to other jobs
    waited_since: Mapping[int, float] = field(default_factory=dict)  # job id -> time since which others have passed it
    learned: tuple[Learned, ...] = ()  # of the jobs with mem=auto
    sharing: Sharing = ALONE
    hand_back: bool = False  # end the attempts that hold more GPUs than the queue may use now


@dataclass(frozen=True, slots=True)
class Close:
    """Close an ended attempt. `mem_bytes` is the budget of the job's next attempt, if there is one; 0: unchanged."""

    attempt: Attempt
    verdict: Verdict
    mem_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim all of `devices` for the job, or none."""

    job_id: int
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gather:
    """Claim these devices, and keep them until there are enough for the first job that needs several."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    job_id: int
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """Read these devices once more: a job is to join those on them."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Release:
    uuid: str


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a waiting job does not start now. `kind` is for programs, `text` for people."""

    kind: str  # closed | nvml | back_off | never | devices | max_gpus | tag | cpu_jobs | host | begin | look | behind
    text: str
    root: str = ""  # what it comes down to, where the kind does not say it

    @property
    def shortage(self) -> str:
        """The kind that the reason comes down to: that of the job ahead for "behind", "memory" for some "devices"."""
        return self.root or self.kind

    @property
    def sentence(self) -> str:
        """The reason behind the name of a job: "waits …"."""
        return self.text if self.text.startswith("waits") else f"waits: {self.text}"


Action = Close | Stop | Claim | Gather | Look | Start | Release


@dataclass(frozen=True, slots=True)
class Plan:
    actions: tuple[Action, ...] = ()
    reasons: Mapping[int, Reason] = field(default_factory=dict)  # by job id
    passed: tuple[int, ...] = ()  # jobs that wait for devices while a job behind them gets some
    want: Want | None = None  # of the first job that waits for nothing but devices
    left_to: Mapping[str, Rival] = field(default_factory=dict)  # devices that are left to other users
    gathered: tuple[str, ...] = ()  # devices that are kept for a job that needs several
