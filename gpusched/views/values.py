"""The values that pages are made of. Loads nothing that lays out text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpusched.common.errors import GpuschedError
from gpusched.core.documents import foreign_document
from gpusched.core.jobs.group_summary import GroupSummary
from gpusched.core.jobs.progress import StartTotals
from gpusched.core.jobs.usage import add_foreign
from gpusched.core.model import NOBODY_SEEN, AttemptRow, ForeignUse, JobRow, JobState
from gpusched.core.plan.board import Board, BoardDevice
from gpusched.core.plan.fairness import Ticket
from gpusched.views.report import DeviceLine, GroupLine, JobCounts, RunningLine, tally
from gpusched.views.words import short_path

Reasons = Mapping[int, tuple[str, str]]  # job id -> kind and text
JobWithLast = tuple[JobRow, AttemptRow | None]  # a job and its newest attempt


class QueueSummary(NamedTuple):
    """A queue in one line. `runs_on`: jobs whose shepherds live although no dispatcher does.

    `full_disk`: the directory of the queue whose disk has no room.
    """

    name: str
    pid: int | None
    runs_on: int
    counts: JobCounts
    started_at: float
    waits_for: str
    can_start: bool = True  # a queued job waits for no other job
    full_disk: str = ""
    is_paused: bool = False
    closed: str = ""  # why its dispatcher starts nothing new; empty if it does
    interactive: int = 0  # running jobs that need no dispatcher


class Scene(NamedTuple):
    """The time and the directory that a page is read in. `resume`: what to type to have the queue dispatched."""

    now: float
    cwd: str
    queue: str  # its path
    option: str  # its name after -q
    resume: str

    def path(self, name: str) -> str:
        return short_path(f"{self.queue}/{name}", self.cwd)


class QueueReport(NamedTuple):
    """One queue: its GPUs, what runs, what waits and why, what has failed."""

    scene: Scene
    summary: QueueSummary
    source: str
    looked_at: float | None
    unreadable: str  # why its dispatcher cannot read the GPUs just now
    devices: Sequence[DeviceLine]
    running: Sequence[RunningLine]
    waiting: Sequence[JobRow]
    reasons: Reasons
    failed: Sequence[JobWithLast]
    groups: Sequence[GroupLine] = ()
    jobs: Sequence[JobWithLast] = ()  # every job, where all are wanted
    merged: Sequence[str] = ()  # what its merge has made
    warnings: Sequence[str] = ()  # and what it has told
    starts: Sequence[StartTotals] = ()  # the last one, and all of them if there were several

    def jobs_by_reason(self) -> dict[str, list[int]]:
        """Return the first waiting jobs by the reason why they wait, without what is known of the GPUs."""
        details = {"behind": ": ", "devices": " ("}
        groups: dict[str, list[int]] = {}
        for job_id, (kind, why) in self.reasons.items():
            if kind != "held":
                groups.setdefault(why.partition(details.get(kind, "\n"))[0], []).append(job_id)
        return groups


class JobReport(NamedTuple):
    """The story of one job. `current`: what it does now, or why it waits. `needs`: what it asks for, as text."""

    scene: Scene
    job: JobRow
    attempts: Sequence[AttemptRow]
    current: Sequence[str]
    needs: str = ""


class ClaimLabel(NamedTuple):
    """The holder of a claim by its own words, made fit to show."""

    user: str
    pid: int | None
    queue: str
    since: float | None


class DeviceReport(NamedTuple):
    """One GPU: as a dispatcher of this user counts it (`board`), or as it was read once (`board` is None)."""

    item: BoardDevice
    board: Board | None
    queue: str
    claim: ClaimLabel | None


class BoxReport(NamedTuple):
    """The GPUs of a box, and who waits for some of them. The texts of the tickets are not cleaned."""

    devices: Sequence[DeviceReport]
    tickets: Sequence[Ticket]


@dataclass(slots=True)
class UsageSum:
    """The usage of some jobs (queue and id). `failed` counts attempts; jobs that share a GPU count each."""

    jobs: set[tuple[str, int]] = field(default_factory=set)
    attempts: int = 0
    failed: int = 0
    job_s: float = 0.0
    gpu_s: float = 0.0
    idle_s: float = 0.0  # of `gpu_s`: held, and nothing was done there
    energy_j: float = 0.0
    foreign_use: ForeignUse = NOBODY_SEEN

    def add(self, other: UsageSum, part: float = 1.0) -> None:
        """Add another sum, of which this part was used here."""
        self.jobs |= other.jobs
        self.attempts += other.attempts
        self.failed += other.failed
        self.job_s += other.job_s * part
        self.gpu_s += other.gpu_s * part
        self.idle_s += other.idle_s * part
        self.energy_j += other.energy_j * part
        self.foreign_use = add_foreign(self.foreign_use, other.foreign_use)

    def document(self) -> dict[str, Any]:
        return {
            "jobs": len(self.jobs),
            "attempts": self.attempts,
            "failed_attempts": self.failed,
            "job_hours": self.job_s / 3600,
            "gpu_hours": self.gpu_s / 3600,
            "idle_gpu_hours": self.idle_s / 3600,
            "energy_j": self.energy_j,
            "foreign_use": foreign_document(self.foreign_use),
        }


# ---- before and after a run ------------------------------------------------------------------------


class DryRun(NamedTuple):
    """The effect that a run would have. `reasons`: what each of the first waiting jobs would do, by job id.

    `counts` are the jobs that the queue has now; None: there is no queue. `error` says why the GPUs cannot be used.
    `cleaned`: lines that were run before and cleaned away.
    """

    path: str
    pid: int | None  # of the dispatcher that works on the queue
    counts: Mapping[JobState, int] | None
    jobs: Sequence[tuple[JobRow, str]]  # after the change, which is add, keep, requeue or cancel
    board: Board
    max_checks: int
    poll_interval_s: float
    reasons: Mapping[int, str]
    error: GpuschedError | None
    cleaned: int = 0


class RunSummary(NamedTuple):
    """The end of a run."""

    scene: Scene
    code: int
    metrics: str
    logs: str
    states: Mapping[JobState, int]
    totals: Mapping[str, float]
    failed: Sequence[tuple[JobRow, Sequence[AttemptRow]]]  # the first ones, unless all are wanted
    can_start: bool  # a queued job waits for no other job
    has_held: bool  # by a person
    has_cancelled: bool  # by a person
    groups: Sequence[GroupSummary]
    report: str = ""  # its path, if one was written
    cleaned: int = 0  # lines that were run before and cleaned away

    @property
    def counts(self) -> JobCounts:
        return tally(self.states)
