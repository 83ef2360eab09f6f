"""Snapshot -> Plan: what to close, stop, claim, start and release now, and why each other job waits.

This file is the scheduler. It is pure: time is a field of the snapshot, and a plan is a proposal (a claim may be
refused by a colleague's gpusched; then the next snapshot says so).

A device goes through: free -> Claim -> one more look -> Start. A device that is held after a job of ours, and
whose newest look (newer than the claim) found it free, skips the first two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpusched.core.availability import Availability, DeviceState
from gpusched.core.lifecycle import Verdict, judge
from gpusched.core.model import MIB, Attempt, AttemptFact, Job

_NAMED = 8  # devices that a reason names
_ENDED = (AttemptFact.EXITED, AttemptFact.LOST, AttemptFact.NOT_STARTED)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the box this queue takes."""

    max_gpus: int = 4
    cpu_jobs: int = 2


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device of the allowed set, as the plan sees it. Their order in the snapshot is the order of preference."""

    availability: Availability
    total_bytes: int | None = None
    label: str = "GPU"  # for reasons: "GPU 3"
    held: bool = False  # claimed by this dispatcher
    looked: bool = False  # its sample is newer than the claim
    refused: str = ""  # why a claim was refused since the last poll

    @property
    def uuid(self) -> str:
        return self.availability.uuid


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the plan knows."""

    now: float
    limits: Limits
    devices: tuple[DeviceView, ...] = ()
    waiting: tuple[Job, ...] = ()  # in the order in which they are to start
    attempts: tuple[Attempt, ...] = ()  # open ones
    closed_to_starts: str = ""  # why nothing may start now; empty: jobs may start
    gpus_closed: str = ""  # why no GPU job may start now (NVML is silent)
    stop_all: bool = False  # end the running attempts
    threshold_bytes: int = 500 * MIB  # a free device has less foreign memory than this


@dataclass(frozen=True, slots=True)
class Close:
    attempt: Attempt
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Stop:
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim all of `devices` for the job, or none."""

    job_id: int
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    job_id: int
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Release:
    uuid: str


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a waiting job does not start now. `kind` is for programs, `text` for people."""

    kind: str  # closed | nvml | back_off | devices | max_gpus | cpu_jobs | look | claim | behind
    text: str


Action = Close | Stop | Claim | Start | Release


@dataclass(frozen=True, slots=True)
class Plan:
    actions: tuple[Action, ...] = ()
    reasons: Mapping[int, Reason] = field(default_factory=dict)  # by job id


def make_plan(snapshot: Snapshot) -> Plan:
    """One step for everything that can be decided now."""
    actions: list[Action] = []
    for attempt in snapshot.attempts:
        if attempt.fact in _ENDED and attempt.outcome is not None:
            verdict = judge(
                attempt.outcome,
                retries=attempt.retries,
                tries=attempt.tries,
                losses=attempt.losses,
                cancel_asked=attempt.cancel_requested,
            )
            actions.append(Close(attempt, verdict))
        elif attempt.fact in _ENDED:
            continue  # how it ended is not known yet
        elif (attempt.cancel_requested or snapshot.stop_all) and not attempt.stop_sent:
            actions.append(Stop(attempt))
    board = _Board(snapshot)
    places: list[Action] = []
    reasons: dict[int, Reason] = {}
    for job in snapshot.waiting:
        found = board.place(job)
        if isinstance(found, Reason):
            reasons[job.id] = found
        else:
            places.append(found)
    # released before others are claimed, so that max_gpus holds in between too
    actions.extend(Release(uuid) for uuid in board.unused())
    return Plan((*actions, *places), reasons)


