"""A job: its attributes, its needs, its state, and its row in a queue. A part of `core.model`.

It is a module of its own since a submission needs no more of the model, and is to start fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from gpusched.common.quantities import AUTO_MEMORY

MIB = 1 << 20
DIRTY = "+dirty"  # behind a commit: the work tree had changes
BUDGET_STEP_BYTES = 256 * MIB  # budgets are rounded up to this, so that there are few shapes of jobs


def round_budget(stated_bytes: int) -> int:
    """Return a memory budget as the plan counts it: rounded up to the next step; 0 for AUTO_MEMORY."""
    return -(-stated_bytes // BUDGET_STEP_BYTES) * BUDGET_STEP_BYTES


# a line of the list, submitted by itself, interactive (never started), or run by this node for the head of a cluster
JobOrigin = Literal["list", "submit", "exec", "lease"]


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


class Dependency(NamedTuple):
    """A wait for other jobs. `refs` are names, tags or ids of jobs of the same queue, as the source states them."""

    kind: DependencyKind
    refs: tuple[str, ...]


class Attributes(NamedTuple):
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
    alone: bool | None = None
    node: str = ""  # of a cluster
    node_tag: str = ""
    over_nodes: str = ""  # spread | pack; empty: not stated


NO_ATTRIBUTES = Attributes()


class JobSpec(NamedTuple):
    """One job as its source states it. Its identity is the text, cwd, env and the occurrence number, or its key."""

    command: bytes  # as the shell gets it
    text: bytes  # as the file states it: the identity (differs from `command` after --strip-gpu-env)
    line: int  # first physical line in the file, from 1
    occurrence: int = 1  # 1 for the first job with this identity, 2 for the next …
    attributes: Attributes = NO_ATTRIBUTES
    key: bytes = b""  # of a job that was submitted by itself


class Requirements(NamedTuple):
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
    alone: bool = False  # starts only on devices without any foreign process, and shares them with no job
    begin_at: float = 0.0
    environment: bytes = b""  # of its submission; empty: that of the dispatcher
    node: str = ""
    node_tag: str = ""
    over_nodes: str = ""

    @property
    def shape(self) -> str:
        """The key of jobs that fit the same devices, and the same room on the host."""
        host = f"{self.cpus}|{self.ram_bytes}" if self.cpus or self.ram_bytes else ""
        if self.node or self.node_tag or self.over_nodes:
            host += f"|@{self.node} {self.node_tag} {self.over_nodes}"
        if not self.gpus:
            return f"{_CPU_SHAPE}|{host}" if host else _CPU_SHAPE
        shape = f"{self.gpus}|{self.mem_bytes}|0|{','.join(self.limited_tags)}|{self.gpu_model}"
        shape += "|alone" if self.alone else ""
        shape += f"|auto {self.tags[0]}" if self.stated_mem_bytes == AUTO_MEMORY and self.tags else ""
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
    mem_bytes: int = 0  # budget on each of its devices, as stated or raised; 0: it shares them with no job
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
    alone: bool = False
    node: str = ""  # of a cluster: on this one only
    node_tag: str = ""  # only on nodes with this tag
    over_nodes: str = ""  # spread | pack; empty: as spread

    @property
    def states_host(self) -> bool:
        """True if it states its cores or its memory of the host: it is counted by these."""
        return bool(self.cpus or self.ram_bytes)

    @property
    def sibling_tag(self) -> str:
        """The tag that it shares with those from whose memory its own is learned; empty without mem=auto or tags."""
        return self.tags[0] if self.gpus and self.tags and self.stated_mem_bytes == AUTO_MEMORY else ""

    @property
    def budget_bytes(self) -> int:
        """The memory that it has on each of its devices, which others may share; 0: it shares them with no job."""
        return 0 if self.alone else self.mem_bytes


class OutcomeKind(str, Enum):
    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    NOT_STARTED = "not_started"
