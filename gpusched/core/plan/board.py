"""The box as a dispatcher knows it at one moment, for others to read. Values only; decides nothing."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from gpusched.common.text import clean
from gpusched.core.jobs.progress import ItemGroup
from gpusched.core.model import Device, JobState, RunningView
from gpusched.core.plan.fairness import ALONE, Sharing
from gpusched.core.plan.learned_memory import Learned
from gpusched.core.plan.snapshot import DeviceView, Limits


def paused_text(queue: str) -> str:
    """Return why nothing starts in the queue of this name while it is paused."""
    return f"the queue is paused; to go on: gpusched resume -q {shlex.quote(queue)}"


@dataclass(frozen=True, slots=True)
class BoardDevice:
    """One allowed device, and the plan's view of it."""

    device: Device
    view: DeviceView

    @property
    def job_ids(self) -> tuple[int, ...]:
        """Jobs of this queue that are on it now."""
        return tuple(resident.job_id for resident in self.view.residents)


@dataclass(frozen=True, slots=True)
class Board:
    """A dispatcher's devices and limits at `at`. `closed` and `gpus_closed`: why nothing may start; empty: it may."""

    at: float
    pid: int
    source: str  # of the readings, in a few words
    limits: Limits
    max_checks: int
    threshold_bytes: int
    devices: tuple[BoardDevice, ...]
    closed: str = ""
    gpus_closed: str = ""
    sharing: Sharing = ALONE
    waited_since: dict[int, float] = field(default_factory=dict)  # jobs that others have passed
    learned: tuple[Learned, ...] = ()  # of the jobs with mem=auto


class Pace(NamedTuple):
    """The successes of a dispatcher: their number, how long they took together, and when the first of them began."""

    jobs: int = 0
    job_s: float = 0.0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Frame:
    """One look at a dispatcher, for a live view."""

    at: float
    queue: str
    started_at: float
    board: Board
    counts: dict[JobState, int]
    running: tuple[RunningView, ...]
    reason: str  # what the first waiting job waits for, in a sentence
    pace: Pace
    groups: tuple[ItemGroup, ...]  # of the jobs that say how many items they do
    closing: str  # why nothing new starts, if so
    can_go_on: bool = False  # that was a person's wish, and can be taken back


class Wish(str, Enum):
    """The choices of a person at the terminal of a dispatcher: how to leave, or not to leave after all."""

    DRAIN = "drain"  # when what runs has ended
    STOP = "stop"  # what runs
    DETACH = "detach"  # from what runs
    GO_ON = "go on"


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the head knows it. `closed`: why it is given nothing more."""

    name: str
    heard_at: float
    closed: str = ""
    tags: tuple[str, ...] = ()
    board: Board | None = None
    running: int = 0
    reserved: int = 0
    clock_error_s: float = 0.0
    is_warned: bool = False  # that the cluster ends


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster of a queue at one moment. `reasons` are those of the first waiting jobs, by id."""

    at: float
    nodes: tuple[NodeView, ...] = ()
    reasons: dict[int, str] = field(default_factory=dict)


def device_document(item: BoardDevice, board: Board | None) -> dict[str, Any]:
    """Return a device for programs; `board` is that of the dispatcher that counts its checks, if one does."""
    known = item.view.availability
    return {
        "uuid": item.device.uuid,
        "index": item.device.index,
        "name": item.device.name,
        "total_bytes": item.view.total_bytes,
        "simulated": item.device.is_simulated,
        "state": known.state.value,
        "why": clean(item.view.refused or known.why),
        "checks": known.count if board is not None else None,
        "max_checks": board.max_checks if board is not None else None,
        "jobs": list(item.job_ids),
    }