class _Board:
    """What is still to be had while one plan is made; private to make_plan."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now = snapshot.now
        self.closed = snapshot.closed_to_starts
        self.gpus_closed = snapshot.gpus_closed
        self.devices = snapshot.devices
        open_attempts = [a for a in snapshot.attempts if a.fact not in _ENDED]
        on_jobs = {uuid for attempt in open_attempts for uuid in attempt.devices}
        settling = {d.uuid for d in snapshot.devices if d.held and d.availability.state is DeviceState.SETTLING}
        # the shepherd of an attempt that cannot be ended keeps its claim: ours goes, so that nothing starts beside it
        stuck = {u for a in snapshot.attempts if a.outcome and a.outcome.cause == "unkillable" for u in a.devices}
        self.kept = on_jobs | (settling - stuck)
        self.max_gpus = snapshot.limits.max_gpus
        self.gpus_left = self.max_gpus - len(self.kept)
        self.cpu_jobs = snapshot.limits.cpu_jobs
        self.cpu_left = self.cpu_jobs - sum(not a.devices for a in open_attempts)
        self.ready = [
            d
            for d in snapshot.devices
            if d.availability.state is DeviceState.FREE and not d.refused and d.uuid not in self.kept | stuck
        ]
        # what each device is certain to offer once it is free of others, the largest first
        certain = ((d.total_bytes or 0) - snapshot.threshold_bytes for d in self.devices if _present(d))
        self.certain = sorted(certain, reverse=True)
        self.taken: set[str] = set()
        self.behind: Reason | None = None  # of all GPU jobs after one that is owed the next device

    def place(self, job: Job) -> Start | Claim | Reason:
        if self.closed:
            return Reason("closed", self.closed)
        if job.not_before > self.now:
            return Reason("back_off", f"tried again in {job.not_before - self.now:.0f} s")
        if job.gpus == 0:
            return self._place_cpu(job)
        if self.gpus_closed:
            return Reason("nvml", self.gpus_closed)
        return self.behind or self._place_gpu(job)

    def _place_cpu(self, job: Job) -> Start | Reason:
        if self.cpu_left <= 0:
            return Reason("cpu_jobs", f"{self.cpu_jobs} CPU jobs run already (--cpu-jobs)")
        self.cpu_left -= 1
        return Start(job.id, ())

    def _place_gpu(self, job: Job) -> Start | Claim | Reason:
        if job.gpus > self.gpus_left:
            return self._hold_up(job, Reason("max_gpus", self._limit_text(job)))
        larger = self._waits_for_larger(job)
        fitting = self._fitting(job, larger)
        if len(fitting) < job.gpus:
            short = Reason("devices", self._shortage(job, len(fitting), larger))
            if not larger:
                return self._hold_up(job, short)
            self._take(fitting)  # its own so far; the others are of no use to it
            return short
        chosen = fitting[: job.gpus]
        self.gpus_left -= job.gpus
        self.taken |= self._take(chosen)
        unclaimed = tuple(d.uuid for d in chosen if not d.held)
        if unclaimed:
            return Claim(job.id, unclaimed)
        unseen = [d.label for d in chosen if not d.looked]
        if unseen:
            return Reason("look", f"looking once more at {', '.join(unseen)}")
        return Start(job.id, tuple(d.uuid for d in chosen))

    def _take(self, devices: Iterable[DeviceView]) -> set[str]:
        names = {d.uuid for d in devices}
        self.ready = [d for d in self.ready if d.uuid not in names]
        return names

    def _hold_up(self, job: Job, reason: Reason) -> Reason:
        """The jobs after this one wait for it, so that it gets what becomes free next."""
        self.behind = Reason("behind", f"behind job {job.id}, which waits: {reason.text}")
        return reason

    def _waits_for_larger(self, job: Job) -> bool:
        """Whether this job ran out of memory, and the box has devices that are certain to have more free."""
        return 0 < job.gpus <= len(self.certain) and 0 < job.above_bytes <= self.certain[job.gpus - 1]

    def _fitting(self, job: Job, larger: bool) -> list[DeviceView]:
        """The devices for this job that are to be had, the best first."""
        if not job.avoid and not job.above_bytes:
            return self.ready
        fitting = self.ready
        if larger:
            fitting = [d for d in fitting if _free_bytes(d) > job.above_bytes]
        elif job.above_bytes:
            fitting = sorted(fitting, key=_free_bytes, reverse=True)
        return sorted(fitting, key=lambda d: d.uuid in job.avoid)

    def _limit_text(self, job: Job) -> str:
        if job.gpus > self.max_gpus:
            return f"needs {job.gpus} GPUs, --max-gpus is {self.max_gpus}"
        busy = len(self.kept) + len(self.taken)
        return f"{busy} of {self.max_gpus} GPUs that this queue may hold are in use (--max-gpus)"

    def _shortage(self, job: Job, fitting: int, larger: bool) -> str:
        want = "a GPU" if job.gpus == 1 else f"{job.gpus} GPUs"
        room = f" with more than {job.above_bytes // MIB} MiB free, too little the last time" if larger else ""
        others = [d for d in self.devices if d.uuid not in self.taken]
        notes = [f"{d.label}: {_hurdle(d)}" for d in others[:_NAMED]]
        if len(others) > _NAMED:
            notes.append(f"{len(others) - _NAMED} more")
        have = f", has {fitting}" if job.gpus > 1 else ""
        return f"waits for {want}{room}{have} ({'; '.join(notes) or 'none is allowed'})"

    def unused(self) -> list[str]:
        """Held devices that neither run, nor settle, nor are about to start: others may have them."""
        return [d.uuid for d in self.devices if d.held and d.uuid not in self.kept and d.uuid not in self.taken]


def _present(device: DeviceView) -> bool:
    return device.availability.state not in (DeviceState.LOST, DeviceState.SET_ASIDE)


def _free_bytes(device: DeviceView) -> int:
    foreign = device.availability.foreign_bytes
    return 0 if foreign is None else (device.total_bytes or 0) - foreign


def _hurdle(device: DeviceView) -> str:
    return device.refused or device.availability.why
